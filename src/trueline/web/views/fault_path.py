"""How a fault gets from where it arises to the loss: the calls that its values went through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from trueline.judge.answers import fault_path
from trueline.judge.recorded.step_values import CallKey, key_of, read_step
from trueline.schema.site import Site
from trueline.schema.text.words import counted
from trueline.web.views.calls import Outline
from trueline.web.views.operands import FORWARD, Operands
from trueline.web.watched_run import WatchedRun

Fault = Literal["not-finite", "difference"]


@dataclass(frozen=True, slots=True)
class FaultPath:
    """The places of the calls on it, first to last, and what it is; none where there is none, which ``said`` says."""

    fault: Fault
    places: tuple[int, ...]
    said: str


def fault_path_of(watched: WatchedRun, outline: Outline, operands: Operands, fault: Fault) -> FaultPath:
    """The path of what is not finite, or of the first difference from the reference."""
    if fault == "not-finite":
        return _not_finite(outline, operands)
    first = None if watched.compared is None else watched.compared.comparison.first
    if first is None or first.site is None or first.step != outline.step or first.rank not in (None, outline.rank):
        where = "" if first is None or first.site is None else f" It is at {first.site}."
        return FaultPath(
            "difference", (), f"No first difference is known at step {outline.step} of rank {outline.rank}.{where}"
        )
    return _difference(outline, operands, first.site)


def _not_finite(outline: Outline, operands: Operands) -> FaultPath:
    """From the first call that makes NaN or infinities that matter to what they reach, as ``check`` follows them."""
    path = fault_path(read_step(outline.run, outline.step, outline.rank))
    if path is None:
        return FaultPath(
            "not-finite", (), "Nothing that is not finite reaches a loss, a gradient, a parameter or an output."
        )
    values, words = path
    place_of = outline.place_of
    values = sorted(values, key=lambda value: value.index)
    on_path = list(dict.fromkeys(place_of[key] for value in values if (key := key_of(value)) in place_of))
    indices = _joined(outline, operands, on_path)
    return FaultPath("not-finite", indices, f"{words}: {counted(len(indices), 'call')}.")


def _difference(outline: Outline, operands: Operands, first: str) -> FaultPath:
    """From the value that differs first to the last single number that the forward pass returns."""
    site = Site.parse(first)
    key: CallKey = (site.micro, site.phase, site.name, site.call)
    if key not in outline.place_of:
        return FaultPath("difference", (), f"The first difference is at {first}, which was not recorded on this rank.")
    begin = outline.place_of[key]
    loss = outline.last_number
    if loss is None:
        return FaultPath(
            "difference", (begin,), f"The first difference is at {first}; no call returned a single number."
        )
    indices = _shortest(operands, begin, loss)
    if not indices:
        text = f"The first difference is at {first}; no recorded values lead from it to {outline.names[loss]}."
        return FaultPath("difference", (begin,), text)
    return FaultPath("difference", indices, f"From {first} to {outline.names[loss]}: {counted(len(indices), 'call')}.")


def _joined(outline: Outline, operands: Operands, on_path: Sequence[int]) -> tuple[int, ...]:
    """The calls that were marked and, of the forward pass, those between them, such as views, which are not."""
    indices = set(on_path)
    forward = [index for index in on_path if outline.phases[index] == FORWARD]
    for begin, end in pairwise(forward):
        indices.update(_shortest(operands, begin, end))
    return tuple(sorted(indices))


def _shortest(operands: Operands, begin: int, end: int) -> tuple[int, ...]:
    """Calls from ``begin`` to ``end`` along the values that one gave to the other; none where there is none."""
    order = np.argsort(operands.source_E, kind="stable")
    sources = operands.source_E[order]
    before = {begin: begin}
    front = [begin]
    while front and end not in before:
        next_front: list[int] = []
        for call in front:
            low, high = np.searchsorted(sources, [call, call + 1])
            for target in operands.target_E[order[low:high]].tolist():
                if target not in before:
                    before[target] = call
                    next_front.append(target)
        front = next_front
    if end not in before:
        return ()
    path = [end]
    while path[-1] != begin:
        path.append(before[path[-1]])
    return tuple(reversed(path))
