"""Origins that matter: those whose values reach a loss, a gradient, a parameter, or the last output of a step.

Masks and padding hold values that are not finite in every healthy step, and none of these reach anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trueline.judge.recorded.step_values import StepValues, Value, key_of
from trueline.laws.overflow.nonfinite_origin import NonfiniteFlow, Origin

End = Literal["loss", "output", "gradient", "parameter"]
_ENDS: tuple[End, ...] = ("loss", "output", "gradient", "parameter")
"""The most telling first."""


@dataclass(frozen=True)
class ReachedEnd:
    """An origin, the most telling kind of end that it reached, and the values on the way there, both ends included."""

    origin: Origin
    end: End
    path: tuple[Value, ...]


_ENDS_IN_WORDS: dict[End, str] = {
    "loss": "the loss",
    "output": "what the step returns",
    "gradient": "a gradient",
    "parameter": "a parameter",
}


def fault_path(step: StepValues) -> tuple[tuple[Value, ...], str] | None:
    """The values on the way from the first call that makes NaN or infinities that matter, and in words from where to
    where; None without one.
    """
    flows = reached_ends(NonfiniteFlow(step))
    if not flows:
        return None
    return flows[0].path, f"From {flows[0].origin.value.site} to {_ENDS_IN_WORDS[flows[0].end]}"


def reached_ends(flow: NonfiniteFlow) -> list[ReachedEnd]:
    """The origins that reach something, in the order of the step."""
    first: dict[tuple[int, str], dict[End, tuple[Origin, Value]]] = {}
    ends = _Ends(flow)
    for value in flow.step.values:
        mark = flow.marks.get(value.root) if flow.bad(value) else None
        end = None if mark is None else ends.end_of(value, mark.origin)
        if mark is not None and end is not None:
            origin = mark.origin
            first.setdefault((origin.value.index, origin.kind), {}).setdefault(end, (origin, value))
    reached: list[ReachedEnd] = []
    for first_by_end in first.values():
        end = min(first_by_end, key=_ENDS.index)
        origin, value = first_by_end[end]
        reached.append(ReachedEnd(origin, end, _path(flow, value, origin)))
    return sorted(reached, key=lambda reached_end: reached_end.origin.at)


class _Ends:
    """The ends of a step, which a value must reach to matter."""

    def __init__(self, flow: NonfiniteFlow) -> None:
        self._gradients = {value for gradients in flow.gradients.values() for value in gradients}
        self._with_gradient = {key[0] for key in flow.gradients}
        self._losses = {(key, value.site.slot) for key, gradients in flow.gradients.items() for value in gradients}
        outputs = (value for value in flow.step.values if value.site.phase == "fwd" and value.returned)
        self._last = {value.site.micro: value for value in outputs}

    def end_of(self, value: Value, origin: Origin) -> End | None:
        """The kind of end that a value which is not finite is; None where it is none."""
        phase = value.site.phase
        if value in self._gradients or (phase == "grad" and value.kind == "param"):
            return "gradient"
        if phase == "param":
            return "parameter"
        if not value.returned:
            # A parameter is wrong by itself, whatever it does to the step.
            return "parameter" if origin.kind == "param" else None
        if phase == "opt":
            return "parameter" if "inplace" in value.flags and not origin.deliberate else None
        return self._of_forward(value, origin) if phase == "fwd" else None

    def _of_forward(self, value: Value, origin: Origin) -> End | None:
        micro, slot = value.site.micro, value.site.slot
        if value.numel == 1 and ((key_of(value), slot) in self._losses or slot == "out.loss"):
            return "loss"
        # In training the loss and gradients say what matters; outputs do where nobody called backward.
        if micro in self._with_gradient or origin.deliberate:
            return None
        outermost = value.kind == "module" and not value.module
        return "output" if outermost or self._last[micro] is value else None


def _path(flow: NonfiniteFlow, value: Value, origin: Origin) -> tuple[Value, ...]:
    """Values from the origin to ``value``, each made from the one before."""
    path = [value]
    visited: set[int] = set()
    root: int | None = value.root
    while root is not None and root not in visited:
        visited.add(root)
        mark = flow.marks[root]
        if mark.value is not path[-1]:
            path.append(mark.value)
        root = mark.parent
    if path[-1] is not origin.value:
        path.append(origin.value)
    return tuple(reversed(path))
