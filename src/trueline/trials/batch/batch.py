"""Whether the first step of a job obeys the laws of ``laws`` and ``gradient``: the job itself, run some times for that
step.

The rule, fixed before the first run. Arms: ``base``, twice, for laws of the batch the second time with other random
numbers for the model; ``rounding``, each weight moved by one unit roundoff; then, where the batch allows it, one or two
for each law of it, and ``moved`` weights. Every run has the same seeds, dropout off, and batch normalisation with its
running statistics. If the two of ``base`` are apart by more than rounding, a third tells whether the step repeats
itself at all, and laws of the batch are undecided; so it is where nothing was measured. A law is broken where losses or
gradients are further from it than ``Rounding``. No chance is in it, so that no error is asked.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trueline.capture.child_env import trial_environment
from trueline.capture.trial.changed_batches import Change
from trueline.comparison.expect.rounding import UNIT_ROUNDOFF
from trueline.schema.errors import InputError
from trueline.trials.batch.first_steps import FirstStep, gradients_apart, losses_apart, read_first_step
from trueline.trials.batch.gradient import Direction, judge_gradient
from trueline.trials.batch.laws import (
    COARSE,
    LIMIT,
    Law,
    LawJudgement,
    Rounding,
    is_nothing_alone,
    judge_halves,
    judge_same,
    rounding_of,
)
from trueline.trials.frame.asked import Asked, Prepared
from trueline.trials.frame.trial import Arm, Ended, Job, TrialAnswer, Undecided

LAWS: tuple[Law, ...] = ("permute", "halves", "padding", "gradient")
QUESTION = "Do loss and gradients of the first step obey what must hold as its batch or weights are changed?"
MODEL_SEEDS = (1, 1001)
OF_BATCHES, OF_GRADIENT, OF_RIGHT_GRADIENT = 9, 61, 15
"""Runs, at most, for laws of the batch; for the gradient, with those that look for where it is wrong, and without."""

_CHANGES: dict[Law, tuple[Change, ...]] = {
    "permute": ("rows",),
    "halves": ("first", "second"),
    "padding": ("padding",),
}


@dataclass
class BatchTrial:
    """Runs ``job``, and tells ``progress`` the name of each arm as it begins, and how many were run before."""

    job: Job
    laws: Sequence[Law] = LAWS
    seed: int = 0
    progress: Callable[[str, int], None] = lambda name, runs: None
    _folder: Path = Path()
    _runs: list[str] = field(default_factory=list[str])
    _broken_arms: list[str] = field(default_factory=list[str])
    _repeat: FirstStep | None = None
    _nudged_step: FirstStep | None = None
    _rounding: Rounding | None = None
    _lacks: str = ""

    @property
    def max_runs(self) -> int:
        """Runs, at most; the gradient needs most where it is wrong and there are some hundred parameters."""
        return (OF_BATCHES if self._changes_batches else 0) + (OF_GRADIENT if "gradient" in self.laws else 0)

    @property
    def note(self) -> str:
        """A note on the number of runs, in words: how many are usual, which laws are left out."""
        usual = self.max_runs - OF_GRADIENT + OF_RIGHT_GRADIENT
        many = f"about {usual} where the gradient is right" if "gradient" in self.laws else ""
        return "; ".join(part for part in (self._lacks, many) if part)

    @property
    def _changes_batches(self) -> bool:
        return not self._lacks and any(law != "gradient" for law in self.laws)

    def answer(self) -> TrialAnswer:
        # ranks that end late may still write while it is removed
        with tempfile.TemporaryDirectory(prefix="trueline-", ignore_cleanup_errors=True) as folder:
            self._folder = Path(folder)
            return self._judge_all()

    def _judge_all(self) -> TrialAnswer:
        try:
            base = self._run_to_update("base", signs="gradient" in self.laws)
            if base.fact("closure"):
                raise Undecided("The optimizer calls a closure, so that there is no gradient before its update.")
            if not base.is_finite:
                raise Undecided("The loss or the gradient of the first step is not finite.")
        except Undecided as why:
            return self._trial_answer("undecided", (why.says,), why.then)
        judgements: list[LawJudgement] = []
        for judge in (self._of_batches, self._of_weights):
            try:
                judgements += judge(base)
            except Undecided as why:
                judgements.append(LawJudgement(self.laws[0], None, why.says, why.then))
        broken_laws = [judgement for judgement in judgements if judgement.holds is False]
        held_laws = [judgement for judgement in judgements if judgement.holds]
        says = [
            judgement.says
            for judgement in (
                *broken_laws,
                *held_laws,
                *(judgement for judgement in judgements if judgement.holds is None),
            )
        ]
        if self._rounding is not None:
            says.append(f"Rounding explains up to {self._rounding.says()} in this step.")
        advice = tuple(dict.fromkeys(line for judgement in judgements for line in judgement.next))
        if broken_laws:
            return self._trial_answer("confirmed", dict.fromkeys(says), advice)
        is_open = any(judgement.is_looked_at for judgement in judgements if judgement.holds is None)
        return self._trial_answer("excluded" if held_laws and not is_open else "undecided", dict.fromkeys(says), advice)

    def _trial_answer(self, answer: str, says: Iterable[str], advice: Sequence[str]) -> TrialAnswer:
        arms = [Arm(name, self._runs.count(name), self._broken_arms.count(name)) for name in dict.fromkeys(self._runs)]
        return TrialAnswer("batch", QUESTION, answer, tuple(says), tuple(arms), tuple(advice))  # type: ignore[arg-type]

    def _of_batches(self, base: FirstStep) -> list[LawJudgement]:
        """The laws of a changed batch; raises where the step draws random numbers, which go by it."""
        laws = [law for law in self.laws if law != "gradient"]
        if not laws:
            return []
        if not any(facts["batches"] for facts in base.facts):
            self._lacks = "no batch of a torch DataLoader was seen: only the gradient is looked at"
            raise Undecided(
                "No batch of a torch DataLoader was seen before the first update.",
                "Give the training batches through a DataLoader: they are what laws of the batch change.",
            )
        repeat = self._run_to_update("base", model_seed=MODEL_SEEDS[1])
        # other random numbers for the model: a step that draws none is the same with them
        if not _alike(base, repeat, rounding_of(base, base, base)):
            self._require_repeats(base, repeat)
        self._repeat = repeat
        rounding = self._rounding_in(base, repeat)
        return [self._judge_law(law, base, rounding) for law in laws]

    def _of_weights(self, base: FirstStep) -> list[LawJudgement]:
        """The law of moved weights, for which random numbers may be drawn, if they are the same in each run."""
        if "gradient" not in self.laws:
            return []
        repeat = self._repeat or self._run_to_update("base")
        floor = rounding_of(base, base, base)
        if not _alike(base, repeat, Rounding(LIMIT * floor.losses, LIMIT * floor.gradients)):
            raise Undecided(*_does_not_repeat(base, repeat))
        self._rounding_in(base, repeat)
        assert self._nudged_step is not None
        judgement = judge_gradient(base, self._nudged_step, self._run_moved)
        self._broken_arms += ["moved"] * (judgement.holds is False)
        return [judgement]

    def _rounding_in(self, base: FirstStep, repeat: FirstStep) -> Rounding:
        """The differences that rounding explains. Raises ``Undecided`` where they are too large."""
        if self._rounding is None:
            self._nudged_step = self._run_to_update(
                "rounding", nudge=float(base.fact("unit")) or UNIT_ROUNDOFF["float32"]
            )
            self._rounding = rounding_of(base, repeat, self._nudged_step)
        if max(self._rounding.losses, self._rounding.gradients) > COARSE:
            raise Undecided(f"Rounding alone explains {self._rounding.says()}: nothing can be told from such a step.")
        return self._rounding

    def _require_repeats(self, base: FirstStep, repeat: FirstStep) -> None:
        """Raise where a step differs by more than sums do that a device adds up in another order each time: between two
        runs alike, or between those with other random numbers.
        """
        floor = rounding_of(base, base, base)
        noise = Rounding(LIMIT * floor.losses, LIMIT * floor.gradients)
        self._repeat = alike = self._run_to_update("base")
        if not _alike(base, alike, noise):
            self._broken_arms.append("base")
            raise Undecided(*_does_not_repeat(base, alike))
        # two runs alike agree where one with other random numbers does not: the step draws some
        if _alike(base, alike, floor) or not _alike(base, repeat, noise):
            self._broken_arms.append("base")
            raise Undecided(
                "The step draws random numbers that are no dropout of torch: with others the loss is apart by "
                f"{losses_apart(base.losses, repeat.losses):.2g} of it.",
                "Take the noise, sampling, masking or augmentation out of the model and the loop for this trial, or "
                "do it in the dataset, whose random numbers are the same in all runs.",
            )

    def _judge_law(self, law: Law, base: FirstStep, rounding: Rounding) -> LawJudgement:
        sure, why = _may_be_changed(law, base)
        if why:
            return LawJudgement(law, None, f"{law}: not looked at, as {why}.", is_looked_at=False)
        arms: list[FirstStep] = []
        for change in _CHANGES[law]:
            first_step, run_end = self._run(change, change=change)
            why = _no_answer(change, first_step, run_end)
            if first_step is None or why:
                return LawJudgement(law, None, f"{law}: {why}")
            arms.append(first_step)
        judgement = judge_halves(base, *arms, rounding) if law == "halves" else judge_same(law, base, *arms, rounding)
        # a batch split along another dimension than that of samples breaks any law
        if judgement.holds is False and not sure and law != "padding":
            return LawJudgement(
                law,
                None,
                f"{judgement.says} But its loader does not say which dimension is of samples.",
                judgement.next,
            )
        if judgement.holds is False and law == "halves":
            judgement = self._unless_by_design(judgement, base, rounding)
        self._broken_arms += _CHANGES[law] if judgement.holds is False else ()
        return judgement

    def _unless_by_design(self, judgement: LawJudgement, base: FirstStep, rounding: Rounding) -> LawJudgement:
        """A loss that is nothing for one row alone compares rows: the law is not one of it."""
        one_row, _ = self._run("one", change="one")
        if one_row is None or not is_nothing_alone(base, one_row, rounding):
            return judgement
        return LawJudgement(
            "halves",
            None,
            f"{judgement.says} But of one row alone the loss is 0: it compares rows, as contrastive losses do, and for "
            "these the law does not hold by design.",
            ("If the loss is meant to be of each row by itself, look for softmax or mean over dimension 0.",),
        )

    def _run_moved(self, direction: Direction, step: float, among: Sequence[int]) -> FirstStep:
        along = str(self._run_folder(0, "base")) if direction == "along" else ""
        moved_step = self._run_to_update("moved", move=step, among=list(among), along=along)
        if not moved_step.is_finite:
            raise Undecided(f"gradient: with its weights moved by {step:.1e} of their size the loss is not finite.")
        return moved_step

    def _run_to_update(self, name: str, **changes: Any) -> FirstStep:
        first_step, run_end = self._run(name, **changes)
        if first_step is None:
            raise Undecided(_how_it_ended(name, run_end), "Run the command by itself: does it reach an update?")
        return first_step

    def _run_folder(self, number: int, name: str) -> Path:
        return self._folder.resolve() / f"{number}-{name}"

    def _run(self, name: str, **changes: Any) -> tuple[FirstStep | None, Ended]:
        self.progress(f"{name} ({self.note})" if self.note else name, len(self._runs))
        run_folder = self._run_folder(len(self._runs), name)
        run_folder.mkdir(parents=True)
        self._runs.append(name)
        request = {"out": str(run_folder), "seed": self.seed, "model_seed": MODEL_SEEDS[0]} | changes
        run_end = self.job.run(trial_environment(request, base=dict(os.environ)), printed=run_folder / "printed.txt")
        return read_first_step(run_folder), run_end


def prepare(asked: Asked, *, law: str = ",".join(LAWS)) -> Prepared:
    """Do loss and gradients obey the laws of a batch? Raises ``InputError``."""
    laws = [name for name in LAWS if name in law.split(",")]
    if not laws or {*law.split(",")} - {*LAWS}:
        raise InputError(f"--law is '{law}'; give some of {', '.join(LAWS)}, with commas.")
    plan = [f"Each run: {' '.join(asked.command)}, up to its first update.", f"Laws: {', '.join(laws)}."]
    trial = BatchTrial(asked.plain_job, laws, asked.seed)
    note = f", {trial.note}" if trial.note else ""
    return Prepared(trial, plan, f"3 to {trial.max_runs}{note}", trial)


def _does_not_repeat(base: FirstStep, repeat: FirstStep) -> tuple[str, str]:
    return (
        "The first step does not repeat itself with the same seeds: two runs are apart by "
        f"{losses_apart(base.losses, repeat.losses):.2g} of the loss.",
        "Look for seeds from the clock or the process, and for a dataset that is in another order at each start.",
    )


def _alike(base: FirstStep, repeat: FirstStep, rounding: Rounding) -> bool:
    near = losses_apart(base.losses, repeat.losses) <= rounding.losses
    return near and gradients_apart(base.gradients, repeat.gradients) <= rounding.gradients


def _may_be_changed(law: Law, base: FirstStep) -> tuple[bool, str]:
    """Return whether it is known which dimension is of samples, and why batches cannot be changed ('': they can)."""
    batches = [batch for facts in base.facts for batch in facts["batches"]]
    why = base.fact("problem")
    if not why and law != "padding" and min(batch["rows"] for batch in batches) < 2:
        why = "a batch has one row"
    if not why and law == "padding":
        why = next((batch["unpadded"] for batch in batches if batch["unpadded"]), "")
    return all(batch["sure"] for batch in batches), why


def _no_answer(change: str, first_step: FirstStep | None, run_end: Ended) -> str:
    if first_step is None:
        return _how_it_ended(change, run_end)
    if first_step.fact("problem"):
        return f"not looked at, as {first_step.fact('problem')}."
    return "" if first_step.is_finite else f"with the batch changed ('{change}') loss or gradient are not finite."


def _how_it_ended(name: str, run_end: Ended) -> str:
    how = "was stopped, as it took too long," if run_end.status is None else f"ended with status {run_end.status}"
    tail_text = f" It printed last: {run_end.tail}" if run_end.tail else ""
    return f"In arm '{name}' the command {how} before its first update was seen.{tail_text}"
