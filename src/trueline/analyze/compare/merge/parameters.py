"""Parameters known again where calls used them.

With several ranks the recorder measures parameters anew at the update, as a reduction in C++ leaves no trace in their
versions; and FSDP2 hands calls another tensor than the one that the optimizer changes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from trueline.analyze.compare.merge.shards import same_value
from trueline.analyze.recorded.step_values import StepValues, Value

_WITH = ("param", "grad", "opt")
"""Phases in which a parameter is seen at the update."""


def with_parameters(step: StepValues) -> StepValues:
    """The step, in which a parameter at the update has as its first sighting the call that used it: one of its own
    module, of its shape and with its numbers or, where there is none, the only one anywhere with its numbers.
    """
    used: dict[tuple[int, ...], list[Value]] = defaultdict(list)
    for value in step.values:
        if value.site.phase == "fwd" and value.kind == "op" and not value.returned and value.root == value.index:
            used[value.shape].append(value)
    roots: dict[int, int] = {}
    for value in step.values:
        if value.site.phase == "param" and value.root == value.index:
            first = _first_use(value, used.get(value.shape, []))
            if first is not None:
                roots[value.index] = first.index
    if not roots:
        return step
    values = [
        replace(value, root=roots[value.root]) if value.site.phase in _WITH and value.root in roots else value
        for value in step.values
    ]
    return replace(step, values=values)


def _first_use(param: Value, used: list[Value]) -> Value | None:
    stats = param.stats
    if stats is None:
        return None
    module = param.site.name.rpartition(".")[0]
    own = next((value for value in used if value.module == module and _same(param, value)), None)
    if own is not None or stats.min == stats.max:  # all zeros or ones tell nothing
        return own
    others = [value for value in used if _same(param, value)]
    return others[0] if len(others) == 1 else None


def _same(param: Value, value: Value) -> bool:
    return value.stats is not None and value.dtype == param.dtype and same_value([param.stats, value.stats])
