"""Which faults would be seen in this job, and when: each is planted in a short run of it, under the plan it would have.

The rule, fixed before the first run. All runs begin with the same seeds. The first is undisturbed, the second has all
in place that plants and changes nothing. Then each fault is planted from one update on, in a run of its own. A fault
that touched nothing was not planted, and counts neither as seen nor as not seen. It is seen where `check` says
something of the run that it does not say of the undisturbed one: an error or warning, or else something to confirm.
When it is seen is the least number of steps of which `check` says that; what it says of steps before the fault is a
false alarm.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from trueline.judge.check_run import CheckReport, check
from trueline.schema.errors import InputError, RunError
from trueline.schema.plan import Plan
from trueline.schema.text.words import counted, listed, ranks_text
from trueline.store.reader import Run
from trueline.trials.drill.faults import FAULTS, SHAM, Fault
from trueline.trials.drill.forecast import steps_until_seen
from trueline.trials.drill.sightings import Sighting, blamed, key_of, noteworthy, sightings_of
from trueline.trials.frame.asked import Asked, Prepared
from trueline.trials.frame.runs import Runs, Way
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.frame.trial import PLACEHOLDER, Answer, Job, TrialAnswer, Undecided
from trueline.trials.frame.watched_job import AFTER, RUN, run_watched

UNDISTURBED = "undisturbed"
QUESTION = "Which faults would be seen in this job, and after how many steps?"
SAVED = "saved.json"
"""What a job would have saved outside of that (``capture.trial.checkpoints``)."""


@dataclass(frozen=True)
class DrilledJob:
    """Runs ``job`` for ``steps`` updates under ``plan``, with the fault of an arm from update ``at`` on."""

    job: Job
    plan: Mapping[str, Any]
    steps: int
    at: int
    rank: int | None
    seed: int

    def __call__(self, way: Way, run_folder: Path) -> Outcome:
        """Run it; raises ``OSError`` where the command cannot be started."""
        files, planted = ((run_folder / name).absolute() for name in ("files", "planted"))
        files.mkdir()
        planted.mkdir()
        # a stop in mid-training also keeps a script from what it does at its end
        changes: dict[str, Any] = {
            "updates": self.steps + AFTER,
            "seed": self.seed,
            "saves_in": str(run_folder.absolute()),
        }
        fault = next((fault for fault in (SHAM, *FAULTS) if fault.name == way.arm), None)
        if fault is not None:
            changes |= fault.change(at=self.at, rank=self.rank, folder=str(planted))
        is_there, why = run_watched(self.job.saving_in(str(files)), run_folder / RUN, plan=self.plan, changes=changes)
        return Outcome(False, why, codes=(str(run_folder.absolute()),)) if is_there else Outcome(None, why)


@dataclass(frozen=True)
class Planted:
    """What the processes of a run say that its fault touched: how often, from which step on, and in words what; at
    ``end`` a law must see it, where that is known.
    """

    touched: int = 0
    step: int = 0
    world_size: int = 1
    what: str = ""
    ranks: tuple[int, ...] = ()
    end: int | None = None

    @classmethod
    def in_folder(cls, folder: Path) -> Planted:
        """As it was written there."""
        entries = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("planted-*.json"))]
        world_size = max((entry["world"] for entry in entries), default=1)
        entries = [entry for entry in entries if entry["touched"]]
        if not entries:
            return cls(world_size=world_size)
        return cls(
            sum(entry["touched"] for entry in entries),
            min(entry["step"] for entry in entries),
            world_size,
            next((entry["what"] for entry in entries if entry["what"]), ""),
            tuple(sorted(entry["rank"] for entry in entries)),
            entries[0].get("end"),
        )


@dataclass(frozen=True)
class RunResult:
    """What a run left in its folder: how it ended, where that was not well, and the first ``steps`` of its Run."""

    folder: Path
    why: str
    steps: int

    @cached_property
    def run(self) -> Run:
        """Raises ``RunError`` where it cannot be read."""
        return Run(self.folder / RUN)

    @cached_property
    def report(self) -> CheckReport:
        """What `check` says of it."""
        return check(self.run)

    @cached_property
    def saved(self) -> str:
        """After which update it would have saved what, in words; '' where it would not, or in its own folder."""
        path = self.folder / SAVED
        if not path.exists():
            return ""
        document = json.loads(path.read_text(encoding="utf-8"))
        return f"after update {document['updates']} the script saves '{document['path']}'"

    @cached_property
    def planted(self) -> Planted:
        """What its fault touched."""
        return Planted.in_folder(self.folder / "planted")


@dataclass(frozen=True)
class Row:
    """What became of one fault: ``after`` so many steps it was seen, or it was not in ``steps`` of them. ``why`` is why
    it was not planted, '' where it was; ``forecast`` the number of steps until it is seen, where that can be said.
    """

    fault: Fault
    why: str = ""
    after: int | None = None
    steps: int = 0
    sightings: Sequence[Sighting] = ()
    planted: Planted = field(default_factory=Planted)
    forecast: int | None = None
    false_alarms: Sequence[Sighting] = ()

    @property
    def state(self) -> str:
        """``seen``, ``not seen`` or ``not planted``."""
        return "not planted" if self.why else "not seen" if self.after is None else "seen"

    @property
    def names_rank(self) -> bool | None:
        """Whether it names the rank of the fault and no other; None where no single rank has it, or none is named."""
        ranks = blamed(self.sightings, self.planted.world_size)
        if not self.fault.of_one_rank or self.planted.world_size == 1 or not ranks:
            return None
        return ranks == self.planted.ranks

    def to_json(self) -> Mapping[str, Any]:
        """Texts are shown, the rest is for programs."""
        return {
            "fault": self.fault.says,
            "seen": self._seen_text(),
            "by": self._by_text(),
            "rank": self._rank_text(),
            "otherwise": self._otherwise_text(),
            "state": {"name": self.fault.name, "is": self.state, "after": self.after, "steps": self.steps},
            "planted": {
                "touched": self.planted.touched,
                "step": self.planted.step,
                "ranks": list(self.planted.ranks),
                "what": self.planted.what,
            },
            "names_rank": self.names_rank,
            "forecast": self.forecast,
            "sightings": [sighting.to_json() for sighting in self.sightings],
            "before": [sighting.to_json() for sighting in self.false_alarms],
        }

    def _seen_text(self) -> str:
        if self.state == "seen":
            return f"after {counted(self.after or 0, 'step')}"
        return "not planted" if self.why else f"not in {counted(self.steps, 'step')}"

    def _by_text(self) -> str:
        codes = [
            sighting.finding.manual + ("" if sighting.finding.is_grave else " (to confirm)")
            for sighting in self.sightings
        ]
        return ", ".join(codes[:2]) + (f" and {len(codes) - 2} more" if len(codes) > 2 else "")

    def _rank_text(self) -> str:
        if self.state != "seen" or not self.fault.of_one_rank or self.planted.world_size == 1:
            return ""
        ranks = blamed(self.sightings, self.planted.world_size)
        if self.names_rank is None:
            return "not told"
        return (
            ranks_text(ranks) if self.names_rank else f"{ranks_text(ranks)}, and it is {ranks_text(self.planted.ranks)}"
        )

    def _otherwise_text(self) -> str:
        if self.why:
            return self.why
        if self.state == "seen":
            return ""
        how = "past its end, after" if self.planted.end else "at the noise of these steps after"
        steps = f"{how} about {self.forecast:,}; " if self.forecast else ""
        return f"{steps}{self.fault.otherwise}"


@dataclass
class DrillTrial:
    """Runs ``job`` undisturbed, with a sham, and with each of ``faults``, through ``runs``."""

    runs: Runs
    job: DrilledJob
    faults: Sequence[Fault]
    next_command: str = ""

    def answer(self) -> TrialAnswer:
        self.runs.begin()
        try:
            undisturbed = self._undisturbed()
            sham = self._result(SHAM.name)
            self._require_rank(sham)
            is_alone = not isinstance(sham, str) and sham.planted.world_size == 1
            results = {
                fault.name: "" if is_alone and fault.between_ranks else self._result(fault.name)
                for fault in self.faults
            }
            usual = {key_of(finding) for finding in noteworthy(undisturbed.report.findings)}
            of_sham = [] if isinstance(sham, str) else sightings_of(sham.run, sham.report, usual)
            rows = [self._row(fault, results[fault.name], undisturbed, usual) for fault in self.faults]
        except Undecided as why:
            return self._answered("undecided", [why.says], why.then)
        except RunError as error:
            return self._answered("undecided", [f"What a run left cannot be read: {error}"])
        says = [*_already(undisturbed), *_saved_text(undisturbed), *_sham_text(sham, of_sham), *_counts(rows)]
        unseen = any(row.state == "not seen" for row in rows)
        then = [self.next_command] if unseen and self.next_command else []
        # where nothing was planted nothing was tried, and the job can rely on nothing that is known
        is_untried = bool(rows) and all(row.why for row in rows)
        return self._answered("undecided" if is_untried else "confirmed", says, then, rows)

    def _undisturbed(self) -> RunResult:
        """Raises ``Undecided`` where it is too short for a fault."""
        while isinstance(result := self._result(UNDISTURBED), str):
            continue
        num_steps = len(result.run.steps)
        if num_steps <= self.job.at and result.saved:
            raise Undecided(
                f"Runs end before the faults begin, with update {self.job.at}: {result.saved}, and a drill leaves "
                "checkpoints alone.",
                f"Put {PLACEHOLDER} where the command says where to save, or give --at fewer updates.",
            )
        if num_steps <= self.job.at:
            raise Undecided(
                f"The job made {counted(num_steps, 'update')}, and faults begin after update {self.job.at}.",
                "Give --at fewer updates than the job makes.",
            )
        return result

    def _require_rank(self, sham: RunResult | str) -> None:
        """Raises ``Undecided`` where the job does not have the rank that is to have the faults."""
        num_ranks = None if isinstance(sham, str) else sham.planted.world_size
        if num_ranks is not None and (self.job.rank or 0) >= num_ranks:
            raise Undecided(
                f"The job has {counted(num_ranks, 'rank')}, and faults are to be planted on rank {self.job.rank}.",
                f"Give --rank a number from 0 to {num_ranks - 1}.",
            )

    def _result(self, arm: str) -> RunResult | str:
        """What a run left, or why it left nothing. Raises ``Undecided`` as ``Runs`` does."""
        outcome = self.runs.outcome(Way(arm))
        entry = self.runs.log[-1]
        return entry["why"] if outcome is None else RunResult(Path(entry["codes"][0]), entry["why"], self.job.steps)

    def _row(self, fault: Fault, result: RunResult | str, undisturbed: RunResult, usual: set[Any]) -> Row:
        if isinstance(result, str):
            return Row(fault, why=f"the run came to nothing: {result}" if result else "one process: no other rank")
        planted = result.planted
        if not planted.touched:
            return Row(fault, why=f"it needs {fault.needs}", planted=planted)
        sightings = sightings_of(result.run, result.report, usual)
        # of steps before the fault nothing can show it
        false_alarms = [sighting for sighting in sightings if sighting.num_steps <= planted.step]
        sightings = [sighting for sighting in sightings if sighting not in false_alarms]
        after = sightings[0].num_steps - planted.step if sightings else None
        steps = len(result.run.steps) - planted.step
        forecast = planted.end
        if fault.kind == "loss":
            # of the steps before, losses are larger and noise is other
            forecast = steps_until_seen(undisturbed.run.between(planted.step, self.job.steps + AFTER), fault.size)
        return Row(fault, "", after, steps, sightings, planted, forecast, false_alarms)

    def _answered(
        self, answer: Answer, says: Sequence[str], then: Sequence[str] = (), rows: Sequence[Row] = ()
    ) -> TrialAnswer:
        names_seen = {row.fault.name for row in rows if row.state == "seen"}
        arms = self.runs.arms_by(lambda name, _: int(name in names_seen))
        table = tuple(row.to_json() for row in rows)
        return self.runs.end(TrialAnswer("drill", QUESTION, answer, tuple(says), arms, tuple(then), table=table))


def _already(undisturbed: RunResult) -> list[str]:
    """What the job shows without any fault: said first."""
    findings = [finding for finding in undisturbed.report.findings if finding.is_grave]
    if not findings:
        return []
    others = f" (and {counted(len(findings) - 1, 'other finding')})" if len(findings) > 1 else ""
    return [
        f"The job has a finding already, with nothing planted: {findings[0].code}: {findings[0].claim}{others} See "
        f"trueline check {undisturbed.folder / RUN}. Below counts what comes besides."
    ]


def _saved_text(undisturbed: RunResult) -> list[str]:
    if not undisturbed.saved:
        return []
    return [
        f"Runs end early: {undisturbed.saved}, and a drill leaves checkpoints alone. With {PLACEHOLDER} where the "
        "command says where to save, they go on."
    ]


def _sham_text(sham: RunResult | str, sightings: Sequence[Sighting]) -> list[str]:
    if isinstance(sham, str):
        return [f"The run with all in place and nothing changed came to nothing: {sham}."]
    if not sightings:
        return []
    codes = listed([sighting.finding.manual for sighting in sightings])
    return [f"With all in place and nothing changed the job shows {codes}: by chance, or planting disturbs it."]


def _counts(rows: Sequence[Row]) -> list[str]:
    """The verdict in numbers."""
    number = {state: sum(row.state == state for row in rows) for state in ("seen", "not seen", "not planted")}
    steps = max((row.steps for row in rows if not row.why), default=0)
    lines = [
        f"Of {counted(len(rows), 'fault')} this job would show {number['seen']} within {counted(steps, 'step')}; "
        f"{number['not seen']} it would not; {number['not planted']} cannot be planted in it."
    ]
    wrong = [row.fault.says for row in rows if row.state == "seen" and row.names_rank is False]
    return [*lines, f"Another rank is named for: {listed(wrong)}."] if wrong else lines


def prepare(
    asked: Asked, *, plan: str | None = None, at: int = 20, rank: int | None = None, only: Sequence[str] = ()
) -> Prepared:
    """Which faults would be seen in this job, and when? Raises ``InputError``."""
    names = [fault.name for fault in FAULTS]
    if unknown := [name for name in only if name not in names]:
        raise InputError(f"--only is '{unknown[0]}'; faults are {', '.join(names)}.")
    faults = [fault for fault in FAULTS if not only or fault.name in only]
    if at >= asked.num_steps:
        raise InputError(f"--at is {at}, and a run has {asked.num_steps} steps; give fewer, or more --steps.")
    keys = {**Plan.load(plan).kept(), "on_finding": None, "stop": ""}
    job = DrilledJob(asked.plain_job, keys, asked.num_steps, at, rank, asked.seed)
    facts = {"steps": asked.num_steps, "at": at, "rank": rank, "plan": keys, "faults": [fault.name for fault in faults]}
    runs = asked.runs_of(job, len(faults) + 4, **facts)
    # Runs are judged once all are there
    runs.keeps_all = True
    command = shlex.join(asked.command)
    lines = [
        f"Each run: {command}, watched, for {counted(asked.num_steps, 'update')}.",
        "Undisturbed, with all in place and nothing changed, and with each of these from update "
        f"{at} on: {listed([fault.says for fault in faults])}.",
        f"{PLACEHOLDER} is a folder of the run's own."
        if PLACEHOLDER in command
        else f"Where the script saves a checkpoint, a run ends; {PLACEHOLDER} in the command is a folder of its own.",
    ]
    more = ""
    # of the presets that only watch, the next one up
    if keys["preset"] == "workers":
        engine = "" if asked.engine == "local" else f" --engine {shlex.quote(asked.engine)}"
        options = f"--plan laws --steps {asked.num_steps} --at {at} --out {asked.folder}-laws{engine}"
        more = f"See whether more is seen: trueline trial drill {options} -- {shlex.join(asked.words)}"
    return Prepared(DrillTrial(runs, job, faults, more), lines, str(len(faults) + 2), runs)
