"""Fuses modules that are separate in one run (``q_proj, k_proj, v_proj``) and one in the other (``qkv_proj``)."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import replace

from trueline.comparison.match.name_maps import Merge
from trueline.comparison.match.names import NameMap
from trueline.judge.recorded.step_values import StepValues, Value
from trueline.judge.recorded.stored_tensors import in_groups
from trueline.schema.errors import InputError

PART = "part of a merged value"
"""The flag of a value that was merged away where a module returned it, and that a call takes."""

_WEIGHTS = frozenset({"in1", "in2", "weight", "bias"})
"""Slots of a linear layer that are cut as its output is, along the first dim."""

_FUSED = ("fwd", "bwd", "param", "grad", "save")
"""Phases in which values are fused; the optimizer works on each parameter by itself."""

Key = tuple[object, ...]
Sides = tuple[StepValues, StepValues]


class Fusion:
    """The merges of ``names`` that two sides take: each is made where one side has the parts and the other the whole.
    ``sides`` are the two with these made.
    """

    def __init__(self, mine: StepValues, theirs: StepValues, names: NameMap) -> None:
        if names.checked[1] and mine.values and theirs.values:
            names.require_parts(_pieces(mine, names) | _pieces(theirs, names))
        self._names = names
        self._made: list[tuple[int, Merge]] = []
        self._before = tuple(list(range(len(step.values))) for step in (mine, theirs))
        sides = [mine, theirs]
        for merge in names.merges:
            pieces = [_pieces(step, names) for step in sides]
            for which, (own, other) in enumerate((pieces, pieces[::-1])):
                if merge.whole in other and merge.whole not in own and set(merge.parts) <= own:
                    sides[which], left = _merged(sides[which], merge, names, whole=False)
                    before = self._before[which]
                    before[:] = [-1 if index is None else before[index] for index in left]
                    self._made.append((which, merge))
        self.sides: Sides = (sides[0], sides[1])

    def of(self, mine: StepValues, theirs: StepValues) -> Sides:
        """The same merges made in two sides that have the same values as the former ones, with other numbers."""
        sides = [mine, theirs]
        for which, merge in self._made:
            sides[which], _ = _merged(sides[which], merge, self._names, whole=True)
        return sides[0], sides[1]

    def before(self, twins: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The indices that twins among ``sides`` had before, without those that were merged."""
        found = [(self._before[0][i], self._before[1][j]) for i, j in twins]
        return [pair for pair in found if min(pair) >= 0]


def _pieces(step: StepValues, names: NameMap) -> set[str]:
    return {piece for name in {value.site.name for value in step.values} for piece in names.plain(name).split(".")}


def _merged(step: StepValues, merge: Merge, names: NameMap, *, whole: bool) -> tuple[StepValues, list[int | None]]:
    """The step with one merge made, and of each of its values the index that it had, None where it was merged.
    ``whole`` False: values may be those of one rank, of which the rows of a head need not be whole.
    """
    groups: dict[Key, list[Value]] = {}
    found: dict[int, Key] = {}
    for value in step.values:
        part = merge.part_of(names.plain(value.site.name)) if value.site.phase in _FUSED else None
        if part is None:
            continue
        site = value.site
        key = (site.micro, site.phase, part[1], site.call, site.slot, value.kind, "recomputed" in value.flags)
        found[value.index] = key
        groups.setdefault(key, []).append(value)
    head_size = _head_size(step, merge, names)
    complete = {key: parts for key, parts in groups.items() if _complete(parts, merge, names)}
    values: list[Value] = []
    left: list[int | None] = []
    moved: dict[int, int] = {}
    wholes: dict[tuple[int, ...], int] = {}
    for value in step.values:
        key = found.get(value.index)
        if key not in complete:
            # The tensor of a value that was merged away has its next sighting as its first.
            is_part = value.site.phase == "fwd" and found.get(value.root) in complete
            flags = value.flags | {PART} if is_part else value.flags
            values.append(
                replace(value, index=len(values), root=moved.setdefault(value.root, len(values)), flags=flags)
            )
            left.append(value.index)
        elif value is max(complete[key], key=lambda part: part.index):
            parts = _in_order(complete[key], merge, names)
            made, roots = _joined(parts, merge, names, head_size, whole=whole), tuple(part.root for part in parts)
            seen = (
                moved.setdefault(roots[0], len(values))
                if len(set(roots)) == 1
                else wholes.setdefault(roots, len(values))
            )
            values.append(replace(made, index=len(values), root=seen))
            left.append(None)
    return replace(step, values=values), left


def _complete(parts: Sequence[Value], merge: Merge, names: NameMap) -> bool:
    """Whether each part occurs once."""
    places = [part[0] for value in parts if (part := merge.part_of(names.plain(value.site.name))) is not None]
    return sorted(places) == list(range(len(merge.parts)))


def _in_order(parts: Sequence[Value], merge: Merge, names: NameMap) -> list[Value]:
    def place(value: Value) -> int:
        part = merge.part_of(names.plain(value.site.name))
        return part[0] if part is not None else 0

    return sorted(parts, key=place)


def _head_size(step: StepValues, merge: Merge, names: NameMap) -> int | None:
    """Rows of one head, from the shape to which the output of the last part is reshaped; None if not recorded."""
    if merge.head_size is not None or not merge.grouped:
        return merge.head_size
    outs: dict[int, int] = {}
    for value in step.values:
        part = merge.part_of(names.plain(value.site.name)) if value.site.phase == "fwd" and value.returned else None
        if part is not None and part[0] == len(merge.parts) - 1:
            outs[value.root] = len(value.shape)
    sizes = {value.shape[-1] for value in step.values if len(value.shape) > outs.get(value.root, len(value.shape))}
    return sizes.pop() if len(sizes) == 1 else None


def _num_groups(merge: Merge, rows: int, head_size: int | None, *, whole: bool) -> int | None:
    """The number of groups that the rows of the last part form; 1 without groups, None where it is not known."""
    if not merge.grouped:
        return 1
    if head_size and not rows % head_size:
        return rows // head_size
    if merge.head_size is not None and whole:
        raise InputError(
            f"The {rows} rows of '{merge.parts[-1]}' cannot be cut into heads of {merge.head_size} rows, as the map "
            f"says for '{merge.whole}'. Give the size of a head of this model as head_size."
        )
    return None


def _joined(parts: Sequence[Value], merge: Merge, names: NameMap, head_size: int | None, *, whole: bool) -> Value:
    first, last = parts[0], max(parts, key=lambda part: part.index)
    part = merge.part_of(names.plain(first.site.name))
    own = merge.part_of(first.module)
    name = part[1] if part is not None else first.site.name
    made = replace(last, site=replace(first.site, name=name), module=own[1] if own is not None else first.module)
    if not _is_cut(first):
        if first.site.phase == "bwd":
            return replace(made, stats=None, load=None, note="a sum over modules that the other run has as one")
        return replace(made, stats=first.stats, load=first.load, note=first.note)
    dim = 0 if _is_weight(first) else len(first.shape) - 1
    stats = [value.stats for value in parts if value.stats is not None]
    loads = [value.load for value in parts if value.load is not None]
    size, last_part = sum(value.shape[dim] for value in parts), parts[-1]
    shape = (*first.shape[:dim], size, *first.shape[dim + 1 :])
    total = functools.reduce(operator.add, stats) if len(stats) == len(parts) else None
    groups = _num_groups(merge, last_part.shape[dim], head_size, whole=whole)
    stored = len(loads) == len(parts) and groups is not None
    return replace(
        made,
        shape=shape,
        stats=None if total is None else replace(total, shape=shape, fingerprint=None, projections=None),
        load=(lambda: in_groups([load() for load in loads], dim, groups or 1)) if stored else None,
        note=next((value.note for value in parts if value.note), ""),
    )


def _is_weight(value: Value) -> bool:
    return value.kind == "param" or (value.kind == "op" and value.site.slot in _WEIGHTS)


def _is_cut(value: Value) -> bool:
    """Whether each module has its own part of a value; else all share it."""
    return bool(value.shape) and (value.returned or _is_weight(value))
