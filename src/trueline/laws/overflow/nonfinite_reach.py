"""Which origins matter: those whose values reach a loss, a gradient, a parameter, or the last output of a step.

Masks and padding hold values that are not finite in every healthy step, and none of these reach anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trueline.judge.recorded.step_values import Value, key_of
from trueline.laws.overflow.nonfinite_origin import NonfiniteFlow, Origin

What = Literal["loss", "output", "gradient", "parameter"]
_TELLING: tuple[What, ...] = ("loss", "output", "gradient", "parameter")
"""The most telling first."""


@dataclass(frozen=True)
class Reached:
    """An origin, the most telling kind of end that it reached, and the values on the way there, both ends included."""

    origin: Origin
    what: What
    path: tuple[Value, ...]


def reached(flow: NonfiniteFlow) -> list[Reached]:
    """The origins that reach something, in the order of the step."""
    first: dict[tuple[int, str], dict[What, tuple[Origin, Value]]] = {}
    ends = _Ends(flow)
    for value in flow.step.values:
        mark = flow.marks.get(value.root) if flow.bad(value) else None
        what = None if mark is None else ends.what(value, mark.origin)
        if mark is not None and what is not None:
            origin = mark.origin
            first.setdefault((origin.value.index, origin.kind), {}).setdefault(what, (origin, value))
    found: list[Reached] = []
    for ways in first.values():
        what = min(ways, key=_TELLING.index)
        origin, value = ways[what]
        found.append(Reached(origin, what, _path(flow, value, origin)))
    return sorted(found, key=lambda each: each.origin.at)


class _Ends:
    """Where a step ends: what a value must reach to matter."""

    def __init__(self, flow: NonfiniteFlow) -> None:
        self._gradients = {value for found in flow.gradients.values() for value in found}
        self._with_gradient = {key[0] for key in flow.gradients}
        self._losses = {(key, value.site.slot) for key, found in flow.gradients.items() for value in found}
        outputs = (value for value in flow.step.values if value.site.phase == "fwd" and value.returned)
        self._last = {value.site.micro: value for value in outputs}

    def what(self, value: Value, origin: Origin) -> What | None:
        """What a value that is not finite is an end of, if it is one."""
        phase = value.site.phase
        if value in self._gradients or (phase == "grad" and value.kind == "param"):
            return "gradient"
        if phase == "param":
            return "parameter"
        if not value.returned:
            # What a weight does to the step is another matter: it is wrong by itself.
            return "parameter" if origin.kind == "param" else None
        if phase == "opt":
            return "parameter" if "inplace" in value.flags and not origin.deliberate else None
        return self._of_forward(value, origin) if phase == "fwd" else None

    def _of_forward(self, value: Value, origin: Origin) -> What | None:
        micro, slot = value.site.micro, value.site.slot
        if value.numel == 1 and ((key_of(value), slot) in self._losses or slot == "out.loss"):
            return "loss"
        if micro in self._with_gradient or origin.deliberate:
            return None
        outermost = value.kind == "module" and not value.module
        return "output" if outermost or self._last[micro] is value else None


def _path(flow: NonfiniteFlow, value: Value, origin: Origin) -> tuple[Value, ...]:
    """Values from the origin to ``value``, each made from the one before."""
    path = [value]
    seen: set[int] = set()
    root: int | None = value.root
    while root is not None and root not in seen:
        seen.add(root)
        mark = flow.marks[root]
        if mark.value is not path[-1]:
            path.append(mark.value)
        root = mark.parent
    if path[-1] is not origin.value:
        path.append(origin.value)
    return tuple(reversed(path))
