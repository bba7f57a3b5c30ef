"""Merges one step of two runs over ranks, or over micro-batches, each to the values that one rank would have that sees
the whole batch at once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trueline.comparison.match.call_pairs import own_shape
from trueline.comparison.match.gather import Gathered, Gathering
from trueline.comparison.merge.batch_layout import interleaved
from trueline.comparison.merge.positions import without_positions
from trueline.comparison.merge.row_order import reordered
from trueline.comparison.merge.shards import (
    MergeLayout,
    layouts_in_common,
    merged_value,
    number_of,
    possible_layouts,
    same_value,
)
from trueline.judge.recorded.step_values import StepValues, Value
from trueline.judge.recorded.stored_tensors import Shape
from trueline.schema.columns.records import Unmeasured
from trueline.schema.formats import FORMATS


def joined(one: Parts, other: Parts, twins: Sequence[tuple[int, int]]) -> tuple[StepValues, StepValues]:
    """Both sides merged; ``twins`` are the indices of values that were matched."""
    averaged = True
    for i, j in twins:
        one.layout[i], other.layout[j] = layouts_in_common(one.layouts(i), other.layouts(j))
        if "mean" in (one.layout[i].batch.how, other.layout[j].batch.how):
            one.layout[i], other.layout[j] = _mean_or_sum(one.options(i), other.options(j))
            if one.values.values[i].dtype in FORMATS:
                averaged = "sum" not in (one.layout[i].batch.how, other.layout[j].batch.how)
    mine, theirs = one.gathering, other.gathering
    apart = mine.num_teams != theirs.num_teams
    merged, merged_other = (side.merged(apart=apart, averaged=averaged) for side in (one, other))
    back = [(j, i) for i, j in twins]
    merged, merged_other = _seen_later(merged, merged_other, twins), _seen_later(merged_other, merged, back)
    if apart or mine.num_micro != theirs.num_micro:
        same = [pair for pair in twins if _is_same(merged.values[pair[0]], merged_other.values[pair[1]])]
        merged = without_positions(merged, one.dims, {i for i, _ in same})
        merged_other = without_positions(merged_other, other.dims, {j for _, j in same})
    merged = reordered(merged, merged_other, twins, one.dims)
    return merged, reordered(merged_other, merged, back, other.dims)


def _is_same(value: Value, twin: Value) -> bool:
    return value.stats is not None and twin.stats is not None and same_value([value.stats, twin.stats])


@dataclass(frozen=True, slots=True)
class _Option:
    """A layout of a single number, and the number that it gives."""

    layout: MergeLayout
    number: float | None


class Parts:
    """The values of one side before they are merged: ``values`` has one part of each, which stands for all of them
    while values are matched, and ``shapes`` what the whole may look like.
    """

    def __init__(self, gathering: Gathering) -> None:
        self.gathering = gathering
        self.values = gathering.values
        self.layout: dict[int, MergeLayout] = {}
        self._entries = gathering.gathered
        self._layouts = [possible_layouts(gathering, entry) for entry in self._entries]
        self._shapes = {
            id(entry.first): frozenset(layout.shape for layout in layouts)
            for entry, layouts in zip(self._entries, self._layouts, strict=True)
        }
        self._forward = {
            (entry.first.site.name, entry.first.site.call, entry.first.site.slot): index
            for index, entry in enumerate(self._entries)
            if entry.first.site.phase == "fwd"
        }
        self._executed = {
            (entry.first.site.name, entry.first.site.call)
            for entry in self._entries
            if entry.first.site.phase == "bwd" and entry.first.args is not None
        }

    @property
    def dims(self) -> dict[int, int]:
        """Along which dim the shares of a batch lie in a value, for those that lie side by side."""
        return {index: layout.batch.dim for index, layout in self.layout.items() if layout.batch.how == "split"}

    def shapes(self, value: Value) -> frozenset[Shape]:
        """The shapes that the whole of one of ``values`` may have."""
        return self._shapes.get(id(value)) or own_shape(value)

    def layouts(self, index: int) -> list[MergeLayout]:
        """See ``possible_layouts``."""
        return self._layouts[index]

    def options(self, index: int) -> list[_Option]:
        """The layout of a value and, where that is a mean of single numbers, their sum."""
        layout, entry = self.layout[index], self._entries[index]
        found = [layout]
        if layout.batch.how == "mean":
            found.append(replace(layout, batch=replace(layout.batch, how="sum")))
        values = [merged_value(self.gathering, entry, each) for each in found]
        return [
            _Option(each, None if value.stats is None or value.stats.numel != 1 else number_of(value.stats))
            for each, value in zip(found, values, strict=True)
        ]

    def merged(self, *, apart: bool, averaged: bool) -> StepValues:
        """All values merged. ``apart``: the sides have other numbers of teams; ``averaged``: the loss of the whole
        batch is the mean of those of the teams, else their sum.
        """
        scale = 1.0 / self.gathering.num_teams if apart and averaged else 1.0
        for index, entry in enumerate(self._entries):
            layout = self.layout.setdefault(index, self._layouts[index][0])
            if layout.batch.how == "sum" and not averaged and self._is_of_summed(entry, layout):
                self.layout[index] = replace(layout, batch=replace(layout.batch, how="same"))
        self.layout = interleaved(self._entries, self.layout)
        values = [self._merged(index, entry, scale) for index, entry in enumerate(self._entries)]
        return replace(self.values, values=values)

    def _is_of_summed(self, entry: Gathered, layout: MergeLayout) -> bool:
        """Whether this is the gradient of a number that the teams' add up to, which is that of each of them; with
        respect to a mean it is the sum of theirs, as where losses are divided by how many they are after that.
        """
        site = entry.first.site
        if site.phase != "bwd" or math.prod(layout.shape) != 1:
            return False
        forward = self._forward.get((site.name, site.call, site.slot))
        return forward is None or forward not in self.layout or self.layout[forward].batch.how != "mean"

    def _merged(self, index: int, entry: Gathered, scale: float) -> Value:
        site = entry.first.site
        layout = self.layout[index]
        if site.phase == "comm":
            return _unmeasured(entry, "messages between ranks are not merged")
        if site.phase != "bwd":
            return merged_value(self.gathering, entry, layout)
        if scale != 1.0 and (site.name, site.call) in self._executed:
            return _unmeasured(entry, "calls that run during the backward pass are not merged")
        return merged_value(self.gathering, entry, layout, scale=scale)


def _seen_later(mine: StepValues, theirs: StepValues, twins: Sequence[tuple[int, int]]) -> StepValues:
    """``mine``, in which a value that waits for a collective has the numbers that were seen after it. ``theirs`` shows
    which ones: its twins of both are one tensor.
    """
    seen: dict[tuple[int, str], Value] = {}
    for i, j in twins:
        value, twin = mine.values[i], theirs.values[j]
        if value.stats is not None:
            seen.setdefault((twin.root, value.site.phase), value)
    values = list(mine.values)
    for i, j in twins:
        value, twin = values[i], theirs.values[j]
        found = seen.get((twin.root, value.site.phase))
        waits = "pending_sum" in value.flags or Unmeasured.of(value.note) is Unmeasured.UNDER_WAY
        if value.stats is None and waits and found is not None and found.shape == value.shape:
            note = f"the value after the collective, as seen in {found.site.name}"
            known = {"stats": found.stats, "load": found.load, "scale": found.scale}
            values[i] = replace(value, **known, flags=value.flags - {"pending_sum"}, note=note)
    return replace(mine, values=values)


def _unmeasured(entry: Gathered, note: str) -> Value:
    return replace(entry.first, stats=None, load=None, note=note)


def _mean_or_sum(mine: Sequence[_Option], theirs: Sequence[_Option]) -> tuple[MergeLayout, MergeLayout]:
    """The layouts, mean or sum, with which single numbers of shares of a batch, such as losses, agree best."""

    def apart(pair: tuple[_Option, _Option]) -> float:
        one, other = pair[0].number, pair[1].number
        if one is None or other is None or not (math.isfinite(one) and math.isfinite(other)):
            return math.inf
        return abs(one - other)

    one, other = min(((a, b) for a in mine for b in theirs), key=apart)
    return one.layout, other.layout


_WITH = ("param", "grad", "opt")
"""Phases in which a parameter is seen at the update."""


def with_parameters(step: StepValues) -> StepValues:
    """The step, in which a parameter at the update has as its first sighting the call that used it: one of its own
    module, of its shape and with its numbers or, where there is none, the only one anywhere with its numbers.

    With several ranks the recorder measures parameters again at the update, since a reduction in C++ leaves their
    version counters as they were; and FSDP2 hands calls another tensor than the one that the optimizer changes.
    """
    used: dict[tuple[int, ...], list[Value]] = defaultdict(list)
    for value in step.values:
        if value.root == value.index and value.kind == "op" and value.site.phase == "fwd" and not value.returned:
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
    own = next((value for value in used if value.module == module and _same_parameter(param, value)), None)
    if own is not None or stats.min == stats.max:  # all zeros or all ones identify nothing
        return own
    others = [value for value in used if _same_parameter(param, value)]
    return others[0] if len(others) == 1 else None


def _same_parameter(param: Value, value: Value) -> bool:
    return value.stats is not None and value.dtype == param.dtype and same_value([param.stats, value.stats])
