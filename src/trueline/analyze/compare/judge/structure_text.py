"""A difference of two call graphs in words: which calls only one run makes, or from where a call takes its inputs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from trueline.analyze.compare.judge.step import Step
from trueline.analyze.compare.judge.structure import innermost
from trueline.analyze.compare.match.graph_diff import GraphDifference, Seam
from trueline.analyze.recorded.step_values import Call, Value
from trueline.schema.text.words import listed

_MOST = 3
"""Calls that are named of each run."""


def difference_in_words(step: Step, difference: GraphDifference) -> str:
    """``only in RUN: `amax` (model.py:41 forward); only in REF: `mean` (model.py:43 forward)``."""
    mine, theirs = innermost(difference.mine), innermost(difference.theirs)
    if difference.seam is not None and not mine and not theirs:
        return _rewired(step, difference.seam)
    parts = [
        f"only in {name}: {_named_calls(step, calls, of_reference=name == 'REF')}"
        for name, calls in (("RUN", mine), ("REF", theirs))
        if calls
    ]
    return "; ".join([*_other_class(step, mine, theirs), *parts])


def _other_class(step: Step, mine: Sequence[Call], theirs: Sequence[Call]) -> Iterator[str]:
    """The innermost module that all calls are in, where it is of another class in each run."""
    inside = _common([call.module for call in (*mine, *theirs)])
    for one, other in step.alignment.calls if inside else ():
        if (
            one is not None
            and other is not None
            and one.phase == "fwd"
            and one.first.kind == "module" == other.first.kind
        ):
            classes = _class_of(one), _class_of(other)
            if one.name == inside and classes[0] != classes[1]:
                yield f"module `{inside}` is {classes[0]} in RUN and {classes[1]} in REF"
                return


def _common(names: Sequence[str]) -> str:
    """The module that all others are in."""
    shortest = min(names, key=len, default="")
    return shortest if all(name == shortest or name.startswith(f"{shortest}.") for name in names) else ""


def _class_of(call: Call) -> str:
    return call.first.api.rpartition(".")[2]


def _named_calls(step: Step, calls: Sequence[Call], *, of_reference: bool) -> str:
    """The first calls of each function and line."""
    named = list(dict.fromkeys(_named_call(step, call, of_reference=of_reference) for call in calls))
    return listed(named if len(named) <= _MOST else [*named[:_MOST], f"{len(named) - _MOST} more"])


def _named_call(step: Step, call: Call, *, of_reference: bool) -> str:
    kind = "module " if call.first.kind == "module" else ""
    name = call.name if kind else call.op
    inside = f" in `{call.module}`" if call.module and not kind else ""
    line = line_of(step, call.first, of_reference=of_reference)
    return f"{kind}`{name}`{inside}{f' ({line})' if line else ''}"


def line_of(step: Step, value: Value, *, of_reference: bool = False) -> str:
    """``model.py:41 forward``: the line that called, without the folder of the file; '' where no stack was taken."""
    return step.frame(value, of_reference=of_reference).rpartition("/")[2]


def _rewired(step: Step, seam: Seam) -> str:
    """``input 0 of `cat` comes from `up`, in REF from `skip```."""
    site = seam.mine.site
    function = site.name.rpartition(".")[2] if seam.mine.kind == "op" else site.name
    what = "the result" if seam.mine.returned else f"input {_place(site.slot)}"
    inside = f" in `{seam.mine.module}`" if seam.mine.module else ""
    makers = _makers(step, seam)
    lines = [line_of(step, value, of_reference=bool(which)) for which, value in enumerate((seam.mine, seam.theirs))]
    where = f" ({lines[0]}{f'; in REF {lines[1]}' if lines[1] != lines[0] else ''})" if lines[0] else ""
    return f"{what} of `{function}`{inside} comes from {makers[0]}, in REF from {makers[1]}{where}"


def _place(slot: str) -> str:
    """What the place of an input is called: ``0`` of ``in0``, ``weight`` of ``weight``."""
    found = re.fullmatch(r"in(\d.*)", slot)
    return found.group(1) if found else f"`{slot}`"


def _makers(step: Step, seam: Seam) -> tuple[str, str]:
    """What returned the value in each run; with the number of the call and the slot where the names are the same."""
    pairs = (seam.mine_of, seam.mine, step.alignment.mine), (seam.theirs_of, seam.theirs, step.alignment.theirs)
    names = [_maker(call) for call, _, _ in pairs]
    if names[0] == names[1]:
        names = [_maker(call, values.values[value.root].site.slot) for call, value, values in pairs]
    return names[0], names[1]


def _maker(call: Call | None, slot: str = "") -> str:
    if call is None:
        return "a value that no recorded call computed"
    name = call.name if call.first.kind == "module" else f"{call.module}.{call.op}" if call.module else call.op
    return f"`{name}#{call.number}:{slot}`" if slot else f"`{name}`"
