"""Modules that one run keeps apart (``q_proj, k_proj, v_proj``) and the other has as one (``qkv_proj``), made one."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import replace

from trueline.analyze.compare.match.name_maps import Merge
from trueline.analyze.compare.match.names import NameMap
from trueline.analyze.recorded.step_values import StepValues, Value
from trueline.analyze.recorded.tensors import in_groups
from trueline.schema.errors import InputError

_WEIGHTS = frozenset({"in1", "in2", "weight", "bias"})
"""Slots of a linear layer that are cut as its output is, along the first dim."""

_FUSED = ("fwd", "bwd", "param", "grad", "save")
"""Phases that are merged; the optimizer works on one parameter after the other, whatever they are called."""

Key = tuple[object, ...]


def fused(mine: StepValues, theirs: StepValues, names: NameMap) -> tuple[StepValues, StepValues]:
    """Both sides with the merges of ``names``, each made where one side has the parts and the other the whole."""
    if names.checked[1] and mine.values and theirs.values:
        names.require_parts(_pieces(mine, names) | _pieces(theirs, names))
    for merge in names.merges:
        one, other = _pieces(mine, names), _pieces(theirs, names)
        if merge.whole in other and merge.whole not in one and set(merge.parts) <= one:
            mine = _merged(mine, merge, names)
        elif merge.whole in one and merge.whole not in other and set(merge.parts) <= other:
            theirs = _merged(theirs, merge, names)
    return mine, theirs


def _pieces(step: StepValues, names: NameMap) -> set[str]:
    return {piece for name in {value.site.name for value in step.values} for piece in names.plain(name).split(".")}


def _merged(step: StepValues, merge: Merge, names: NameMap) -> StepValues:
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
    whole = {key: parts for key, parts in groups.items() if _complete(parts, merge, names)}
    values: list[Value] = []
    moved: dict[int, int] = {}
    for value in step.values:
        key = found.get(value.index)
        if key in whole and value is not max(whole[key], key=lambda part: part.index):
            continue
        made = value if key not in whole else _joined(_in_order(whole[key], merge, names), merge, names, head_size)
        # The tensor of a value that was merged away has its next sighting as its first.
        root = moved.setdefault(value.root, len(values)) if key not in whole else len(values)
        values.append(replace(made, index=len(values), root=root))
    return replace(step, values=values)


def _complete(parts: Sequence[Value], merge: Merge, names: NameMap) -> bool:
    """Whether each part is there once."""
    places = [part[0] for value in parts if (part := merge.part_of(names.plain(value.site.name))) is not None]
    return sorted(places) == list(range(len(merge.parts)))


def _in_order(parts: Sequence[Value], merge: Merge, names: NameMap) -> list[Value]:
    def place(value: Value) -> int:
        part = merge.part_of(names.plain(value.site.name))
        return part[0] if part is not None else 0

    return sorted(parts, key=place)


def _head_size(step: StepValues, merge: Merge, names: NameMap) -> int | None:
    """Rows of one head, as the shape says that the output of the last part is brought into; None where none does."""
    if merge.head_size is not None or not merge.grouped:
        return merge.head_size
    outs: dict[int, int] = {}
    for value in step.values:
        part = merge.part_of(names.plain(value.site.name)) if value.site.phase == "fwd" and value.returned else None
        if part is not None and part[0] == len(merge.parts) - 1:
            outs[value.root] = len(value.shape)
    sizes = {value.shape[-1] for value in step.values if len(value.shape) > outs.get(value.root, len(value.shape))}
    return sizes.pop() if len(sizes) == 1 else None


def _num_groups(merge: Merge, rows: int, head_size: int | None) -> int | None:
    """How many groups the rows of the last part are in; 1 where they are in none, None where it is not known."""
    if not merge.grouped:
        return 1
    if head_size and not rows % head_size:
        return rows // head_size
    if merge.head_size is not None:
        raise InputError(
            f"The {rows} rows of '{merge.parts[-1]}' cannot be cut into heads of {merge.head_size} rows, as the map "
            f"says for '{merge.whole}'. Give the size of a head of this model as head_size."
        )
    return None


def _joined(parts: Sequence[Value], merge: Merge, names: NameMap, head_size: int | None) -> Value:
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
    groups = _num_groups(merge, last_part.shape[dim], head_size)
    stored = len(loads) == len(parts) and groups is not None
    return replace(
        made,
        shape=shape,
        stats=None if total is None else replace(total, shape=shape, fingerprint=None),
        load=(lambda: in_groups([load() for load in loads], dim, groups or 1)) if stored else None,
        note=next((value.note for value in parts if value.note), ""),
    )


def _is_weight(value: Value) -> bool:
    return value.kind == "param" or (value.kind == "op" and value.site.slot in _WEIGHTS)


def _is_cut(value: Value) -> bool:
    """Whether each module has its own part of a value; else all share it."""
    return bool(value.shape) and (value.returned or _is_weight(value))
