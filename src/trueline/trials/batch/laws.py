"""The laws that the loss and the gradients of a step obey as its batch is changed, judged to within rounding."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from trueline.comparison.expect.rounding import UNIT_ROUNDOFF, order_difference_rel
from trueline.trials.batch.first_steps import (
    FirstStep,
    Gradients,
    Losses,
    gradients_apart,
    losses_apart,
    mixed,
    most_apart,
    share_of_first,
)

Law = Literal["permute", "halves", "padding", "gradient"]

LIMIT = 8.0
"""A difference is more than rounding where it is so many times the largest that rounding was seen, or is expected, to
make: the line of ``compare`` for stored values."""

COARSE = 0.25
"""Where rounding explains more than this share of a loss or gradient, nothing can be told from it."""

_HINTS: dict[Law, tuple[str, ...]] = {
    "permute": (
        "Look for what goes by the place of a row in the batch: `view` or `reshape` that mixes dimensions, recurrence "
        "or attention over the batch (`batch_first`), a state or index by row, rows that are cut off or dropped.",
        "Experts with a capacity drop tokens by their order: with such a router this is by design.",
    ),
    "halves": (
        "Compare the shapes of predictions and targets where the loss is made: (B, 1) against (B,) makes B x B pairs.",
        "Look for softmax, mean or normalisation over dimension 0, and for attention without `batch_first`.",
        "A loss that compares rows with each other (contrastive, ranking, a deviation over the batch) does this by "
        "design: such a loss has nothing to compare in a batch of one row, so look at what it is there.",
    ),
    "padding": (
        "Look at what the loss is a mean over: positions of padding must be left out (`ignore_index`, or a sum over "
        "loss * mask, divided by mask.sum()).",
        "Look whether the mask reaches every attention and pooling, with the sign that it has there.",
        "Padding on the left moves positions, unless the model makes them from the mask (`position_ids`).",
    ),
}
_UNEVEN_HINTS = (
    "Each rank or micro-batch has a mean over its own tokens, so that tokens of those with fewer count more: divide "
    "the sum of losses by the number of the whole step, unless that is meant.",
)
_SUM_HINTS = (
    'Look for `reduction="sum"`, or a division by a fixed number: a shorter batch then counts less, and the gradient, '
    "where no optimizer scales it back, grows with the batch. Divide by what the batch has, unless a sum is meant.",
)


@dataclass(frozen=True)
class Rounding:
    """Relative differences of losses and of gradients up to which rounding explains them."""

    losses: float
    gradients: float

    def says(self) -> str:
        """In words."""
        return f"{self.losses:.1e} of the loss and {self.gradients:.1e} of the gradient"


@dataclass(frozen=True)
class LawJudgement:
    """Whether a law ``holds`` (None: that cannot be told), and why, in a sentence. It is not looked at where the
    batch has nothing that could be changed.
    """

    law: Law
    holds: bool | None
    says: str
    next: tuple[str, ...] = ()
    is_looked_at: bool = True


def rounding_of(base: FirstStep, again: FirstStep, nudged: FirstStep) -> Rounding:
    """The differences that rounding explains: ``LIMIT`` times the largest of what two runs alike differ by, what moving
    each weight by one rounding does, what is expected of sums in two orders, and one rounding: a loss in bfloat16 has
    no smaller step.
    """
    terms = max([2, *(int(batch["elements"]) for batch in base.batches)]) * len(base.losses)
    unit = float(base.fact("unit")) or UNIT_ROUNDOFF["float32"]
    order = order_difference_rel(
        max(terms, 3), orders=("blocked", "blocked"), u=min(unit, UNIT_ROUNDOFF["float32"]), u_out=unit
    )
    losses = max(losses_apart(base.losses, step.losses) for step in (again, nudged))
    gradients = max(gradients_apart(base.gradients, step.gradients) for step in (again, nudged))
    return Rounding(LIMIT * max(losses, order, unit), LIMIT * max(gradients, order, unit))


def judge_same(law: Law, base: FirstStep, changed: FirstStep, rounding: Rounding) -> LawJudgement:
    """Judge that nothing changes: for another order of the rows and for other padding."""
    change = {"permute": "with its rows in reverse", "padding": "with other padding"}.get(law, "")
    losses = losses_apart(base.losses, changed.losses)
    gradients = gradients_apart(base.gradients, changed.gradients)
    if losses <= rounding.losses and gradients <= rounding.gradients:
        return LawJudgement(law, True, f"{law}: the batch {change} has the same loss ({losses:.1e}) and gradient "
                      f"({gradients:.1e} apart).")  # fmt: skip
    return _broken(law, f"the batch {change}", losses, gradients, rounding, (base.gradients, changed.gradients))


def judge_halves(base: FirstStep, first: FirstStep, second: FirstStep, rounding: Rounding) -> LawJudgement:
    """Judge that the whole is the mean of its halves, each weighted by what the loss is a mean over."""
    if not (base.losses.shape == first.losses.shape == second.losses.shape):
        return LawJudgement("halves", None, "halves: a half has another number of backward passes than the whole.")
    if base.fact("normalises_batch"):
        return LawJudgement(
            "halves", None, "halves: batch normalisation without running statistics lets rows influence each other."
        )
    if losses_apart(base.losses, first.losses + second.losses) <= rounding.losses:
        return LawJudgement("halves", False, _AS_A_SUM, _SUM_HINTS)
    nearest: tuple[float, float, Gradients] | None = None
    for name, share in _shares(base, first, second).items():
        losses = losses_apart(base.losses, share * first.losses + (1 - share) * second.losses)
        even = float(np.ptp(share)) < 1e-12
        whole = _of_halves(float(share[0]), first, second) if even else base.gradients
        gradients = gradients_apart(base.gradients, whole) if even else 0.0
        if losses <= rounding.losses and gradients <= rounding.gradients:
            measured = f"({losses:.1e})" + (f" and its gradient too ({gradients:.1e})" if even else _UNEVEN)
            says = f"halves: the loss of the batch is the mean of its halves, weighted by {name} {measured}."
            return LawJudgement("halves", True, says, () if even else _UNEVEN_HINTS)
        if nearest is None or (losses, gradients) < nearest[:2]:
            nearest = (losses, gradients, whole)
    assert nearest is not None  # rows are always among the shares
    if base.fact("weighted") and len(base.losses) > 1:
        return LawJudgement("halves", None, "halves: classes have weights, so that what each half counts is not known.")
    losses, gradients, whole = nearest
    return _broken("halves", "the mean of the two halves", losses, gradients, rounding, (base.gradients, whole))


def is_nothing_alone(base: FirstStep, one_row: FirstStep, rounding: Rounding) -> bool:
    """Return whether the loss of one row is nothing to that of the batch, as of a loss that compares rows."""
    if base.losses.shape != one_row.losses.shape:
        return False
    return float(np.linalg.norm(one_row.losses)) <= rounding.losses * float(np.linalg.norm(base.losses))


_AS_A_SUM = "halves: the losses of the halves add up to that of the batch: it grows with the number of rows."
_UNEVEN = "; what each half counts differs between ranks or micro-batches, so the gradient was not compared"


def _shares(base: FirstStep, first: FirstStep, second: FirstStep) -> Mapping[str, Losses]:
    """By what a mean may be over: the share of the first half in each backward pass."""
    shares: dict[str, Losses] = {}
    batches = base.batches
    count_names = [set(batch["counts"]) for batch in batches] or [set[str]()]
    for name in sorted(set.intersection(*count_names), key=lambda name: (name != "rows", name)):
        counts = np.array([batch["counts"][name] for batch in batches], dtype=np.float64)
        ways = {"": counts, " of the step": np.broadcast_to(counts.sum(0), counts.shape)}
        per_rank = counts.reshape(len(base.facts), -1, 2)
        ways[" of the step on each rank"] = np.broadcast_to(per_rank.sum(1, keepdims=True), per_rank.shape).reshape(
            -1, 2
        )
        for way, numbers in ways.items():
            total = numbers.sum(1)
            if (total > 0).all():
                shares[name + way] = numbers[:, 0] / total
    all_batches = [batch for facts in base.facts for batch in facts["batches"]]
    rows = {tuple(batch["counts"].get("rows", (1, 1))) for batch in all_batches} or {(1.0, 1.0)}
    if len(rows) == 1:
        num_first, num_second = rows.pop()
        shares.setdefault("rows", np.full(base.losses.shape, num_first / (num_first + num_second)))
    if len(base.losses) == 1:
        share_of_gradient = share_of_first(base.gradients, first.gradients, second.gradients)
        if 0 < share_of_gradient < 1:
            shares[f"weights of its own ({share_of_gradient:.3g} for the first half)"] = np.array([share_of_gradient])
    return shares or {"rows": np.full(base.losses.shape, 0.5)}


def _of_halves(share: float, first: FirstStep, second: FirstStep) -> Gradients:
    if first.gradients.keys() != second.gradients.keys():
        return {}
    return mixed((share, first.gradients), (1 - share, second.gradients))


def _broken(
    law: Law, subject: str, losses: float, gradients: float, rounding: Rounding, pair: tuple[Gradients, Gradients]
) -> LawJudgement:
    if not (math.isfinite(losses) and math.isfinite(gradients)):
        return LawJudgement(law, None, f"{law}: {subject} has other backward passes or parameters with a gradient.")
    loss_says = f"{losses:.2g} of it, and rounding explains {rounding.losses:.1e}"
    says = (
        f"{law}: {subject} has another loss (by {loss_says})" if losses > rounding.losses else f"{law}: {subject} has"
    )
    if gradients > rounding.gradients:
        says += " and" if losses > rounding.losses else ""
        says += (
            f" another gradient (by {gradients:.2g} of it, and rounding explains {rounding.gradients:.1e}), most in "
        )
        says += ", ".join(most_apart(*pair))
    return LawJudgement(law, False, f"{says}.", _HINTS[law])
