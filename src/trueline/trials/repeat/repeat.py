"""Which operation does not repeat itself, bit for bit, when the job is run again with the same seeds.

The rule, fixed before the first run: the job is run once, the bits of its first steps recorded (preset ``bits``),
and then ``again`` so many times. Of each repeat the first value, in the order of execution, whose bits differ is looked
at. Where it is what a call returned (in the backward pass: a gradient that it made) and all tensors that the call was
given are the same, that call does not repeat itself. Where it is what a call was given, it came from between two
recorded calls: the call that only received it is never named. No chance is in that, so that no error is asked; what
never differed in n repeats differs in less than the bound of Clopper and Pearson.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from trueline.comparison.compare import compare
from trueline.comparison.first_apart import first_differing_value
from trueline.schema.errors import AlignmentError, CannotTell, RunError
from trueline.schema.text.words import counted
from trueline.trials.frame.asked import Asked, Prepared
from trueline.trials.frame.chance import most_rate
from trueline.trials.frame.runs import JobFails, Runs, Way
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.frame.trial import Answer, Job, TrialAnswer
from trueline.trials.frame.watched_job import AFTER, run_watched
from trueline.trials.repeat.in_place import InPlaceJob, InPlaceTrial

FIRST, AGAIN = "first", "again"
QUESTION = "Do the first steps repeat themselves bit for bit, and which operation does not?"


_ADVICE = (
    "Look for random numbers that no seed reaches (time, numpy.random.default_rng(), os.urandom, another process); "
    "on a GPU draw them on the CPU.",
    "Memory that is read before it is written differs so, too: trueline trial sync.",
)
_ADVICE_ON_CALL = (
    "Sums that are added in another order each time (atomics, threads): torch.use_deterministic_algorithms(True) "
    "takes a form that repeats itself, or raises where there is none.",
    *_ADVICE,
)


@dataclass(frozen=True)
class RepeatedJob:
    """Runs ``job`` with seeds, records ``steps`` steps, and compares with the first run in ``folder``."""

    job: Job
    folder: Path
    steps: int
    seed: int

    def __call__(self, way: Way, run_folder: Path) -> Outcome:
        """Run it; raises ``OSError`` where the command cannot be started."""
        run_path = (run_folder / "run").absolute()
        plan = {"preset": "bits", "steps": [0, self.steps]}
        changes = {"updates": self.steps + AFTER, "seed": self.seed}
        _, why = run_watched(self.job, run_path, plan=plan, changes=changes)
        if why:
            return Outcome(None, why)
        if way.arm == FIRST:
            return Outcome(False)
        try:
            rows = compare(str(self.folder / f"000-{FIRST}" / "run"), str(run_path)).rows
        except (AlignmentError, CannotTell, RunError) as error:
            return Outcome(None, str(error))
        part = first_differing_value(rows)
        if part is None:
            return Outcome(False)
        return Outcome(True, part.api, None, (part.site, part.role))


@dataclass
class RepeatTrial:
    """Runs the job through ``runs``, once and then ``again`` times."""

    runs: Runs
    again: int

    def answer(self) -> TrialAnswer:
        self.runs.begin()
        try:
            if self.runs.outcome(Way(FIRST)) is None:
                return self._answered("undecided", [f"The job does not run: {self.runs.last_why()}."], ())
            for _ in range(self.again):
                self.runs.outcome(Way(AGAIN))
        except JobFails as why:
            return self._answered("undecided", [f"The job does not run again: {why.why}."], ())
        differing = [entry for entry in self.runs.log if entry["arm"] == AGAIN and entry["showed"]]
        counts = self.runs.counts(AGAIN)
        if not differing:
            says = f"In {counted(counts.runs, 'repeat')} the first steps are the same, bit for bit; so less than "
            return self._answered(
                "excluded", [f"{says}{most_rate(counts):.0%} of repeats differ (95 % confidence)."], ()
            )
        return self._call_answer(differing[0], len(differing), counts.runs)

    def _call_answer(self, entry: dict[str, object], num: int, num_repeats: int) -> TrialAnswer:
        site, role = (str(code) for code in entry["codes"])  # type: ignore[union-attr]
        api = str(entry["why"]) or "a call"
        often = f"in {num} of {num_repeats} repeats"
        # nothing recorded made the difference, so that no call may be blamed
        if role == "given":
            says = f"What {api} is given at {site} differs {often}, and no recorded call before it made that: "
            says += "it came from between two recorded calls, so no operation is named."
            return self._answered("confirmed", [says], _ADVICE, (f"before {site}",))
        says = f"{api} at {site} makes something else of the same tensors {often}: it does not repeat itself, "
        says += (
            "or is given another argument that is no tensor (a number, an index), or its inputs were written to past "
        )
        says += "torch, which are not seen."
        return self._answered("confirmed", [says], _ADVICE_ON_CALL, (f"{api} at {site}",))

    def _answered(
        self, answer: Answer, says: Sequence[str], then: Sequence[str], credible: Sequence[str] = ()
    ) -> TrialAnswer:
        trial_answer = TrialAnswer(
            "repeat", QUESTION, answer, tuple(says), self.runs.arms, tuple(then), tuple(credible)
        )
        return self.runs.end(trial_answer)


def prepare(asked: Asked, *, again: int = 3, in_place: bool = False) -> Prepared:
    """Which operation does not repeat itself? Raises ``InputError``."""
    steps, words = asked.num_steps, " ".join(asked.command)
    if in_place:
        asked = asked if asked.out else replace(asked, out="trials/repeat-in-place")
        in_place_job = InPlaceJob(asked.plain_job, steps, asked.seed, again + 1)
        runs = asked.runs_of(in_place_job, 1, steps=steps, times=again + 1)
        line = f"The run: {words}, each operation of steps 0 to {steps - 1} called {again + 1} times."
        return Prepared(InPlaceTrial(runs, again + 1), [line], "1", runs)
    job = RepeatedJob(asked.plain_job, asked.folder, steps, asked.seed)
    runs = asked.runs_of(job, again + 1, steps=steps)
    line = f"Each run: {words}, the bits of steps 0 to {steps - 1} recorded."
    return Prepared(RepeatTrial(runs, again), [line], str(again + 1), runs)
