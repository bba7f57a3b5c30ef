"""What else is known of a gap between engine and trainer: since which weights it is there, and in which sequences. It
tells causes apart that leave gaps of one size.

R sequences.
"""

from __future__ import annotations

import math
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trueline.judge.stats.memoize import memoized
from trueline.laws.rollouts import sync_rows, weights_not_synced
from trueline.laws.rollouts.evidence import ratio_of_sums, side_of
from trueline.laws.rollouts.gap_begins import FEWEST, FLOOR, REACHED, TIMES, begin_kinds
from trueline.laws.rollouts.gaps import ceiling as ceiling_in
from trueline.laws.rollouts.prompts import prompts_of
from trueline.laws.rollouts.rows import Rows
from trueline.store.reader import Run
from trueline.store.records.arrays import to_numpy

Bools = NDArray[np.bool_]

BEGINNING = 1
"""Largest version, or step, with which a record still begins where training does."""
LAST, GROWTH = 1 / 3, 1.3
"""Share of the versions, and times that the gap is there what it was at the second, to have grown on: what is left
behind once is farther from the weights with each update (sqrt(2) times after two, where these are random), and what is
one update behind stays one behind.
"""
FEWEST_PROMPTS = 4
"""Prompts with several sequences each, of a kind."""
MIXED = 0.1
"""Share of the prompts of which some sequences may have a gap and some not, where a gap is of the prompt."""
FADING = 1.3
"""Times that the first six tokens are as far apart as the second half where what differs is the prompt, or more.
Measured over random weights: 1.5 to 2.7 for another prompt, 0.4 to 1.3 for other layers.
"""
LONG = 12
"""Tokens of a response, or fewer, of which the second half is too near to the first six."""
SURELY = 2.0
"""Standard errors by which a ratio has to be on one side of it."""
EVERY, SOME = 0.1, 0.5
"""Share of the tokens that are as close as float32 alone computes, below which all are apart, and above which some
are.
"""
_EXPERTS = ("expert", "router", "moe")
"""Parts of the names of a mixture's parameters."""


def shape_kinds(run: Run, rows: Rows, ceiling: float) -> list[str]:
    """Kinds of evidence on the gap of ``rows``, which rounding explains up to ``ceiling``:

    - ``from-the-start``: the first weights that sampled have it; ``after-a-sync``: they have not, and the next have
      (``after-a-step``, where versions are unknown); ``later``: neither has it; ``same-weights``: it comes and no other
      weights did; ``grows-on``: it is larger in the end;
    - ``seen-prompts``: sequences have it whose prompt older weights had answered, others have not; ``any-prompt``:
      sequences have it whose prompt the engine had not seen; ``no-new-prompt``: too few prompts are known to be new,
      ``known-and-fades`` where it fades as well, as of what is kept of a prompt that all begin with;
    - ``by-prompt``: sequences of one prompt have it, all of them, and those of another have not; ``by-row``: some
      sequences of one prompt have it;
    - where it begins: those of ``begin_kinds``;
    - ``fades``: it is smaller in the second half of responses; ``as-far-to-the-end``: it is not; ``fading-unclear``;
    - ``every-token``: next to none of the tokens of a sequence that has it is as close as float32 computes;
      ``some-tokens``: most are; ``tokens-unclear``: neither, or the dtype hides it;
    - ``no-experts``: no parameter of the syncs is an expert's or a router's;
    - ``prompts-equal``, ``prompts-unknown``: whether the trainer recorded the same ones; ``weights-equal``: all weights
      were equal after syncs; ``adapter-merged``: some with an adapter, at the scale that fits; ``adapter-unseen``: the
      trainer has an adapter that the engine shows nowhere;
    - ``engine-above``, ``engine-below``: nearly all log-probabilities of the engine are higher, or lower.
    """
    kinds = [*_timing(rows, ceiling), *side_of(rows)]
    if not {"after-a-sync", "after-a-step", "later"}.isdisjoint(kinds):
        kinds += _prompts(run, rows, ceiling)
    kinds.append("prompts-equal" if are_ids_equal(run, "prompt") else "prompts-unknown")
    has_gap = rows.subset(rows.gap > ceiling)
    kinds += [_fading(has_gap), _tokens(has_gap, ceiling), *_by_prompt(run, rows, ceiling)]
    kinds += ["known-and-fades"] if {"no-new-prompt", "fades"} <= set(kinds) else []
    kinds += begin_kinds(run, rows, ceiling)
    return [*kinds, *_weights(run)]


def gap_of(rows: Rows) -> float:
    """Mean |d| over mean 1 - p of all tokens; 0 for none."""
    gap = ratio_of_sums(rows.sums["beyond"], rows.sums["room"])
    return gap if np.isfinite(gap) else 0.0


def _timing(rows: Rows, ceiling: float) -> list[str]:
    order, by = _order(rows)
    begins = float(order.min()) if len(order) else np.inf
    before, after = gap_of(rows.subset(order == begins)), rows.subset(order > begins)
    if before > ceiling:
        return ["from-the-start"] if begins <= BEGINNING else []
    far = TIMES * max(before, FLOOR)
    if not gap_of(after) > far:
        return []
    second = gap_of(rows.subset(order == float(order[order > begins].min())))
    last = gap_of(rows.subset(order >= np.quantile(np.unique(order), 1 - LAST)))
    grows = ["grows-on"] if second > far and last > GROWTH * second else []
    if by == "version":
        return ["after-a-sync" if second > far else "later", *grows]
    if by == "step of one version":
        return ["same-weights", *grows]
    return ["after-a-step" if second > far else "later", *grows]


def _order(rows: Rows) -> tuple[NDArray[np.float64], str]:
    """[R] by which sequences come one after the other: the version of the weights that sampled, else the step."""
    if not np.isfinite(rows.version).all():
        return rows.step.astype(np.float64), "step"
    if len(rows) and rows.version.min() == rows.version.max():
        return rows.step.astype(np.float64), "step of one version"
    return rows.version, "version"


def _prompts(run: Run, rows: Rows, ceiling: float) -> list[str]:
    seen_R, new_R = _seen_before(run, rows)
    order_R, _ = _order(rows)
    far = TIMES * max(gap_of(rows.subset(order_R == order_R.min())), FLOOR)
    orders = np.unique(order_R[seen_R]).tolist()
    begins = next((order for order in orders if gap_of(rows.subset(seen_R & (order_R == order))) > far), -np.inf)
    # new prompts of before that are right, whatever it is that broke
    repeated, fresh = (rows.subset(where_R & (order_R >= begins)) for where_R in (seen_R, new_R))
    if len(fresh) < FEWEST:
        return ["no-new-prompt"]
    gap_seen, gap_new = gap_of(repeated), gap_of(fresh)
    if gap_new > ceiling or (len(repeated) >= FEWEST and gap_new > gap_seen / 3 > FLOOR):
        return ["any-prompt"]
    if len(repeated) >= FEWEST and gap_seen > TIMES * max(gap_new, FLOOR):
        return ["seen-prompts"]
    return []


def _fading(rows: Rows) -> str:
    """Whether the gap of ``rows`` is larger at the first six tokens than in the second half."""
    rows = rows.subset((rows.profile_room[:, 3] > 0) & (rows.sums["tokens"] > LONG))
    if len(rows) < FEWEST:
        return "fading-unclear"
    logs, errors = zip(*(_log_ratio_of_sums(rows, where) for where in (slice(0, 2), slice(3, 4))), strict=True)
    ratio, error = logs[0] - logs[1], SURELY * math.hypot(*errors)
    if ratio - error > math.log(FADING):
        return "fades"
    return "as-far-to-the-end" if ratio + error < math.log(FADING) else "fading-unclear"


def _log_ratio_of_sums(rows: Rows, where: slice) -> tuple[float, float]:
    """The logarithm of the gap at a part of the positions, and its standard error over sequences, to first order."""
    gap_R, room_R = rows.profile[:, where].sum(axis=1), rows.profile_room[:, where].sum(axis=1)
    gap, room = float(gap_R.sum()), float(room_R.sum())
    if not gap > 0 or not room > 0:
        return -math.inf, 0.0
    return math.log(gap / room), math.sqrt(float(np.square(gap_R / gap - room_R / room).sum()))


def _tokens(rows: Rows, ceiling: float) -> str:
    """Whether all tokens of ``rows`` are apart, or some."""
    if ceiling > ceiling_in("float32") or not len(rows):
        return "tokens-unclear"
    fine = ratio_of_sums(rows.sums["fine"], rows.sums["roomy"])
    return "every-token" if fine < EVERY else "some-tokens" if fine > SOME else "tokens-unclear"


def _by_prompt(run: Run, rows: Rows, ceiling: float) -> list[str]:
    """``by-prompt`` where the sequences of a prompt have a gap, or have none, together; ``by-row`` where some of one
    prompt have, and others have not.
    """
    has_gap_R, is_equal_R = rows.gap > ceiling, rows.gap < ceiling / TIMES
    if not has_gap_R.any() or not is_equal_R.any():
        return []
    # one that ends before a gap would have begun has none for that
    reached = float(np.quantile(rows.begins[has_gap_R], REACHED, method="lower"))
    is_equal_R &= rows.sums["tokens"] > reached + 1
    # padding depends on the other prompts of a step, too
    mixed_steps = np.intersect1d(rows.step[has_gap_R], rows.step[is_equal_R])
    judged_R = (has_gap_R | is_equal_R) & np.isin(rows.step, mixed_steps)
    sides: dict[tuple[int, int], list[bool]] = {}
    for index, prompt in enumerate(prompts_of(run, rows)):
        if prompt is not None and judged_R[index]:
            sides.setdefault((prompt.whole, int(rows.step[index])), []).append(bool(has_gap_R[index]))
    prompts = [set(of_prompt) for of_prompt in sides.values() if len(of_prompt) > 1]
    num_apart, num_equal = prompts.count({True}), prompts.count({False})
    num_mixed = len(prompts) - num_apart - num_equal
    is_of_prompts = min(num_apart, num_equal) >= FEWEST_PROMPTS and num_mixed <= MIXED * len(prompts)
    if is_of_prompts:
        return ["by-prompt"]
    return ["by-row"] if num_mixed >= FEWEST_PROMPTS and num_mixed > MIXED * len(prompts) else []


def _seen_before(run: Run, rows: Rows) -> tuple[Bools, Bools]:
    """[R] sequences whose prompt older weights (an earlier step, where versions are unknown) had answered, and such of
    which the engine had not even seen the beginning. Those of the first weights are neither.
    """
    prompts_R = prompts_of(run, rows)
    order_R, _ = _order(rows)
    seen_R, new_R = (np.zeros(len(rows), np.bool_) for _ in range(2))
    wholes, beginnings = set[int](), set[int]()
    begins = float(order_R.min()) if len(order_R) else 0.0
    for order in np.unique(order_R).tolist():
        answered = [(index, prompts_R[index]) for index in np.flatnonzero(order_R == order).tolist()]
        for index, prompt in answered:
            if prompt is not None and order > begins:
                seen_R[index] = prompt.whole in wholes
                new_R[index] = prompt.beginning not in beginnings
        wholes |= {prompt.whole for _, prompt in answered if prompt is not None}
        beginnings |= {prompt.beginning for _, prompt in answered if prompt is not None}
    return seen_R, new_R


@memoized
def are_ids_equal(run: Run, side: str) -> bool:
    """True if the trainer recorded all its ids of a side, ``prompt`` or ``response``, and they are the engine's."""
    total = 0
    for table in cast(Any, run.kept("rollouts")).pieces([f"{side}_ids", f"train_{side}_ids"]):
        compared = to_numpy(table[0].is_valid()) & to_numpy(table[1].is_valid())
        if not compared.all():
            return False
        total += len(compared)
        if table[0].to_pylist() != table[1].to_pylist():
            return False
    return total > 0


@memoized
def _weights(run: Run) -> list[str]:
    """What syncs say, where some were recorded."""
    rows = sync_rows.rows_of(run)
    unseen = [row for row in rows if not sync_rows.is_compared(row)]
    dense = rows and not any(part in row["name"].lower() for row in rows for part in _EXPERTS)
    return [*(["no-experts"] if dense else []), *_compared(run, rows, unseen)]


def _compared(run: Run, rows: list[sync_rows.Row], unseen: list[sync_rows.Row]) -> list[str]:
    if any(weights_not_synced.LORA in row["name"] for row in unseen) or any(row["adapter_scale"] == 0 for row in rows):
        return ["adapter-unseen"]
    merged = ["adapter-merged"] if any(row["adapter_scale"] for row in rows) else []
    return ["weights-equal", *merged] if rows and not unseen and not weights_not_synced.check(run) else []
