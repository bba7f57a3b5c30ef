"""Which device makes something else of the same work: the job, replayed with the same seeds on groups of devices.

The rule, fixed before the first run. Each replay runs the whole job on one group; what counts is the bits of its first
steps. Blocks of replays have every device once, each block in other groups and at other ranks. From the second block on
more than half of all replays must agree bit for bit; else the job is not deterministic here, and nothing can be voted
on. Where all agree, blocks go on until a device that spoils ``rate`` of its replays would have been seen with a
probability of 95 %. Where some do not, the likeliest suspect (a device, two, a rank, no one in particular) is tried:
devices by replays with each of them at another rank (``swap``) and without any (``spared``), the others by further
blocks, until one suspect has a probability of 1 - error / 5. A device is named only if it was seen to differ when
swapped, too: what follows the rank is software or data.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, listed
from trueline.trials.frame.asked import Asked, Prepared, require_share
from trueline.trials.frame.chance import Counts, clean_runs_needed, most_rate
from trueline.trials.frame.runs import OutOfRuns, Runs
from trueline.trials.frame.trial import Answer, TrialAnswer, Undecided
from trueline.trials.shrink.axes import ranks_started
from trueline.trials.vote.groups import PLACEHOLDER, Group, Groups, devices_named, variables_of
from trueline.trials.vote.replay import FirstApart, ReplayedJob, first_apart
from trueline.trials.vote.suspects import Replay, Suspect, ranked

REPLAY, SWAP, SPARED = "replay", "swap", "spared"
QUESTION = "Does a device make something else of the same work, and which?"
LEAST_BLOCKS = 2
MARGIN = 5.0
"""The error that is asked is to hold for each rate, and not over those of the prior together: benchmarks/trials."""

_NEXT_DEVICE = (
    "Take it out of the job, and run its vendor's diagnosis (dcgmi diag -r 4, ascend-dmi -dg): a pass there is no "
    "proof of health.",
)
_NEXT_SOFTWARE = (
    "Look for the operation: trueline trial repeat; a race: trueline trial sync.",
    "Look at what this rank does and the others do not: its data, its branch of the code.",
)
_NOT_DETERMINISTIC = (
    "Find the operation that does not repeat itself: trueline trial repeat.",
    "Try --deterministic, which has torch take forms that repeat themselves; seed what the script draws by itself.",
)


@dataclass
class VoteTrial:
    """Runs the job through ``runs``, whose engine is ``job``, on ``groups``; ``rate`` is the share of spoilt replays of
    a device that is to be seen.
    """

    runs: Runs
    job: ReplayedJob
    groups: Groups
    rate: float = 0.3
    error: float = 0.05
    seed: int = 0
    at_once: int = 1
    _groups: list[Group] = field(default_factory=list[Group])

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def answer(self) -> TrialAnswer:
        self.runs.begin()
        try:
            return self._judged()
        except Undecided as why:
            bounds = self._bounds(()) if isinstance(why, OutOfRuns) else ()
            return self._answered("undecided", [why.says, *bounds], why.then)

    def _judged(self) -> TrialAnswer:
        if not self._blocks():
            return self._answered("excluded", ["All replays are the same, bit for bit.", *self._bounds(())], ())
        suspect = self._suspect()
        if not suspect.devices:
            return self._answered("excluded", self._software(suspect), _NEXT_SOFTWARE, (str(suspect),))
        says = [*(self._follows(device) for device in suspect.devices), *self._bounds(suspect.devices)]
        return self._answered("confirmed", says, _NEXT_DEVICE, (str(suspect),), [self._finding(suspect)])

    # -- runs -------------------------------------------------------------------------------------------------------

    def _blocks(self) -> bool:
        """Run blocks until a replay differs; False where none did in as many as ``rate`` asks for."""
        needed = max(clean_runs_needed(self.rate, error=0.05), LEAST_BLOCKS)
        number = 0
        while True:
            self._block(number)
            number += 1
            if number < LEAST_BLOCKS:
                continue
            replays = self._replays()
            if any(replay.differs for replay in replays):
                return True
            if min(self._counts(replays, name).runs for name in self.groups.devices) >= needed:
                return False

    def _block(self, number: int) -> None:
        groups = list(self.groups.block(number, self._random))
        self._groups += groups
        self.job.agreed = self._majority()
        self.runs.outcomes([self.groups.way(REPLAY, group) for group in groups], at_once=self.at_once)

    def _suspect(self) -> Suspect:
        """Who is at fault with a probability of 1 - error; devices only where each was seen to differ once swapped."""
        number = LEAST_BLOCKS
        while True:
            suspect, chance = ranked(self._replays(), self.groups.devices)[0]
            # what follows the rank looks like its device until that device had another rank
            is_swapped = all(self._of_arm(f"{SWAP}: {device}").showed for device in suspect.devices)
            if chance >= 1 - self.error / MARGIN and is_swapped:
                return suspect
            if suspect.devices:
                self._swap(suspect)
            else:
                self._block(number)
                number += 1

    def _swap(self, suspect: Suspect) -> None:
        """Each of the suspects at the next rank among others, and a replay without any."""
        rest = [name for name in self.groups.devices if name not in suspect.devices]
        arms = [(SPARED, tuple(self._random.sample(rest, self.groups.size)))]
        for device in suspect.devices:
            arm = f"{SWAP}: {device}"
            group = self._random.sample(rest, self.groups.size - 1)
            group.insert((self._of_arm(arm).runs + 1) % self.groups.size, device)
            arms.append((arm, tuple(group)))
        for arm, group in self._random.sample(arms, len(arms)):
            self._run(arm, group)

    def _run(self, arm: str, group: Group) -> None:
        self._groups.append(group)
        self.job.agreed = self._majority()
        self.runs.outcome(self.groups.way(arm, group))

    # -- what they left ---------------------------------------------------------------------------------------------

    def _outcomes(self) -> list[tuple[Group, dict[str, Any]]]:
        entries = zip(self._groups, self.runs.log, strict=False)
        return [(group, entry) for group, entry in entries if entry["showed"] is not None]

    def _majority(self) -> tuple[str, ...]:
        """The bits that most replays left; () before the first."""
        classes = Counter(tuple(entry["codes"]) for _, entry in self._outcomes())
        return classes.most_common(1)[0][0] if classes else ()

    def _replays(self) -> list[Replay]:
        """The replays that told something. Raises ``Undecided`` where not more than half agree."""
        outcomes, agreed = self._outcomes(), self._majority()
        num = sum(tuple(entry["codes"]) == agreed for _, entry in outcomes)
        # without a majority there is no minority to name
        if 2 * num <= len(outcomes):
            classes = {tuple(entry["codes"]) for _, entry in outcomes}
            raise Undecided(
                f"The job is not deterministic here: {counted(len(outcomes), 'replay')} with the same seeds left "
                f"{len(classes)} different sets of bits, of which none has a majority (the most are {num} of "
                f"{len(outcomes)}); they part {self._where(agreed)}. What differs everywhere cannot be voted on.",
                *_NOT_DETERMINISTIC,
            )
        if other_samples := [part for part in self._aparts(agreed) if part.kind == "samples"]:
            raise Undecided(
                f"Replays read other samples from step {other_samples[0].step} on: with other data, bits say nothing "
                "of devices.",
                "Seed the order of the data in the script, or give it a generator of its own.",
            )
        return [self._replay(group, tuple(entry["codes"]), agreed) for group, entry in outcomes]

    def _replay(self, group: Group, bits: Sequence[str], agreed: Sequence[str]) -> Replay:
        part = first_apart(bits, agreed)
        if part is None or len(part.ranks) != 1:
            return Replay(group, bits != agreed)
        # a line is step, kind, and a digest for each rank
        num_ranks = len(bits[0].split()) - 2
        return Replay(group, True, part.ranks[0] * len(group) // num_ranks if num_ranks >= len(group) else None)

    def _aparts(self, agreed: Sequence[str]) -> list[FirstApart]:
        parts = [first_apart(entry["codes"], agreed) for _, entry in self._outcomes()]
        return sorted((part for part in parts if part is not None), key=lambda part: part.step)

    def _where(self, agreed: Sequence[str]) -> str:
        parts = self._aparts(agreed)
        return f"from step {parts[0].step} on, first in its {parts[0].kind}" if parts else "in their number of ranks"

    def _of_arm(self, arm: str) -> Counts:
        entries = [entry for entry in self.runs.log if entry["arm"] == arm and entry["showed"] is not None]
        agreed = self._majority()
        return Counts(len(entries), sum(tuple(entry["codes"]) != agreed for entry in entries))

    @staticmethod
    def _counts(replays: Sequence[Replay], device: str) -> Counts:
        differ = [replay.differs for replay in replays if device in replay.devices]
        return Counts(len(differ), sum(differ))

    # -- words ------------------------------------------------------------------------------------------------------

    def _follows(self, device: str) -> str:
        replays = self._replays()
        counts = self._counts(replays, device)
        ranks = sorted(
            {replay.devices.index(device) for replay in replays if device in replay.devices and replay.differs}
        )
        at = f" (as rank {listed([str(rank) for rank in ranks])} of its group)" if self.groups.size > 1 else ""
        return (
            f"It follows device {device}: {counts.showed} of {counted(counts.runs, 'replay')} with it differ{at}, "
            f"first {self._where(self._majority())}."
        )

    def _software(self, suspect: Suspect) -> list[str]:
        replays = self._replays()
        differ = [replay for replay in replays if replay.differs]
        often = f"{len(differ)} of {counted(len(replays), 'replay')} differ, first {self._where(self._majority())}"
        if suspect.rank is None:
            devices = {name for odd_replay in differ for name in odd_replay.devices}
            return [f"{often}, on no device in particular (on {listed(sorted(devices))}): it is no device's fault."]
        devices = [odd_replay.devices[suspect.rank] for odd_replay in differ if odd_replay.first == suspect.rank]
        return [
            f"{often}, in rank {suspect.rank} before others, whichever device runs it ({listed(sorted({*devices}))}): "
            "it follows the rank, so it is software or data, and no device's fault."
        ]

    def _bounds(self, at_fault: Sequence[str]) -> list[str]:
        """Lines on the other devices: never that they are healthy."""
        outcomes, agreed = self._outcomes(), self._majority()
        bad = {*at_fault}
        runs = {
            name: sum(name in group and not bad & {*group} for group, _ in outcomes)
            for name in self.groups.devices
            if name not in bad
        }
        differ = any(tuple(entry["codes"]) != agreed and not bad & {*group} for group, entry in outcomes)
        if not runs or not min(runs.values()) or differ:
            return []
        least = min(runs.values())
        scope = "of the others" if bad else "of all"
        return [
            f"In {counted(least, 'replay')} or more {scope} nothing differed: each spoils at most "
            f"{most_rate(Counts(least)):.0%} of them (q <= {min(3 / least, 1.0):.2g}, 95 % confidence). That is no "
            "proof of health."
        ]

    def _finding(self, suspect: Suspect) -> Finding:
        replays = self._replays()
        counts_by_device = [self._counts(replays, device) for device in suspect.devices]
        ranks = tuple(self.groups.devices.index(device) for device in suspect.devices)
        parts = self._aparts(self._majority())
        counts = sum(counts_by_device, Counts())
        return Finding(
            code="minority-rank",
            severity="error",
            claim=f"{str(suspect).capitalize()} makes something else of the same work in {counts.showed} of "
            f"{counted(counts.runs, 'replay')}, at whatever rank; without it all agree bit for bit.",
            ranks=tuple(sorted(ranks)),
            step_first=parts[0].step if parts else None,
            step_last=parts[0].step if parts else None,
            measured=counts.showed / counts.runs,
            expected=0.0,
            unit="share of replays",
            false_alarm_rate=self.error,
            evidence={"devices": list(suspect.devices), "replays": counts.runs, "differ": counts.showed},
            next=_NEXT_DEVICE,
        )

    def _answered(
        self,
        answer: Answer,
        says: Sequence[str],
        then: Sequence[str],
        credible: Sequence[str] = (),
        findings: Sequence[Finding] = (),
    ) -> TrialAnswer:
        agreed = self._majority()
        arms = self.runs.arms_by(
            lambda _, entries: sum(entry["showed"] is not None and tuple(entry["codes"]) != agreed for entry in entries)
        )
        return self.runs.end(
            TrialAnswer(
                *("vote", QUESTION, answer, tuple(says), arms, tuple(then), tuple(credible), self.error),
                findings=tuple(findings),
            )
        )


def prepare(
    asked: Asked,
    *,
    devices: str,
    group: int | None = None,
    variable: str | None = None,
    rate: float = 0.3,
    deterministic: bool = False,
    at_once: int = 1,
) -> Prepared:
    """Which device makes something else of the same work? Raises ``InputError``."""
    require_share("--rate", rate, below=1.0)
    job, steps = asked.plain_job, asked.num_steps
    names = devices_named(devices)
    size = group or ranks_started(asked.command) or 1
    groups = Groups(names, size, variables_of(names, asked.command, variable), asked.command)
    is_told = variable is not None or any(PLACEHOLDER in word for word in asked.command)
    replayed = ReplayedJob(job, steps, asked.seed, deterministic, is_told)
    facts = {"devices": list(names), "group": size, "variable": variable, "rate": rate, "error": asked.error}
    runs = asked.runs_of(replayed, asked.max_runs, steps=steps, deterministic=deterministic, **facts)
    trial = VoteTrial(runs, replayed, groups, rate, asked.error, asked.seed, at_once)
    group_words = f"{counted(groups.count, 'group')} of {counted(size, 'device')}, of {', '.join(names)}"
    plan = [
        f"Each run: {' '.join(asked.command)}, the bits of steps 0 to {steps - 1}.",
        f"{group_words}; {_variables_in_words(groups.variables)}.",
    ]
    return asked.prepared(trial, plan, f"{groups.count * max(clean_runs_needed(rate, error=0.05), 2)}")


def _variables_in_words(variables: Sequence[str]) -> str:
    return f"a run has them in {', '.join(variables)}" if variables else f"a run has them for {PLACEHOLDER}"
