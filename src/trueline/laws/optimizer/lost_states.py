"""States of an optimizer that are older at an update than the update before had left them, gone, or others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Literal

import numpy as np

from trueline.judge.series.sampled_updates import Slice, sampled_updates
from trueline.judge.series.update_rules import GRAD, PARAM, TOLERANCE, Array
from trueline.store.reader import Run

LossKind = Literal["older", "gone", "replaced"]


@dataclass(frozen=True)
class LostState:
    """States of one parameter, by ``names``, that changed from the update of ``earlier`` to that of ``later``.

    They are of fewer updates (``older``), ``gone``, or have other elements (``replaced``). ``is_new_optimizer`` says
    that another optimizer was made since, ``job_went_on`` that weights were as they had been left, or that the schedule
    went on.
    """

    earlier: Slice
    later: Slice
    kind: LossKind
    names: Sequence[str]
    is_new_optimizer: bool
    job_went_on: bool


@dataclass(frozen=True)
class _Succession:
    """Slices of one parameter on one rank at two sampled updates, one right after the other."""

    earlier: Sequence[Slice]
    later: Sequence[Slice]

    @property
    def rank_step(self) -> tuple[int, int]:
        """Rank, and step of the later update."""
        return self.later[0].rank, self.later[0].step

    def contains(self, step: int) -> bool:
        """True if ``step`` is after the earlier update and no later than the other."""
        return self.earlier[0].step < step <= self.later[0].step

    def common_elements(self, name: str) -> Iterator[tuple[Array, Array]]:
        """Elements that both samples have, after the earlier update and before the later, where these are neighbours.

        Arrays are float64 [K] with the K elements that two slices share.
        """
        for old, new in product(self.earlier, self.later):
            start, end = max(old.start, new.start), min(old.end, new.end)
            if new.step == old.step + 1 and start < end and name in old.after and name in new.before:
                yield (
                    old.after[name][start - old.start : end - old.start],
                    new.before[name][start - new.start : end - new.start],
                )

    def loss(self) -> tuple[LossKind, Sequence[str]] | None:
        """Kind and names of the states that were lost; None where none was."""
        old, new = self.earlier[0], self.later[0]
        count = old.numbers_after.get("step")
        if count is not None and new.numbers_before.get("step", 0.0) < count:
            return "older", ["step"]
        names = [name for name in old.after if name not in (PARAM, GRAD)]
        if missing := [name for name in names if name not in new.before]:
            return "gone", missing
        replaced = [name for name in names if any(_is_replaced(*pair) for pair in self.common_elements(name))]
        return ("replaced", replaced) if replaced else None


def lost_states(run: Run) -> list[LostState]:
    """Lost states, by step, but for those of a new start of the job or of loading weights, too.

    Raises ``CannotTell`` where no update was sampled.
    """
    slices = sampled_updates(run).slices
    starts = [attempt.step for attempt in run.manifest.attempts[1:]]
    pairs = [pair for pair in _successions(slices) if not any(pair.contains(start) for start in starts)]
    moved, unmoved = set[tuple[int, int]](), set[tuple[int, int]]()
    for pair in pairs:
        for old, new in pair.common_elements(PARAM):
            (unmoved if np.array_equal(old, new) else moved).add(pair.rank_step)
    schedule_goes_on = _schedule_order(run.lists("schedule_epochs"))
    losses: list[LostState] = []
    for pair in pairs:
        # Weights that changed between updates, too, are those of a checkpoint that was loaded with its states.
        if pair.rank_step in moved or (loss := pair.loss()) is None:
            continue
        old, new = pair.earlier[0], pair.later[0]
        went_on = pair.rank_step in unmoved or schedule_goes_on(old, new)
        is_new_optimizer = old.optimizer_number != new.optimizer_number
        losses.append(LostState(old, new, *loss, is_new_optimizer=is_new_optimizer, job_went_on=went_on))
    return sorted(losses, key=lambda state: state.later.step)


def _successions(slices: Sequence[Slice]) -> Iterator[_Succession]:
    """Neighbouring samples of each parameter by the same optimizer, or by one that took over from another."""
    by_param: defaultdict[tuple[int, str], defaultdict[int, list[Slice]]] = defaultdict(lambda: defaultdict(list))
    steps: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for sample in slices:
        if sample.is_own and sample.law:
            by_param[sample.rank, sample.name][sample.step].append(sample)
            steps[sample.rank, sample.optimizer_number].append(sample.step)
    for (rank, _), by_step in by_param.items():
        for (_, earlier), (_, later) in pairwise(sorted(by_step.items())):
            old, new = earlier[0], later[0]
            # Optimizers that take turns keep states of their own, which need not follow from each other's.
            takes_over = (
                old.optimizer_number == new.optimizer_number
                or steps[rank, old.optimizer_number][-1] < steps[rank, new.optimizer_number][0]
            )
            if takes_over and (old.law, old.optimizer) == (new.law, new.optimizer):
                yield _Succession(earlier, later)


def _schedule_order(epochs: Mapping[tuple[int, int], np.ndarray]) -> Callable[[Slice, Slice], bool]:
    """A function that tells whether every schedule was further at the second slice than at the first."""

    def goes_on(old: Slice, new: Slice) -> bool:
        before, after = (epochs.get((sample.step, sample.rank), np.zeros(0)) for sample in (old, new))
        return before.shape == after.shape and before.size > 0 and bool(np.all(after > before))

    return goes_on


def _is_replaced(old: Array, new: Array) -> bool:
    """True if elements were changed, other than all by one factor, as momentum is where the learning rate changes."""
    if np.array_equal(old, new) or not (np.isfinite(old).all() and np.isfinite(new).all()):
        return False
    top = int(np.argmax(np.abs(old)))
    factor = new[top] / old[top] if old[top] else 0.0
    # 2^-8 is the unit roundoff of bfloat16, the coarsest format that states are kept in.
    return not factor or not np.allclose(new, factor * old, rtol=TOLERANCE * 2.0**-8, atol=0.0)
