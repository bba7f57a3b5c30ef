"""Weights of tokens in the loss that a step descends, by rank and micro-batch, from sampled steps.

Weights are exact but for rounding: each passed through a few operations, whose number bounds how far two that are meant
to be equal may be apart (``TokenWeights.rounding``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from trueline.judge.compared_ranks import data_parallel_ranks, envs_of
from trueline.judge.stats.memoize import memoized
from trueline.laws.token_weights.columns import DOUBTS, NUM_FIELDS, TokenWeights
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

LEAST_DIFFERENCE = 0.01
"""Relative difference below which weights, and their sum, are not told apart whatever their rounding: a learning rate
that is off by less has no consequence.
"""

_BY_DESIGN = range(1, 6)
"""Doubts about what the loss is, which no other run of this training would settle."""


@dataclass(frozen=True)
class WeighedBatch:
    """A micro-batch with ``tokens`` that count: each has ``weight``. ``micro`` is its backward pass in the step."""

    rank: int
    micro: int
    tokens: float
    weight: float

    @property
    def total(self) -> float:
        """Sum of the weights of its tokens."""
        return self.tokens * self.weight


@dataclass(frozen=True)
class WeighedStep:
    """The micro-batches of one step on all ranks, ``num_micro`` backward passes on each (None: not the same number).
    ``rounding`` bounds the relative difference of equal weights; ``reduction`` and ``scalings`` are as in
    ``TokenWeights``, the largest.
    """

    step: int
    parts: tuple[WeighedBatch, ...]
    num_micro: int | None
    rounding: float
    reduction: int
    scalings: int

    @property
    def tolerance(self) -> float:
        """Relative difference from which on weights differ."""
        return max(LEAST_DIFFERENCE, self.rounding)

    @cached_property
    def by_rank(self) -> Mapping[int, Sequence[WeighedBatch]]:
        """The micro-batches of each rank."""
        return {rank: [part for part in self.parts if part.rank == rank] for rank in {p.rank for p in self.parts}}

    @property
    def total(self) -> float:
        """Sum of the weights of all tokens in the mean over ranks."""
        return sum(part.total for part in self.parts) / len(self.by_rank)

    @cached_property
    def totals(self) -> Mapping[int, float]:
        """Sum of the weights of the tokens of each rank."""
        return {rank: sum(part.total for part in parts) for rank, parts in self.by_rank.items()}

    @property
    def differs_within(self) -> bool:
        """True where some rank's micro-batches weigh their tokens differently."""
        return any(not self._are_equal([part.weight for part in parts]) for parts in self.by_rank.values())

    @property
    def differs(self) -> bool:
        """True where any two micro-batches weigh their tokens differently."""
        return not self._are_equal([part.weight for part in self.parts])

    @property
    def is_means(self) -> bool:
        """True where micro-batches, or ranks whose micro-batches agree, weigh the same whatever their tokens are."""
        if not self._are_equal([*self.totals.values()]):
            return False
        return not self.differs_within or self._are_equal([part.total for part in self.parts])

    @property
    def factor(self) -> float:
        """The largest factor by which a token counts more, or less, than if all counted the same."""
        fair = sum(part.total for part in self.parts) / sum(part.tokens for part in self.parts)
        return max(max(part.weight / fair, fair / part.weight) for part in self.parts)

    def _are_equal(self, values: Sequence[float]) -> bool:
        return max(values) <= min(values) * (1 + self.tolerance)


@memoized
def weighed_steps(run: Run) -> tuple[WeighedStep, ...]:
    """Steps whose token weights are known on all ranks whose gradients are averaged. Raises ``CannotTell`` where
    there are none.
    """
    lists = run.lists("token_weights")
    if not lists:
        raise CannotTell(
            "no token weights were looked for: the Run is of an older version, or had no sampled step",
            reason="no-data" if run.has("optimizer_digest") else "not-recorded",
        )
    ranks = data_parallel_ranks(run)
    weighed: list[WeighedStep] = []
    doubts: Counter[int] = Counter()
    for step in sorted({step for step, _ in lists}):
        rows = {rank: list(_rows(lists[step, rank])) for rank in ranks if (step, rank) in lists}
        all_rows = [row for rank_rows in rows.values() for row in rank_rows]
        doubts.update(int(row.doubt) for row in all_rows if row.doubt)
        if len(rows) == len(ranks) and all_rows and not any(row.doubt for row in all_rows):
            weighed += _weigh(step, rows)
    if not weighed:
        raise _cannot_tell(doubts)
    return tuple(weighed)


def counted_noun(run: Run) -> str:
    """Noun for what is counted: sample, where targets are of samples, else token."""
    sources = {env.token_source for env in envs_of(run, data_parallel_ranks(run)).values()}
    return "sample" if sources == {"samples"} else "token"


def _rows(values: np.ndarray) -> Iterator[TokenWeights]:
    numbers: list[float] = values.tolist()
    for start in range(0, len(numbers), NUM_FIELDS):
        yield TokenWeights(*numbers[start : start + NUM_FIELDS])


def _weigh(step: int, rows: Mapping[int, Sequence[TokenWeights]]) -> Iterator[WeighedStep]:
    """The step, unless a weight is no positive number, or tokens of one micro-batch differ: then they are meant to."""
    parts: list[WeighedBatch] = []
    all_rows = [row for rank_rows in rows.values() for row in rank_rows]
    for rank, rank_rows in rows.items():
        for micro, row in enumerate(rank_rows):
            if row.tokens == 0:
                continue
            is_one_weight = 0 < row.least <= row.greatest <= row.least * (1 + max(LEAST_DIFFERENCE, row.rounding))
            if not is_one_weight or not math.isfinite(row.greatest):
                return
            parts.append(WeighedBatch(rank, micro, row.tokens, (row.least + row.greatest) / 2))
    if not all(any(part.rank == rank for part in parts) for rank in rows):
        return
    nums = {len(rank_rows) for rank_rows in rows.values()}
    yield WeighedStep(
        step,
        tuple(parts),
        nums.pop() if len(nums) == 1 else None,
        rounding=max(row.rounding for row in all_rows),
        reduction=max(int(row.reduction) for row in all_rows),
        scalings=max(int(row.scalings) for row in all_rows),
    )


def _cannot_tell(doubts: Counter[int]) -> CannotTell:
    if not doubts:
        return CannotTell(
            "tokens of one micro-batch weigh differently, so that weights are part of the loss, or a rank lacks them",
            reason="undecidable",
        )
    number = doubts.most_common(1)[0][0]
    why = DOUBTS[number] if number < len(DOUBTS) else "a later version of Trueline wrote why"
    return CannotTell(why, reason="by-design" if number in _BY_DESIGN else "undecidable")
