"""How the shares of a batch interleave in a value whose shape no longer shows it.

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
"""The number of runs that each share has of a value, and the number of rows in all runs of the first share."""


def interleaved(entries: Sequence[Gathered], layouts: Mapping[int, MergeLayout]) -> dict[int, MergeLayout]:
    """``layouts`` by index of their entries, with the number of runs where values were made from runs."""
    known: dict[int, Turns] = {}
    taken: dict[tuple[object, ...], list[int]] = {}
    sites: dict[tuple[object, ...], Turns] = {}
    found = dict(layouts)
    for index, entry in enumerate(entries):
        value, layout = entry.first, layouts.get(index)
        executed = value.site.phase in _EXECUTED
        if layout is not None and layout.batch.how == "split":
            shape = share_shape(entry, layout)
            made = _turns(shape, layout.batch.dim, _of(value, known, taken, sites))
            found[index] = replace(layout, batch=replace(layout.batch, runs=made[0]))
            if executed:
                known.setdefault(value.root, made)
                sites[_place(value)] = made
        if executed and not value.returned:
            taken.setdefault(_call(value), []).append(value.root)
    return found


def _of(
    value: Value,
    known: Mapping[int, Turns],
    taken: Mapping[tuple[object, ...], list[int]],
    sites: Mapping[tuple[object, ...], Turns],
) -> Sequence[Turns]:
    """Runs that a value may have taken over: from its memory, its call's inputs, or the value it is the gradient of."""
    if value.site.phase == "bwd":
        return [sites[_place(value)]] if _place(value) in sites else []
    if value.root in known:
        return [known[value.root]]
    roots = taken.get(_call(value), []) if value.returned else []
    return [known[root] for root in roots if root in known]


def _turns(shape: tuple[int, ...], dim: int, sources: Sequence[Turns]) -> Turns:
    """The runs of a share of ``shape`` that is cut along ``dim``; those of a source where ``dim`` is 0 and the share
    has as many rows as that source.
    """
    own = math.prod(shape[:dim]), math.prod(shape[: dim + 1])
    if dim:
        return own
    return next((each for each in sources if each[1] == shape[0]), own)


def _call(value: Value) -> tuple[object, ...]:
    return value.site.micro, value.site.phase, value.site.name, value.site.call


def _place(value: Value) -> tuple[object, ...]:
    return value.site.micro, value.site.name, value.site.call, value.site.slot
