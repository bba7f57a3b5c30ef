"""Which modules of a job are wrong by themselves: no search, one pass, every module judged.

The rule, fixed before the first run. The job runs twice to a step that a run which is as it should be stored, under the
plan of that run, with its modules fed (``capture.trial.fed_modules``): each gets what it got in that run, with the same
weights, and hands on what was returned there. It is compared with that run. A module is wrong by itself where what it
made of the same values is beyond what rounding explains (``compare``), in both runs. No chance is in it, so that no
error is asked; what differs in one of the two alone does not repeat itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trueline.capture.trial.fed_modules import ARRIVES, MODULE_FED, UNLIKE, WEIGHTS
from trueline.comparison.compare import compare
from trueline.schema.errors import AlignmentError, CannotTell, RunError
from trueline.schema.site import Site
from trueline.schema.text.words import counted, listed
from trueline.store.reader import Run
from trueline.trials.frame.asked import Asked, Prepared
from trueline.trials.frame.runs import Runs, Way
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.frame.trial import Answer, Job, TrialAnswer, Undecided
from trueline.trials.frame.watched_job import AFTER, run_watched
from trueline.trials.modules.stored import modules_stored, step_stored, write_stored
from trueline.trials.modules.wrong import RecordedValues, Wrong, wrong_modules

ARM = "fed"
QUESTION = "Which modules make something else of what they were given in a run that is as it should be?"
ALONE = "modules:alone"
"""What is told of a call that the job makes and the good run does not."""
_ROUNDINGS = 100.0
"""Roundings of float32 by which what arrives at a module may differ without a word: code between modules is short."""
_UNIT = 2.0**-24
_MOST_NAMED = 8


@dataclass(frozen=True)
class FedJob:
    """Runs ``job`` to ``step`` of the Run ``good``, whose stored values ``write`` puts into a folder. ``codes`` of its
    outcome are the modules that are wrong, and what its processes told, as JSON.
    """

    job: Job
    good: str
    step: int
    plan: Mapping[str, Any]
    write: Callable[[], Path]

    def __call__(self, way: Way, run_folder: Path) -> Outcome:
        """Run it; raises ``OSError`` where the command cannot be started."""
        run_path, met = (run_folder / "run").absolute(), (run_folder / "met").absolute()
        met.mkdir()
        plan = {**self.plan, "depth": "tensor", "steps": [self.step, self.step + 1]}
        feed = {"folder": str(self.write()), "step": self.step}
        changes = {"updates": self.step + AFTER, "met": str(met), "feed": feed}
        is_there, why = run_watched(self.job, run_path, plan=plan, changes=changes)
        if not is_there:
            return Outcome(None, why)
        try:
            compared = compare(str(run_path), self.good, steps=[self.step])
            wrong = wrong_modules(compared.rows, RecordedValues.read(Run(run_path), self.step))
        except (AlignmentError, CannotTell, RunError) as error:
            return Outcome(None, why or str(error))
        messages = sorted({word for path in met.glob("met-*.json") for word in json.loads(path.read_text())})
        if not any(word.startswith(MODULE_FED) for word in messages):
            return Outcome(None, "no module of it was fed: its modules have other names, or it does not reach the step")
        messages += [f"{ALONE} {row.name} ({row.where})" for row in compared.one_sided if not row.in_reference]
        codes = (
            *(json.dumps(asdict(module)) for module in wrong),
            *(message for message in messages if message[:4] != "job:"),
        )
        return Outcome(bool(wrong), codes=codes)


@dataclass
class ModulesTrial:
    """Runs the job through ``runs``: ``step`` is that of the good Run, ``names`` are its modules."""

    runs: Runs
    step: int
    names: Sequence[str]

    def answer(self) -> TrialAnswer:
        self.runs.begin()
        try:
            outcomes = [self.runs.outcome(Way(ARM)) for _ in range(2)]
        except Undecided as why:
            return self._answered("undecided", [why.says], why.then)
        if None in outcomes:
            return self._answered("undecided", [f"The job tells nothing: {self.runs.last_why()}."])
        return self._judged(*([*entry["codes"]] for entry in self.runs.log))

    def _judged(self, first: Sequence[str], again: Sequence[str]) -> TrialAnswer:
        wrong, wrong_again = (
            [Wrong(**json.loads(code)) for code in codes if code[0] == "{"] for codes in (first, again)
        )
        words = [message for message in first if message[0] != "{"]
        says = self._what_was_fed(words)
        names = {message.module for message in wrong_again}
        if always := [message for message in wrong if message.module in names]:
            num_unnamed = len(always) - _MOST_NAMED
            more = [f"{counted(num_unnamed, 'further module')}: see trial.json."] if num_unnamed > 0 else []
            site = Site.parse(always[0].site)
            then = (f"Its values: `trueline info RUN --site '*/{site.name}#*' --stacks`",)
            sentences = [_says(module) for module in always[:_MOST_NAMED]]
            return self._answered("confirmed", [*sentences, *more, *says], then, [message.module for message in always])
        # in one of two runs alone: what does not repeat itself is no answer here
        if wrong or wrong_again:
            names_apart = listed(sorted({message.module for message in (*wrong, *wrong_again)}))
            then = ("trueline trial repeat --in-place names operations that do not repeat themselves.",)
            return self._answered("undecided", [f"{names_apart} differ in one of two runs alone.", *says], then)
        # modules are right, so that what arrives differently was made between them
        if arrived := _arrived(words):
            arrivals = listed([f"{name} (by {rel:.2g})" for name, rel in arrived[:_MOST_NAMED]])
            sentence = f"All modules are right by themselves, but other values arrive at {arrivals}: "
            sentence += "code between modules makes them, or it is another batch."
            alone = [
                f"Calls that this job alone makes: {listed(calls)}."
                for calls in [_messages_of(words, ALONE)[:3]]
                if calls
            ]
            then = ("Look at the forward of the module that holds these, before them.",)
            return self._answered(
                "confirmed", [sentence, *alone, *says], then, [f"before {name}" for name, _ in arrived]
            )
        sentence = "All modules are right by themselves, forward and backward, with the weights of that run."
        then = ("Look at what is no module: the weights (initialisation, checkpoint, update), the loss.",)
        return self._answered("excluded", [sentence, *says], then)

    def _what_was_fed(self, words: Sequence[str]) -> list[str]:
        """Lines on what was judged, and what of the job was not as in that run before it was fed."""
        num_fed = len(_messages_of(words, MODULE_FED))
        says = [f"{counted(num_fed, 'module')} of {len(self.names)} fed at step {self.step}."]
        if unlike := _messages_of(words, UNLIKE):
            says.append(f"Not judged, as their values have other shapes or dtypes: {listed(unlike[:5])}.")
        weights = sorted(
            (float(rel), name) for name, rel in (message.split() for message in _messages_of(words, WEIGHTS))
        )
        if weights:
            rel, name = weights[-1]
            says.append(f"{counted(len(weights), 'weight')} differed before that step, {name} the most, by {rel:.2g}.")
        return says

    def _answered(
        self, answer: Answer, says: Sequence[str], then: Sequence[str] = (), credible: Sequence[str] = ()
    ) -> TrialAnswer:
        trial_answer = TrialAnswer(
            "modules", QUESTION, answer, tuple(says), self.runs.arms, tuple(then), tuple(credible)
        )
        return self.runs.end(trial_answer)


def prepare(asked: Asked, *, ref: str, step: int | None = None) -> Prepared:
    """Which modules are wrong by themselves? Raises ``InputError``, and ``CannotTell`` where ``ref`` stored nothing."""
    good = Run(ref)
    at, job, folder = step_stored(good, step), asked.plain_job, asked.folder / "stored"
    plan = {**good.manifest.plan, "sinks": [], "on_finding": None, "stop": "", "when": []}
    names = modules_stored(good, at)
    fed_job = FedJob(job, ref, at, plan, lambda: write_stored(good, at, folder))
    runs = replace(asked.runs_of(fed_job, asked.max_runs, ref=str(Path(ref).absolute()), step=at), about=ref)
    says = [
        f"Each run: {' '.join(asked.command)}, up to step {at}, compared with {ref}.",
        f"Arm: fed (twice): {counted(len(names), 'module')} given what they were given there.",
    ]
    return Prepared(ModulesTrial(runs, at, names), says, "2", runs)


def _messages_of(words: Sequence[str], kind: str) -> list[str]:
    return [word.removeprefix(kind).strip() for word in words if word.startswith(f"{kind} ")]


def _arrived(words: Sequence[str]) -> list[tuple[str, float]]:
    """The modules at which what arrives differs beyond a few roundings, with how much."""
    arrivals = [(name, float(rel)) for name, rel in (message.split() for message in _messages_of(words, ARRIVES))]
    return [(name, rel) for name, rel in arrivals if rel > _ROUNDINGS * _UNIT]


def _says(wrong: Wrong) -> str:
    call = f", in {wrong.api}" if wrong.api else ""
    where = f" ({wrong.where})" if wrong.where else ""
    shared = f" It, or what else uses the same tensor: {listed(wrong.shared[:3])}." if wrong.shared else ""
    explains = f"{wrong.expected:.2g}" if wrong.expected else "nothing"
    passes = " and ".join(wrong.passes)
    return (
        f"{wrong.module} ({passes}) makes something else of the same values, by {wrong.measured:.2g} where rounding "
        f"explains {explains}, first at {wrong.site}{call}{where}.{shared}"
    )
