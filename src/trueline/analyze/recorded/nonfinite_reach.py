"""Which origins matter: those whose values reach a loss, a gradient, a parameter, or the last output of a step.

Masks and padding hold values that are not finite in every healthy step, and none of these reach anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trueline.analyze.recorded.nonfinite_origin import Flow, Origin

What = Literal["loss", "output", "gradient", "parameter"]
_TELLING: tuple[What, ...] = ("loss", "output", "gradient", "parameter")


@dataclass(frozen=True)
class Reached:
    """An origin, the first row of the most telling kind that shows it, and the rows on the way, both ends included."""

    origin: Origin
    what: What
    path: tuple[int, ...]


def reached(flow: Flow) -> list[Reached]:
    """The origins that reach something, in the order of the step."""
    first: dict[tuple[int, str], dict[What, tuple[Origin, int]]] = {}
    ends = _Ends(flow)
    for i in range(len(flow.rows)):
        mark = flow.marks.get(flow.rows.root[i]) if flow.rows.bad[i] else None
        what = None if mark is None else ends.what(i, mark.origin)
        if mark is not None and what is not None:
            origin = mark.origin
            first.setdefault((origin.row, origin.kind), {}).setdefault(what, (origin, i))
    found: list[Reached] = []
    for ways in first.values():
        what = min(ways, key=_TELLING.index)
        origin, row = ways[what]
        found.append(Reached(origin, what, _path(flow, row, origin)))
    return sorted(found, key=lambda each: each.origin.at)


class _Ends:
    """Where a step ends: what a value must reach to matter."""

    def __init__(self, flow: Flow) -> None:
        rows = flow.rows
        self._flow = flow
        self._gradients = {i for found in flow.gradients.values() for i in found}
        self._with_gradient = {key[0] for key in flow.gradients}
        self._losses = {(key, rows.slot[i]) for key, found in flow.gradients.items() for i in found}
        self._last = {rows.micro[i]: i for i in range(len(rows)) if rows.phase[i] == "fwd" and rows.is_out(i)}

    def what(self, i: int, origin: Origin) -> What | None:
        """What a row that is not finite is an end of, if it is one."""
        rows = self._flow.rows
        if i in self._gradients or (rows.phase[i] == "grad" and rows.kind[i] == "param"):
            return "gradient"
        if rows.phase[i] == "param":
            return "parameter"
        if not rows.is_out(i):
            # What a weight does to the step is another matter: it is wrong by itself.
            return "parameter" if origin.kind == "param" else None
        if rows.phase[i] == "opt":
            return "parameter" if "inplace" in rows.flags[i] and not origin.deliberate else None
        return self._of_forward(i, origin) if rows.phase[i] == "fwd" else None

    def _of_forward(self, i: int, origin: Origin) -> What | None:
        rows = self._flow.rows
        if rows.numel[i] == 1 and ((rows.key(i), rows.slot[i]) in self._losses or rows.slot[i] == "out.loss"):
            return "loss"
        if rows.micro[i] in self._with_gradient or origin.deliberate:
            return None
        outermost = rows.kind[i] == "module" and not rows.module[i]
        return "output" if outermost or self._last[rows.micro[i]] == i else None


def _path(flow: Flow, row: int, origin: Origin) -> tuple[int, ...]:
    """Rows from the origin to ``row``, each value made from the one before."""
    path = [row]
    seen: set[int] = set()
    root: int | None = flow.rows.root[row]
    while root is not None and root not in seen:
        seen.add(root)
        mark = flow.marks[root]
        if mark.row != path[-1]:
            path.append(mark.row)
        root = mark.parent
    if path[-1] != origin.row:
        path.append(origin.row)
    return tuple(reversed(path))
