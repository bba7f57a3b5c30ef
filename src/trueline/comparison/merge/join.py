"""Merging of one step of two runs over ranks or micro-batches.

The result has the values of a single rank that sees the whole batch at once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from trueline.comparison.match.call_pairs import own_shape
from trueline.comparison.match.gather import Gathered, Gathering
from trueline.comparison.merge.batch_layout import interleaved
from trueline.comparison.merge.positions import without_positions
from trueline.comparison.merge.row_order import with_row_order
from trueline.comparison.merge.shards import (
    MergeLayout,
    layouts_in_common,
    merged_value,
    possible_layouts,
    same_value,
    single_number,
)
from trueline.judge.recorded.step_values import StepValues, Value
from trueline.judge.recorded.stored_tensors import Shape
from trueline.schema.columns.records import Unmeasured
from trueline.schema.formats import FORMATS


def merge_sides(run: Parts, ref: Parts, twins: Sequence[tuple[int, int]]) -> tuple[StepValues, StepValues]:
    """Merge both sides; ``twins`` are the indices of values that were matched."""
    averaged = True
    for i, j in twins:
        run.layout[i], ref.layout[j] = layouts_in_common(run.layouts(i), ref.layouts(j))
        if "mean" in (run.layout[i].batch.how, ref.layout[j].batch.how):
            run.layout[i], ref.layout[j] = _mean_or_sum(run.options(i), ref.options(j))
            # Integers, such as counts of tokens, are no losses.
            if run.values.values[i].dtype in FORMATS:
                averaged = "sum" not in (run.layout[i].batch.how, ref.layout[j].batch.how)
    unequal_teams = run.gathering.num_teams != ref.gathering.num_teams
    run_step, ref_step = (side.merged(unequal_teams=unequal_teams, averaged=averaged) for side in (run, ref))
    ref_twins = [(j, i) for i, j in twins]
    run_step, ref_step = _with_awaited(run_step, ref_step, twins), _with_awaited(ref_step, run_step, ref_twins)
    if unequal_teams or run.gathering.num_micro != ref.gathering.num_micro:
        equal = [(i, j) for i, j in twins if _is_equal(run_step.values[i], ref_step.values[j])]
        run_step = without_positions(run_step, run.dims, {i for i, _ in equal})
        ref_step = without_positions(ref_step, ref.dims, {j for _, j in equal})
    run_step = with_row_order(run_step, ref_step, twins, run.dims)
    return run_step, with_row_order(ref_step, run_step, ref_twins, ref.dims)


def _is_equal(value: Value, twin: Value) -> bool:
    return value.stats is not None and twin.stats is not None and same_value([value.stats, twin.stats])


@dataclass(frozen=True, slots=True)
class _Option:
    """Layout of a single number, and the number that it gives."""

    layout: MergeLayout
    number: float | None


class Parts:
    """Values of one side before they are merged.

    ``values`` has one part of each value, which stands for all parts while values are matched; ``shapes`` gives the
    possible shapes of the whole.
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
        """Dim along which the shares of a batch lie side by side, by the index of the value."""
        return {index: layout.batch.dim for index, layout in self.layout.items() if layout.batch.is_of_batch}

    def shapes(self, value: Value) -> frozenset[Shape]:
        """Possible shapes of the whole of one of ``values``."""
        return self._shapes.get(id(value)) or own_shape(value)

    def layouts(self, index: int) -> list[MergeLayout]:
        """Possible layouts of the value with this index, the likeliest first."""
        return self._layouts[index]

    def options(self, index: int) -> list[_Option]:
        """Layout of a value and, where that is a mean of single numbers, their sum."""
        layout, entry = self.layout[index], self._entries[index]
        layouts = [layout]
        if layout.batch.how == "mean":
            layouts.append(replace(layout, batch=replace(layout.batch, how="sum")))
        values = [merged_value(self.gathering, entry, option) for option in layouts]
        return [
            _Option(option, None if value.stats is None or value.stats.numel != 1 else single_number(value.stats))
            for option, value in zip(layouts, values, strict=True)
        ]

    def merged(self, *, unequal_teams: bool, averaged: bool) -> StepValues:
        """Merge all values.

        ``unequal_teams``: the sides have different numbers of teams. ``averaged``: the loss of the whole batch is the
        mean of the teams' losses, else their sum.
        """
        scale = 1.0 / self.gathering.num_teams if unequal_teams and averaged else 1.0
        for index, entry in enumerate(self._entries):
            layout = self.layout.setdefault(index, self._layouts[index][0])
            if layout.batch.how == "sum" and not averaged and self._is_of_summed(entry, layout):
                self.layout[index] = replace(layout, batch=replace(layout.batch, how="same"))
        self.layout = interleaved(self._entries, self.layout)
        values = [self._merged(index, entry, scale) for index, entry in enumerate(self._entries)]
        return replace(self.values, values=values)

    def _is_of_summed(self, entry: Gathered, layout: MergeLayout) -> bool:
        """Tell whether an entry is the gradient of a sum over the teams, which equals the gradient of each term.

        With respect to a mean it is the sum of the teams' gradients, as where losses are divided by their number later.
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


def _with_awaited(step: StepValues, reference: StepValues, twins: Sequence[tuple[int, int]]) -> StepValues:
    """Give values of ``step`` that wait for a collective the numbers that were seen after it.

    Both are one tensor in ``reference``, which shows that they belong together.
    """
    measured: dict[tuple[int, str], Value] = {}
    for i, j in twins:
        value, twin = step.values[i], reference.values[j]
        if value.stats is not None:
            measured.setdefault((twin.root, value.site.phase), value)
    values = list(step.values)
    for i, j in twins:
        value, twin = values[i], reference.values[j]
        later = measured.get((twin.root, value.site.phase))
        waits = "pending_sum" in value.flags or Unmeasured.of(value.note) is Unmeasured.UNDER_WAY
        if value.stats is None and waits and later is not None and later.shape == value.shape:
            note = f"the value after the collective, as seen in {later.site.name}"
            numbers = {"stats": later.stats, "load": later.load, "scale": later.scale}
            values[i] = replace(value, **numbers, flags=value.flags - {"pending_sum"}, note=note)
    return replace(step, values=values)


def _unmeasured(entry: Gathered, note: str) -> Value:
    return replace(entry.first, stats=None, load=None, note=note)


def _mean_or_sum(options: Sequence[_Option], ref_options: Sequence[_Option]) -> tuple[MergeLayout, MergeLayout]:
    """Layouts, mean or sum, with which single numbers of shares of a batch, such as losses, agree best."""

    def distance(pair: tuple[_Option, _Option]) -> float:
        number, ref_number = pair[0].number, pair[1].number
        if number is None or ref_number is None or not (math.isfinite(number) and math.isfinite(ref_number)):
            return math.inf
        return abs(number - ref_number)

    best, ref_best = min(product(options, ref_options), key=distance)
    return best.layout, ref_best.layout


_UPDATE_PHASES = ("param", "grad", "opt")
"""Phases in which parameters are seen at the update."""


def with_parameters(step: StepValues) -> StepValues:
    """Let a parameter at the update have as its first sighting the forward call that used it.

    That is a call of its own module that takes its shape and numbers, else the only call with these.

    With several ranks the recorder measures parameters again at the update, since a reduction in C++ leaves their
    version counters as they were; and FSDP2 hands calls another tensor than the one that the optimizer changes.
    """
    inputs_by_shape: dict[tuple[int, ...], list[Value]] = defaultdict(list)
    for value in step.values:
        if value.root == value.index and value.kind == "op" and value.site.phase == "fwd" and not value.returned:
            inputs_by_shape[value.shape].append(value)
    roots: dict[int, int] = {}
    for value in step.values:
        if value.site.phase == "param" and value.root == value.index:
            first = _first_use(value, inputs_by_shape.get(value.shape, []))
            if first is not None:
                roots[value.index] = first.index
    if not roots:
        return step
    values = [
        replace(value, root=roots[value.root]) if value.site.phase in _UPDATE_PHASES and value.root in roots else value
        for value in step.values
    ]
    return replace(step, values=values)


def _first_use(param: Value, inputs: list[Value]) -> Value | None:
    stats = param.stats
    if stats is None:
        return None
    module = param.site.name.rpartition(".")[0]
    use = next((value for value in inputs if value.module == module and _same_parameter(param, value)), None)
    if use is not None or stats.min == stats.max:  # all zeros or all ones identify nothing
        return use
    candidates = [value for value in inputs if _same_parameter(param, value)]
    return candidates[0] if len(candidates) == 1 else None


def _same_parameter(param: Value, value: Value) -> bool:
    return value.stats is not None and value.dtype == param.dtype and same_value([param.stats, value.stats])
