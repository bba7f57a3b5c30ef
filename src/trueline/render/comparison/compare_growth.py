"""How differences develop over steps and ranks, in a few sentences: where they begin, and how they grow."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from trueline.comparison.result import StepSummary
from trueline.render.wording import number
from trueline.schema.text.words import counted, ranges, ranks_text


def steps_lines(steps: Sequence[StepSummary]) -> list[str]:
    """What was compared, where it first differs and first goes beyond rounding, how differences and losses grow."""
    if not steps:
        return []
    return [line for line in (_compared(steps), _grows(steps), _loss(steps)) if line]


def differs(summary: StepSummary) -> bool:
    """True if any value of the step and rank is not equal."""
    return any(summary.counts.get(name, 0) for name in ("within", "beyond", "propagated"))


def _compared(steps: Sequence[StepSummary]) -> str:
    numbers = sorted({summary.step for summary in steps if summary.finished})
    rest = sorted({summary.step for summary in steps if not summary.finished})
    ranks = sorted({summary.rank for summary in steps if summary.rank is not None})
    if not numbers:
        numbers, rest = rest, []
    subject = (
        f"Step {numbers[0]}" if len(numbers) == 1 else f"{counted(len(numbers), 'step')} ({_numbers_text(numbers)})"
    )
    subject += f", and what was recorded after the last update (as step {_numbers_text(rest)})," if rest else ""
    subject += f" on {ranks_text(ranks, dash='–')}" if ranks else " with ranks merged"
    differing = [step for step in steps if differs(step)]
    if not differing:
        return f"{subject}: no value differs."
    has_ranks = len(ranks) > 1
    text = f"{subject}: the first difference is at {_step_text(differing[0], has_ranks)}"
    beyond = next((summary for summary in steps if summary.counts.get("beyond", 0)), None)
    if beyond is None:
        return f"{text}, none is beyond rounding."
    second_place = "as well" if beyond is differing[0] else f"at {_step_text(beyond, has_ranks)}"
    return f"{text}, the first beyond rounding {second_place}."


def _grows(steps: Sequence[StepSummary]) -> str:
    """The largest difference at the first, the last and, where that is another, the worst step; of values that rounding
    does not touch, as integers, there is none.
    """
    largest = by_step(steps, lambda summary: summary.largest_times)
    largest = {step: times for step, times in largest.items() if 0 < times < math.inf}
    if len(largest) < 2:
        return ""
    return f"Largest difference, in times of what rounding explains: {_ends(largest, lambda times: number(times, 3))}."


def _loss(steps: Sequence[StepSummary]) -> str:
    losses = by_step(steps, lambda summary: None if summary.loss_rel is None else abs(summary.loss_rel))
    if not losses:
        return ""
    differing = {step: rel for step, rel in losses.items() if rel > 0}
    if not differing:
        return f"{_loss_named(steps, differs=False)} is the same at every step that has one."
    first = next(iter(differing))
    onset = "" if first == next(iter(losses)) else f" from step {first} on"
    if len(differing) == 1:
        return f"{_loss_named(steps)} differs by {percent(differing[first])} at step {first}."
    since_first = {step: losses[step] for step in losses if step >= first}
    return f"{_loss_named(steps)} differs{onset}: {_ends(since_first, percent)}."


def _loss_named(steps: Sequence[StepSummary], *, differs: bool = True) -> str:
    """The loss that ``loss_rel`` is about: the recorded one, else the last number that a forward pass returned."""
    ranks = {step.rank for step in steps if step.loss_rel is not None}
    if len(ranks) > 1:
        return f"The recorded loss of {'the rank where it differs most' if differs else 'every rank'}"
    rank = next(iter(ranks))
    return "The recorded loss" + (" of all ranks merged" if rank is None else f" of rank {rank}")


def by_step(steps: Sequence[StepSummary], number_of: Callable[[StepSummary], float | None]) -> dict[int, float]:
    """The largest number of each step over its ranks; a NaN, which compares with nothing, is taken for infinite."""
    largest: dict[int, float] = {}
    for step in steps:
        value = number_of(step)
        if value is not None:
            comparable = math.inf if math.isnan(value) else value
            largest[step.step] = max(largest.get(step.step, 0.0), comparable)
    return dict(sorted(largest.items()))


def _ends(values: dict[int, float], text: Callable[[float], str]) -> str:
    """``A at step 0, B at step 9`` and ``; most, C, at step 4`` where neither is the largest."""
    items = list(values.items())
    (first, at_first), (last, at_last) = items[0], items[-1]
    worst, at_worst = max(items, key=lambda item: item[1])
    line = f"{text(at_first)} at step {first}, {text(at_last)} at step {last}"
    return line if at_worst <= max(at_first, at_last) else f"{line}; most at step {worst}, {text(at_worst)}"


def percent(rel: float) -> str:
    """A relative difference as a percentage."""
    return f"{number(100 * rel, 2)} %"


def _step_text(summary: StepSummary, has_ranks: bool) -> str:
    """The step and, where ``has_ranks`` ranks were compared, the rank."""
    return f"step {summary.step}" + (f" on rank {summary.rank}" if has_ranks and summary.rank is not None else "")


def _numbers_text(numbers: Sequence[int]) -> str:
    texts = ranges(numbers, dash="–")
    return ", ".join(texts) if len(texts) <= 4 else f"{numbers[0]} to {numbers[-1]}"
