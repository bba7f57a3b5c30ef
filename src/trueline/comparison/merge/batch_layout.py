"""Interleaving of the shares of a batch in values whose shape no longer shows it.

Where ranks share the sequence, [B, L] is cut along its second dim: each share has a run of every sample. Once the two
dims are flattened to tokens, [B·L], the runs of all shares alternate along one dim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from trueline.comparison.match.gather import Gathered
from trueline.comparison.merge.shards import MergeLayout, share_shape
from trueline.judge.recorded.step_values import Value

_EXECUTED = ("fwd", "save")

Turns = tuple[int, int]
"""Number of runs that each share has of a value, and number of rows in all runs of the first share."""


def interleaved(entries: Sequence[Gathered], layouts: Mapping[int, MergeLayout]) -> dict[int, MergeLayout]:
    """Layouts by index of their entries, with the number of runs where values were made from runs."""
    turns_by_root: dict[int, Turns] = {}
    roots_by_call: dict[tuple[object, ...], list[int]] = {}
    turns_by_site: dict[tuple[object, ...], Turns] = {}
    interleaved_layouts = dict(layouts)
    for index, entry in enumerate(entries):
        value, layout = entry.first, layouts.get(index)
        executed = value.site.phase in _EXECUTED
        if layout is not None and layout.batch.is_of_batch:
            shape = share_shape(entry, layout)
            turns = _share_turns(
                shape, layout.batch.dim, _source_turns(value, turns_by_root, roots_by_call, turns_by_site)
            )
            interleaved_layouts[index] = replace(layout, batch=replace(layout.batch, runs=turns[0]))
            if executed:
                turns_by_root.setdefault(value.root, turns)
                turns_by_site[_site_key(value)] = turns
        if executed and not value.returned:
            roots_by_call.setdefault(_call_key(value), []).append(value.root)
    return interleaved_layouts


def _source_turns(
    value: Value,
    turns_by_root: Mapping[int, Turns],
    roots_by_call: Mapping[tuple[object, ...], list[int]],
    turns_by_site: Mapping[tuple[object, ...], Turns],
) -> Sequence[Turns]:
    """Runs that a value may take over: from its memory, its call's inputs, or the value whose gradient it is."""
    if value.site.phase == "bwd":
        return [turns_by_site[_site_key(value)]] if _site_key(value) in turns_by_site else []
    if value.root in turns_by_root:
        return [turns_by_root[value.root]]
    roots = roots_by_call.get(_call_key(value), []) if value.returned else []
    return [turns_by_root[root] for root in roots if root in turns_by_root]


def _share_turns(shape: tuple[int, ...], dim: int, sources: Sequence[Turns]) -> Turns:
    """Runs of a share of ``shape`` that is cut along ``dim``.

    With ``dim`` 0 they are those of a source with as many rows as the share, if there is one.
    """
    by_shape = math.prod(shape[:dim]), math.prod(shape[: dim + 1])
    if dim:
        return by_shape
    return next((turns for turns in sources if turns[1] == shape[0]), by_shape)


def _call_key(value: Value) -> tuple[object, ...]:
    return value.site.micro, value.site.phase, value.site.name, value.site.call


def _site_key(value: Value) -> tuple[object, ...]:
    return value.site.micro, value.site.name, value.site.call, value.site.slot
