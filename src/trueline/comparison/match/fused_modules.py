"""Fusion of modules that are separate in one run (``q_proj, k_proj, v_proj``) and one in the other (``qkv_proj``)."""

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
"""Flag of a value that a call takes, and that was merged away where a module returned it."""

_WEIGHTS = frozenset({"in1", "in2", "weight", "bias"})
"""Slots of a linear layer that are cut like its output, along the first dim."""

_FUSED = ("fwd", "bwd", "param", "grad", "save")
"""Phases in which values are fused; the optimizer works on each parameter by itself."""

Key = tuple[object, ...]
Sides = tuple[StepValues, StepValues]


class Fusion:
    """Merges of ``names`` that apply to two sides: one has the parts, the other the whole.

    ``sides`` are the two steps after these merges.
    """

    def __init__(self, run: StepValues, ref: StepValues, names: NameMap) -> None:
        if names.checked[1] and run.values and ref.values:
            names.require_parts(_name_pieces(run, names) | _name_pieces(ref, names))
        self._names = names
        self._applied: list[tuple[int, Merge]] = []
        self._old_indices = tuple(list(range(len(step.values))) for step in (run, ref))
        sides = [run, ref]
        for merge in names.merges:
            pieces = [_name_pieces(step, names) for step in sides]
            for side, (side_pieces, other_pieces) in enumerate((pieces, pieces[::-1])):
                if merge.whole in other_pieces and merge.whole not in side_pieces and set(merge.parts) <= side_pieces:
                    sides[side], step_indices = _merge_step(sides[side], merge, names, whole=False)
                    indices = self._old_indices[side]
                    indices[:] = [-1 if index is None else indices[index] for index in step_indices]
                    self._applied.append((side, merge))
        self.sides: Sides = (sides[0], sides[1])

    def apply_to(self, run: StepValues, ref: StepValues) -> Sides:
        """Apply the merges to two steps with the values of the former ones, but other numbers in them."""
        sides = [run, ref]
        for side, merge in self._applied:
            sides[side], _ = _merge_step(sides[side], merge, self._names, whole=True)
        return sides[0], sides[1]

    def original_indices(self, twins: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Indices before the merges of twins among ``sides``, without merged values."""
        indices = [(self._old_indices[0][i], self._old_indices[1][j]) for i, j in twins]
        return [pair for pair in indices if min(pair) >= 0]


def _name_pieces(step: StepValues, names: NameMap) -> set[str]:
    return {piece for name in {value.site.name for value in step.values} for piece in names.plain(name).split(".")}


def _merge_step(step: StepValues, merge: Merge, names: NameMap, *, whole: bool) -> tuple[StepValues, list[int | None]]:
    """Step with one merge made, and the former index of each of its values, None for merged ones.

    With ``whole`` False, values may be those of one rank, whose rows need not make up whole heads.
    """
    groups: dict[Key, list[Value]] = {}
    key_of_index: dict[int, Key] = {}
    for value in step.values:
        part = merge.part_of(names.plain(value.site.name)) if value.site.phase in _FUSED else None
        if part is None:
            continue
        site = value.site
        key = (site.micro, site.phase, part[1], site.call, site.slot, value.kind, "recomputed" in value.flags)
        key_of_index[value.index] = key
        groups.setdefault(key, []).append(value)
    head_size = _head_size(step, merge, names)
    complete = {key: parts for key, parts in groups.items() if _is_complete(parts, merge, names)}
    values: list[Value] = []
    former_indices: list[int | None] = []
    new_roots: dict[int, int] = {}
    merged_roots: dict[tuple[int, ...], int] = {}
    for value in step.values:
        key = key_of_index.get(value.index)
        if key not in complete:
            # The tensor of a value that was merged away has its next sighting as its first.
            is_part = value.site.phase == "fwd" and key_of_index.get(value.root) in complete
            flags = value.flags | {PART} if is_part else value.flags
            values.append(
                replace(value, index=len(values), root=new_roots.setdefault(value.root, len(values)), flags=flags)
            )
            former_indices.append(value.index)
        elif value is max(complete[key], key=lambda part: part.index):
            parts = _sort_parts(complete[key], merge, names)
            merged_value = _join_parts(parts, merge, names, head_size, whole=whole)
            roots = tuple(part.root for part in parts)
            root = (
                new_roots.setdefault(roots[0], len(values))
                if len(set(roots)) == 1
                else merged_roots.setdefault(roots, len(values))
            )
            values.append(replace(merged_value, index=len(values), root=root))
            former_indices.append(None)
    return replace(step, values=values), former_indices


def _is_complete(parts: Sequence[Value], merge: Merge, names: NameMap) -> bool:
    """Tell whether each part occurs once."""
    part_indices = [part[0] for value in parts if (part := merge.part_of(names.plain(value.site.name))) is not None]
    return sorted(part_indices) == list(range(len(merge.parts)))


def _sort_parts(parts: Sequence[Value], merge: Merge, names: NameMap) -> list[Value]:
    def part_index(value: Value) -> int:
        part = merge.part_of(names.plain(value.site.name))
        return part[0] if part is not None else 0

    return sorted(parts, key=part_index)


def _head_size(step: StepValues, merge: Merge, names: NameMap) -> int | None:
    """Rows of one head, by the shape that the output of the last part is reshaped to; None if not recorded."""
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
    """Number of groups that the rows of the last part form: 1 without groups, None where unknown."""
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


def _join_parts(parts: Sequence[Value], merge: Merge, names: NameMap, head_size: int | None, *, whole: bool) -> Value:
    first, last = parts[0], max(parts, key=lambda part: part.index)
    part = merge.part_of(names.plain(first.site.name))
    module_part = merge.part_of(first.module)
    name = part[1] if part is not None else first.site.name
    merged = replace(
        last, site=replace(first.site, name=name), module=module_part[1] if module_part is not None else first.module
    )
    if not _is_cut(first):
        if first.site.phase == "bwd":
            return replace(merged, stats=None, load=None, note="a sum over modules that the other run has as one")
        return replace(merged, stats=first.stats, load=first.load, note=first.note)
    dim = 0 if _is_weight(first) else len(first.shape) - 1
    stats = [value.stats for value in parts if value.stats is not None]
    loads = [value.load for value in parts if value.load is not None]
    size, last_part = sum(value.shape[dim] for value in parts), parts[-1]
    shape = (*first.shape[:dim], size, *first.shape[dim + 1 :])
    total = functools.reduce(operator.add, stats) if len(stats) == len(parts) else None
    groups = _num_groups(merge, last_part.shape[dim], head_size, whole=whole)
    stored = len(loads) == len(parts) and groups is not None
    return replace(
        merged,
        shape=shape,
        stats=None if total is None else replace(total, shape=shape, fingerprint=None, projections=None),
        load=(lambda: in_groups([load() for load in loads], dim, groups or 1)) if stored else None,
        note=next((value.note for value in parts if value.note), ""),
    )


def _is_weight(value: Value) -> bool:
    return value.kind == "param" or (value.kind == "op" and value.site.slot in _WEIGHTS)


def _is_cut(value: Value) -> bool:
    """Tell whether each module has its own part of a value; else all share it."""
    return bool(value.shape) and (value.returned or _is_weight(value))
