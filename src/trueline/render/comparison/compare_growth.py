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
    """Whether any value of the step and rank is not equal."""
    return any(summary.counts.get(name, 0) for name in ("within", "beyond", "propagated"))


def _compared(steps: Sequence[StepSummary]) -> str:
    numbers = sorted({each.step for each in steps if each.finished})
    rest = sorted({each.step for each in steps if not each.finished})
    ranks = sorted({each.rank for each in steps if each.rank is not None})
    if not numbers:
        numbers, rest = rest, []
    what = f"Step {numbers[0]}" if len(numbers) == 1 else f"{counted(len(numbers), 'step')} ({_some(numbers)})"
    what += f", and what was recorded after the last update (as step {_some(rest)})," if rest else ""
    what += f" on {ranks_text(ranks, dash='–')}" if ranks else " with ranks merged"
    differing = [each for each in steps if differs(each)]
    if not differing:
        return f"{what}: no value differs."
    several = len(ranks) > 1
    text = f"{what}: the first difference is at {_place(differing[0], several)}"
    beyond = next((each for each in steps if each.counts.get("beyond", 0)), None)
    if beyond is None:
        return f"{text}, none is beyond rounding."
    place = "as well" if beyond is differing[0] else f"at {_place(beyond, several)}"
    return f"{text}, the first beyond rounding {place}."


def _grows(steps: Sequence[StepSummary]) -> str:
    """The largest difference at the first, the last and, where that is another, the worst step; of values that rounding
    does not touch, as integers, there is none.
    """
    largest = by_step(steps, lambda each: each.largest_times)
    largest = {step: times for step, times in largest.items() if 0 < times < math.inf}
    if len(largest) < 2:
        return ""
    return f"Largest difference, in times of what rounding explains: {_ends(largest, lambda times: number(times, 3))}."


def _loss(steps: Sequence[StepSummary]) -> str:
    losses = by_step(steps, lambda each: None if each.loss_rel is None else abs(each.loss_rel))
    if not losses:
        return ""
    differing = {step: rel for step, rel in losses.items() if rel > 0}
    if not differing:
        return f"{_whose(steps, differs=False)} is the same at every step that has one."
    first = next(iter(differing))
    since = "" if first == next(iter(losses)) else f" from step {first} on"
    if len(differing) == 1:
        return f"{_whose(steps)} differs by {percent(differing[first])} at step {first}."
    return (
        f"{_whose(steps)} differs{since}: {_ends({step: losses[step] for step in losses if step >= first}, percent)}."
    )


def _whose(steps: Sequence[StepSummary], *, differs: bool = True) -> str:
    """The loss that ``loss_rel`` is about: the recorded one, else the last number that a forward pass returned."""
    ranks = {each.rank for each in steps if each.loss_rel is not None}
    if len(ranks) > 1:
        return f"The recorded loss of {'the rank where it differs most' if differs else 'every rank'}"
    rank = next(iter(ranks))
    return "The recorded loss" + (" of all ranks merged" if rank is None else f" of rank {rank}")


def by_step(steps: Sequence[StepSummary], of: Callable[[StepSummary], float | None]) -> dict[int, float]:
    """The largest number of each step over its ranks; a NaN, which compares with nothing, is taken for infinite."""
    found: dict[int, float] = {}
    for each in steps:
        value = of(each)
        if value is not None:
            known = math.inf if math.isnan(value) else value
            found[each.step] = max(found.get(each.step, 0.0), known)
    return dict(sorted(found.items()))


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


def _place(summary: StepSummary, several: bool) -> str:
    """The step and, where ``several`` ranks were compared, the rank."""
    return f"step {summary.step}" + (f" on rank {summary.rank}" if several and summary.rank is not None else "")


def _some(numbers: Sequence[int]) -> str:
    texts = ranges(numbers, dash="–")
    return ", ".join(texts) if len(texts) <= 4 else f"{numbers[0]} to {numbers[-1]}"
