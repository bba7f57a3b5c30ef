"""Merges the parts that ranks and micro-batches have of a value; the shape in the other run shows how.

Within a team, parts of a DTensor have known offsets; other parts are equal on all members, or cut along a dim. Between
teams and micro-batches, parts are equal (parameters, values of the optimizer), are concatenated (activations and their
gradients), or are terms of a mean or sum (losses, and gradients of what all share).
"""

from __future__ import annotations

import functools
import math
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Literal

from trueline.comparison.match.gather import Gathered, Gathering, Part, value_digest
from trueline.judge.recorded.step_values import OF_BATCH, Loader, Value
from trueline.judge.recorded.stored_tensors import Scaled, Shape, SideBySide, Sum, in_groups, placed
from trueline.schema.stats import MergeError, TensorStats
from trueline.store.records.whole import whole_of

How = Literal["same", "placed", "split", "sum", "mean", "own"]

_SUM_REL = 1e-9
"""How much sums of equal values may differ, relative to the norm: they are added up in float64, in an order that may
depend on the number of threads."""


@dataclass(frozen=True, slots=True)
class PartLayout:
    """How parts become one value of ``shape``; ``dim`` is the one that they are cut along. Each has ``runs`` runs there
    that alternate with those of the others: as many as the dims before have elements, or more (see ``batch_layout``).
    """

    how: How
    shape: Shape
    dim: int = 0
    runs: int = 1


@dataclass(frozen=True, slots=True)
class MergeLayout:
    """How the members of a team, then the shares of the batch become one value of ``batch.shape``."""

    team: PartLayout
    batch: PartLayout

    @property
    def shape(self) -> Shape:
        """Of the whole value."""
        return self.batch.shape


def possible_layouts(gathering: Gathering, entry: Gathered) -> list[MergeLayout]:
    """Every layout that the parts of a value may have, the likeliest first."""
    shares = _shares(entry)
    found: list[MergeLayout] = []
    for team in _layouts_of_team(shares[0]):
        shapes = [_shape_of(team, share) for share in shares]
        if None in shapes:
            continue
        wholes = [shape for shape in shapes if shape is not None]
        found += [MergeLayout(team, batch) for batch in _layouts_of_batch(gathering, entry, shares, wholes)]
    return found


def layouts_in_common(mine: Sequence[MergeLayout], theirs: Sequence[MergeLayout]) -> tuple[MergeLayout, MergeLayout]:
    """The likeliest layouts of two twins that give both the same shape; the likeliest of each where none do."""
    at = {layout.shape: place for place, layout in reversed(list(enumerate(theirs)))}
    fits = [
        (place + at[layout.shape], place, at[layout.shape]) for place, layout in enumerate(mine) if layout.shape in at
    ]
    if not fits:
        return mine[0], theirs[0]
    _, i, j = min(fits)
    return mine[i], theirs[j]


def share_shape(entry: Gathered, layout: MergeLayout) -> Shape:
    """The shape of the first share of a value."""
    first = _shares(entry)[0]
    return _shape_of(layout.team, first) or first[0].value.shape


def merged_value(gathering: Gathering, entry: Gathered, layout: MergeLayout, *, scale: float = 1.0) -> Value:
    """The whole value. ``scale`` is what gradients with respect to the batch of one team are multiplied by."""
    first = entry.first
    ranks = tuple(sorted({part.value.ranks[0] for part in entry.parts}))
    shares = _shares(entry)
    if len(entry.parts) == 1 and layout.team.how == "same" and scale == 1.0:
        return replace(entry.parts[0].value, index=first.index, root=first.root)
    try:
        wholes = [_whole_of_team(share, layout.team, gathering) for share in shares]
        whole = _whole_of_batch(gathering, entry, wholes, layout.batch, scale)
    except MergeError as error:
        whole = _Whole(None, None, str(error))
    return replace(
        first,
        ranks=ranks,
        shape=layout.shape,
        stats=None if whole.stats is None else replace(whole.stats, shape=layout.shape),
        load=whole.load,
        note=whole.note,
        scale=scale,
        flags=frozenset().union(*(part.value.flags for part in entry.parts)),
    )


# -- what is possible ----------------------------------------------------------------------------------------------


def _shares(entry: Gathered) -> list[list[Part]]:
    """The parts of each team and micro-batch, in that order; within a share in the order of its members. Where a mesh
    spans several teams, as FSDP's does, all parts of one DTensor are one share.
    """
    parts = sorted(entry.parts, key=lambda part: part.owner)
    met: Counter[tuple[object, ...]] = Counter()
    shares: dict[tuple[object, ...], list[Part]] = {}
    for part in parts:
        key: tuple[object, ...] = part.owner[:2]
        if part.place is not None:
            where = (part.owner.micro, part.place.coordinate)
            key = (met[where], part.owner.micro)
            met[where] += 1
        shares.setdefault(key, []).append(part)
    return list(shares.values())


def _layouts_of_team(share: Sequence[Part]) -> list[PartLayout]:
    first = share[0]
    if first.place is not None:
        return [PartLayout("placed", first.place.shape)]
    shape = first.value.shape
    if len(share) == 1:
        return [PartLayout("same", shape)]
    cuts = [PartLayout("split", shape, dim) for dim in reversed(range(len(shape)))]
    same = same_value([part.value.stats for part in share])
    return [PartLayout("same", shape), *cuts] if same else [*cuts, PartLayout("own", shape)]


def _shape_of(layout: PartLayout, share: Sequence[Part]) -> Shape | None:
    """The shape of a share in this layout; None where its parts do not fit each other."""
    if layout.how == "placed":
        return share[0].place.shape if share[0].place is not None else None
    shapes = [part.value.shape for part in share]
    return _joined(shapes, layout.dim) if layout.how == "split" else shapes[0]


def _joined(shapes: Sequence[Shape], dim: int) -> Shape | None:
    """The shape of arrays concatenated along ``dim``; None where they differ along another one."""
    first = shapes[0]
    if any(len(shape) != len(first) or dim >= len(shape) for shape in shapes):
        return None
    if any(shape[:dim] != first[:dim] or shape[dim + 1 :] != first[dim + 1 :] for shape in shapes):
        return None
    return (*first[:dim], sum(shape[dim] for shape in shapes), *first[dim + 1 :])


_WHOLE_NUMBERS = frozenset({"int64", "int32", "int16", "int8", "uint8"})


def _layouts_of_batch(
    gathering: Gathering, entry: Gathered, shares: Sequence[Sequence[Part]], wholes: Sequence[Shape]
) -> list[PartLayout]:
    shape, phase = wholes[0], entry.first.site.phase
    if len(wholes) == 1 or phase not in OF_BATCH:
        return [PartLayout("same", shape)]
    cuts = [PartLayout("split", whole, dim) for dim in range(len(shape)) if (whole := _joined(wholes, dim)) is not None]
    if any(other != shape for other in wholes):
        return cuts or [PartLayout("own", shape)]
    if phase == "bwd":
        return [*cuts, PartLayout("sum", shape)]
    if all(same_value([part.value.stats for part in parts]) for parts in zip(*shares, strict=False)):
        # Of a count, such as that of tokens, each rank has its share, and equal shares are likely.
        counted = math.prod(shape) == 1 and entry.first.dtype in _WHOLE_NUMBERS
        return [PartLayout("mean" if counted else "same", shape), *cuts]
    if all(value_digest(part.value) in gathering.params for part in entry.parts):  # replicas that drifted
        return [PartLayout("same", shape)]
    return [*cuts, PartLayout("own" if math.prod(shape) != 1 else "mean", shape)]


def same_value(parts: Sequence[TensorStats | None]) -> bool:
    """Whether all parts are the same value, as far as statistics show; parts without statistics count as the same."""
    measured = [part for part in parts if part is not None]
    return all(_equal(measured[0], part) for part in measured[1:])


def _equal(one: TensorStats, other: TensorStats) -> bool:
    if one.fingerprint is not None and other.fingerprint is not None:
        return one.fingerprint == other.fingerprint and one.shape == other.shape
    if _EXACT(one) != _EXACT(other):
        return False
    room = _SUM_REL * max(one.norm, other.norm)
    return abs(one.sum - other.sum) <= room * math.sqrt(max(one.numel, 1)) and abs(one.norm - other.norm) <= room


_EXACT = attrgetter("numel", "min", "max", "shape", "dtype", "nan", "pos_inf", "neg_inf", "zero", "subnormal")


# -- what is done --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Whole:
    """Statistics and stored numbers of a value, or of a part of it."""

    stats: TensorStats | None
    load: Loader | None
    note: str = ""


def _whole_of_team(share: Sequence[Part], layout: PartLayout, gathering: Gathering) -> _Whole:
    values = [part.value for part in share]
    if layout.how == "placed":
        return _placed(share, gathering)
    if layout.how == "split":
        return _side_by_side([_Whole(value.stats, value.load, value.note) for value in values], layout.dim, gathering)
    if layout.how == "own":
        raise MergeError(
            f"ranks {_listed(values)} hold one model together and have different values here: terms of a sum that has "
            "not been taken yet, or values that should be equal"
        )
    return _Whole(values[0].stats, values[0].load, values[0].note)


def _placed(share: Sequence[Part], gathering: Gathering) -> _Whole:
    first = share[0].value
    known = [(part.value, part.place) for part in share if part.place is not None]
    measured = [(value.ranks[0], place, value.stats) for value, place in known if value.stats is not None]
    if len(measured) < len(share):
        return _Whole(None, None, first.note)
    stats = whole_of(f"{first.site.name}#{first.site.call}:{first.site.slot}", measured)
    loads = [(place.offsets, value.load) for value, place in known]
    stored = [(offsets, load) for offsets, load in loads if offsets is not None and load is not None]
    if len(stored) < len(share) or not gathering.whole:
        return _Whole(stats, None)
    return _Whole(stats, lambda: placed([(offsets, load()) for offsets, load in stored], known[0][1].shape))


def _side_by_side(parts: Sequence[_Whole], dim: int, gathering: Gathering) -> _Whole:
    """Parts that are cut along ``dim``, concatenated. Its fingerprint and projections do not follow from theirs."""
    measured = [part.stats for part in parts if part.stats is not None]
    loads = [part.load for part in parts if part.load is not None]
    stats = functools.reduce(operator.add, measured) if len(measured) == len(parts) else None
    stored = gathering.whole and len(loads) == len(parts)
    return _Whole(
        None if stats is None else replace(stats, fingerprint=None, projections=None),
        (lambda: SideBySide([load() for load in loads], dim)) if stored else None,
        next((part.note for part in parts if part.note), ""),
    )


def _in_turns(wholes: Sequence[_Whole], layout: PartLayout, gathering: Gathering) -> _Whole:
    """Shares concatenated; where their runs alternate along the first dim, run by run."""
    whole = _side_by_side(wholes, layout.dim, gathering)
    if layout.dim or layout.runs == 1 or whole.load is None:
        return whole
    loads = [each.load for each in wholes if each.load is not None]
    return replace(whole, load=lambda: in_groups([load() for load in loads], 0, layout.runs))


def _whole_of_batch(
    gathering: Gathering, entry: Gathered, wholes: Sequence[_Whole], layout: PartLayout, scale: float
) -> _Whole:
    if len(wholes) == 1 and layout.how == "same":
        return _scaled(wholes[0], scale)
    if layout.how == "split":
        return _scaled(_in_turns(wholes, layout, gathering), scale)
    if layout.how == "same":
        return _one_of(entry, wholes)
    if layout.how == "own":
        raise MergeError(
            f"ranks {_listed([part.value for part in _first_parts(entry)])} each have a different value here"
        )
    missing = gathering.num_teams * gathering.num_micro - len(wholes)
    if missing > 0:
        raise MergeError(f"{missing} of {len(wholes) + missing} shares of the batch have no record of it")
    return _summed(wholes, scale / len(wholes) if layout.how == "mean" else scale)


def _one_of(entry: Gathered, wholes: Sequence[_Whole]) -> _Whole:
    """One of the replicas; where they differ, the first one that is not equal to most others, with a note."""
    kinds: list[list[int]] = []
    for place, whole in enumerate(wholes):
        same = next((kind for kind in kinds if same_value([wholes[kind[0]].stats, whole.stats])), None)
        if same is None:
            kinds.append([place])
        else:
            same.append(place)
    if len(kinds) == 1:
        return wholes[0]
    most = max(kinds, key=len)
    odd = next(kind for kind in kinds if kind is not most)
    firsts = [part.value for part in _first_parts(entry)]
    shown, others = (_listed([firsts[place] for place in kind]) for kind in (odd, most))
    return replace(wholes[odd[0]], note=f"replicas differ: rank {shown} (shown) from rank {others}")


def _first_parts(entry: Gathered) -> list[Part]:
    """The first part of each share."""
    return [share[0] for share in _shares(entry)]


def scaled(value: Value, scale: float) -> Value:
    """``value`` times ``scale``."""
    whole = _scaled(_Whole(value.stats, value.load), scale)
    return replace(value, stats=whole.stats, load=whole.load, scale=value.scale * scale)


def _scaled(whole: _Whole, scale: float) -> _Whole:
    if scale == 1.0:
        return whole
    load = whole.load
    return _Whole(
        None if whole.stats is None else _scaled_stats(whole.stats, scale),
        None if load is None else lambda: Scaled(load(), scale),
        whole.note,
    )


def _scaled_stats(stats: TensorStats, scale: float) -> TensorStats:
    return replace(
        stats,
        min=None if stats.min is None else stats.min * scale,
        max=None if stats.max is None else stats.max * scale,
        sum=stats.sum * scale,
        sum_sq=stats.sum_sq * scale * scale,
        fingerprint=None,
        exponents=None,
        projections=None if stats.projections is None else tuple(each * scale for each in stats.projections),
    )


def _summed(wholes: Sequence[_Whole], scale: float) -> _Whole:
    """The sum of terms, times ``scale``. From statistics it is known for single numbers only."""
    loads = [whole.load for whole in wholes if whole.load is not None]
    load = (lambda: Scaled(Sum([load() for load in loads]), scale)) if len(loads) == len(wholes) else None
    measured = [whole.stats for whole in wholes if whole.stats is not None]
    if len(measured) == len(wholes) and all(stats.numel == 1 for stats in measured):
        return _Whole(_number(measured[0], sum(map(number_of, measured)) * scale), load)
    return _Whole(None, load, f"a sum of {len(wholes)} terms, which follows from stored values and not from statistics")


def number_of(stats: TensorStats) -> float:
    """The only number of a value."""
    if stats.nan:
        return math.nan
    return math.inf if stats.pos_inf else -math.inf if stats.neg_inf else stats.sum


def _number(like: TensorStats, number: float) -> TensorStats:
    """The statistics of a single ``number``."""
    finite = math.isfinite(number)
    return TensorStats(
        dtype=like.dtype,
        shape=like.shape,
        numel=1,
        nan=int(math.isnan(number)),
        pos_inf=int(number == math.inf),
        neg_inf=int(number == -math.inf),
        zero=int(number == 0.0),
        min=number if finite else None,
        max=number if finite else None,
        sum=number if finite else 0.0,
        sum_sq=number * number if finite else 0.0,
    )


def _listed(values: Sequence[Value]) -> str:
    return ", ".join(str(value.ranks[0]) for value in values)
