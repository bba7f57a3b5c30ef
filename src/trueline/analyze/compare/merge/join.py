"""One step of two runs on different ranks, or in different micro-batches, each merged into one: as if there were one
rank that sees the whole batch at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trueline.analyze.compare.expect.rounding import UNIT_ROUNDOFF
from trueline.analyze.compare.match.align import align
from trueline.analyze.compare.match.names import NameMap
from trueline.analyze.compare.merge.batch_layout import interleaved
from trueline.analyze.compare.merge.gather import Gathered, Gathering
from trueline.analyze.compare.merge.positions import without_positions
from trueline.analyze.compare.merge.row_order import reordered
from trueline.analyze.compare.merge.shards import Plan, alike, chosen, merged_value, number_of, plans
from trueline.analyze.recorded.step_values import StepValues, Value
from trueline.schema.records import UNDER_WAY


def joined(mine: Gathering, theirs: Gathering, names: NameMap) -> tuple[StepValues, StepValues]:
    """Both sides merged. Raises ``AlignmentError`` where nothing of the two aligns."""
    one, other = _Side(mine), _Side(theirs)
    twins = [
        (pair.mine.index, pair.theirs.index)
        for pair in align(mine.values, theirs.values, names).pairs
        if pair.mine is not None and pair.theirs is not None
    ]
    averaged = True
    for i, j in twins:
        one.plan[i], other.plan[j] = chosen(one.plans(i), other.plans(j))
        if "mean" in (one.plan[i].batch.how, other.plan[j].batch.how):
            one.plan[i], other.plan[j] = _mean_or_sum(one.options(i), other.options(j))
            if mine.values.values[i].dtype in UNIT_ROUNDOFF:
                averaged = "sum" not in (one.plan[i].batch.how, other.plan[j].batch.how)
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
    return value.stats is not None and twin.stats is not None and alike([value.stats, twin.stats])


@dataclass(frozen=True, slots=True)
class _Option:
    """A way to merge a single number, and what it gives."""

    plan: Plan
    number: float | None


class _Side:
    def __init__(self, gathering: Gathering) -> None:
        self._gathering = gathering
        self._entries = gathering.gathered
        self.plan: dict[int, Plan] = {}
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
        return {index: plan.batch.dim for index, plan in self.plan.items() if plan.batch.how == "split"}

    def plans(self, index: int) -> list[Plan]:
        """See ``shards.plans``."""
        return plans(self._gathering, self._entries[index])

    def options(self, index: int) -> list[_Option]:
        """The plan of a value and, where that is a mean of single numbers, their sum."""
        plan, entry = self.plan[index], self._entries[index]
        found = [plan]
        if plan.batch.how == "mean":
            found.append(replace(plan, batch=replace(plan.batch, how="sum")))
        values = [merged_value(self._gathering, entry, each) for each in found]
        return [
            _Option(each, None if value.stats is None or value.stats.numel != 1 else number_of(value.stats))
            for each, value in zip(found, values, strict=True)
        ]

    def merged(self, *, apart: bool, averaged: bool) -> StepValues:
        """All values merged. ``apart``: the sides have other numbers of teams; ``averaged``: the loss of the whole
        batch is the mean of those of the teams, else their sum.
        """
        scale = 1.0 / self._gathering.num_teams if apart and averaged else 1.0
        for index, entry in enumerate(self._entries):
            plan = self.plan.setdefault(index, self.plans(index)[0])
            if plan.batch.how == "sum" and not averaged and self._is_of_summed(entry, plan):
                self.plan[index] = replace(plan, batch=replace(plan.batch, how="same"))
        self.plan = interleaved(self._entries, self.plan)
        values = [self._merged(index, entry, scale) for index, entry in enumerate(self._entries)]
        return replace(self._gathering.values, values=values)

    def _is_of_summed(self, entry: Gathered, plan: Plan) -> bool:
        """Whether this is the gradient of a number that the teams' add up to, which is that of each of them; with
        respect to a mean it is the sum of theirs, as where losses are divided by how many they are after that.
        """
        site = entry.first.site
        if site.phase != "bwd" or not _is_number(plan):
            return False
        forward = self._forward.get((site.name, site.call, site.slot))
        return forward is None or forward not in self.plan or self.plan[forward].batch.how != "mean"

    def _merged(self, index: int, entry: Gathered, scale: float) -> Value:
        site = entry.first.site
        plan = self.plan[index]
        if site.phase == "comm":
            return _untold(entry, "what ranks send each other is not merged")
        if site.phase != "bwd":
            return merged_value(self._gathering, entry, plan)
        if scale != 1.0 and (site.name, site.call) in self._executed:
            return _untold(entry, "what runs inside the backward pass is not merged")
        return merged_value(self._gathering, entry, plan, scale=scale)


def _seen_later(mine: StepValues, theirs: StepValues, twins: Sequence[tuple[int, int]]) -> StepValues:
    """``mine``, in which a value that waits for a collective is what it was seen to be after it: the twin of what
    ``theirs`` has as one tensor with the twin of the value.
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
        waits = "pending_sum" in value.flags or value.note == UNDER_WAY
        if value.stats is None and waits and found is not None and found.shape == value.shape:
            note = f"as it was seen after the collective, in {found.site.name}"
            told = {"stats": found.stats, "load": found.load, "scale": found.scale}
            values[i] = replace(value, **told, flags=value.flags - {"pending_sum"}, note=note)
    return replace(mine, values=values)


def _is_number(plan: Plan) -> bool:
    return math.prod(plan.shape) == 1


def _untold(entry: Gathered, note: str) -> Value:
    return replace(entry.first, stats=None, load=None, note=note)


def _mean_or_sum(mine: Sequence[_Option], theirs: Sequence[_Option]) -> tuple[Plan, Plan]:
    """Which of mean and sum makes single numbers of shares of a batch, such as losses, agree best."""

    def apart(pair: tuple[_Option, _Option]) -> float:
        one, other = pair[0].number, pair[1].number
        if one is None or other is None or not (math.isfinite(one) and math.isfinite(other)):
            return math.inf
        return abs(one - other)

    one, other = min(((a, b) for a in mine for b in theirs), key=apart)
    return one.plan, other.plan
