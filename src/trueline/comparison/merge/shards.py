"""Merging of the parts that ranks and micro-batches have of a value; the shape in the other run shows the layout.

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
"""Largest difference of sums of equal values, relative to the norm: they are added up in float64, in an order that may
depend on the number of threads."""


@dataclass(frozen=True, slots=True)
class PartLayout:
    """Layout of parts that become one value of ``shape``, cut along ``dim``.

    Each part has ``runs`` runs there that alternate with those of the other parts: as many as the dims before have
    elements, or more (see ``batch_layout``). ``picked`` are the indices of the shares that lie side by side, where
    others are their copies; () for all.
    """

    how: How
    shape: Shape
    dim: int = 0
    runs: int = 1
    picked: tuple[int, ...] = ()

    @property
    def is_of_batch(self) -> bool:
        """True if the parts are shares of a batch, side by side, and not pieces of a parameter."""
        return self.how == "split" and not self.picked


@dataclass(frozen=True, slots=True)
class MergeLayout:
    """Layouts by which the members of a team, then the shares of the batch, become one value of ``batch.shape``."""

    team: PartLayout
    batch: PartLayout

    @property
    def shape(self) -> Shape:
        """Shape of the whole value."""
        return self.batch.shape


def possible_layouts(gathering: Gathering, entry: Gathered) -> list[MergeLayout]:
    """All layouts that the parts of a value may have, the likeliest first."""
    shares = _shares(entry)
    layouts: list[MergeLayout] = []
    for team in _team_layouts(shares[0]):
        shapes = [_share_shape_in(team, share) for share in shares]
        if None in shapes:
            continue
        wholes = [shape for shape in shapes if shape is not None]
        layouts += [MergeLayout(team, batch) for batch in _batch_layouts(gathering, entry, shares, wholes)]
    return layouts


def layouts_in_common(
    run_layouts: Sequence[MergeLayout], ref_layouts: Sequence[MergeLayout]
) -> tuple[MergeLayout, MergeLayout]:
    """Likeliest layouts of two twins with one shape; without any, the likeliest of each."""
    ref_index_by_shape = {layout.shape: index for index, layout in reversed(list(enumerate(ref_layouts)))}
    fits = [
        (index + ref_index_by_shape[layout.shape], index, ref_index_by_shape[layout.shape])
        for index, layout in enumerate(run_layouts)
        if layout.shape in ref_index_by_shape
    ]
    if not fits:
        return run_layouts[0], ref_layouts[0]
    _, i, j = min(fits)
    return run_layouts[i], ref_layouts[j]


def share_shape(entry: Gathered, layout: MergeLayout) -> Shape:
    """Shape of the first share of a value."""
    first = _shares(entry)[0]
    return _share_shape_in(layout.team, first) or first[0].value.shape


def merged_value(gathering: Gathering, entry: Gathered, layout: MergeLayout, *, scale: float = 1.0) -> Value:
    """Merge parts to the whole value; gradients with respect to the batch of one team are multiplied by ``scale``."""
    first = entry.first
    ranks = tuple(sorted({part.value.ranks[0] for part in entry.parts}))
    shares = _shares(entry)
    if len(entry.parts) == 1 and layout.team.how == "same" and scale == 1.0:
        return replace(entry.parts[0].value, index=first.index, root=first.root)
    try:
        wholes = [_merge_team(share, layout.team, gathering) for share in shares]
        whole = _merge_batch(gathering, entry, wholes, layout.batch, scale)
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


# -- possible layouts ----------------------------------------------------------------------------------------------


def _shares(entry: Gathered) -> list[list[Part]]:
    """Shares, by team, then micro-batch, each with its parts in the order of the team's members.

    Where a mesh spans several teams, as FSDP's does, all parts of one DTensor are one share.
    """
    parts = sorted(entry.parts, key=lambda part: part.owner)
    num_met: Counter[tuple[object, ...]] = Counter()
    shares: dict[tuple[object, ...], list[Part]] = {}
    for part in parts:
        key: tuple[object, ...] = part.owner[:2]
        if part.place is not None:
            coordinate = (part.owner.micro, part.place.coordinate)
            key = (num_met[coordinate], part.owner.micro)
            num_met[coordinate] += 1
        shares.setdefault(key, []).append(part)
    return list(shares.values())


def _team_layouts(share: Sequence[Part]) -> list[PartLayout]:
    first = share[0]
    if first.place is not None:
        return [PartLayout("placed", first.place.shape)]
    shape = first.value.shape
    if len(share) == 1:
        return [PartLayout("same", shape)]
    cuts = [PartLayout("split", shape, dim) for dim in reversed(range(len(shape)))]
    is_replicated = same_value([part.value.stats for part in share])
    return [PartLayout("same", shape), *cuts] if is_replicated else [*cuts, PartLayout("own", shape)]


def _share_shape_in(layout: PartLayout, share: Sequence[Part]) -> Shape | None:
    """Shape of a share in this layout; None where its parts do not fit each other."""
    if layout.how == "placed":
        return share[0].place.shape if share[0].place is not None else None
    shapes = [part.value.shape for part in share]
    return _joined_shape(shapes, layout.dim) if layout.how == "split" else shapes[0]


def _joined_shape(shapes: Sequence[Shape], dim: int) -> Shape | None:
    """Shape of arrays concatenated along ``dim``; None where they differ along another dim."""
    first = shapes[0]
    if any(len(shape) != len(first) or dim >= len(shape) for shape in shapes):
        return None
    if any(shape[:dim] != first[:dim] or shape[dim + 1 :] != first[dim + 1 :] for shape in shapes):
        return None
    return (*first[:dim], sum(shape[dim] for shape in shapes), *first[dim + 1 :])


def _cut_layouts(shares: Sequence[Sequence[Part]], wholes: Sequence[Shape]) -> list[PartLayout]:
    """Layouts of parameters that ranks hold in pieces which nothing recorded says, as of tensor parallelism by hand:
    in as many pieces as divide the ranks, those first of which all other ranks have copies.
    """
    num_shares = len(shares)
    fits: list[PartLayout] = []
    rest: list[PartLayout] = []
    for num_pieces in (number for number in range(2, num_shares + 1) if num_shares % number == 0):
        # neighbours hold the pieces of one model, or else the copies of one piece
        for owners in (
            [i % num_pieces for i in range(num_shares)],
            [i * num_pieces // num_shares for i in range(num_shares)],
        ):
            picked = tuple(owners.index(piece) for piece in range(num_pieces))
            if _are_one_piece([shares[index][0].value.stats for index in picked]):
                continue
            are_copies = all(
                same_value([share[0].value.stats, shares[picked[owner]][0].value.stats])
                for share, owner in zip(shares, owners, strict=True)
            )
            for dim in range(len(wholes[0])):
                whole = _joined_shape([wholes[index] for index in picked], dim)
                if whole is not None:
                    (fits if are_copies else rest).append(PartLayout("split", whole, dim, picked=picked))
    return [*fits, *rest]


def _are_one_piece(pieces: Sequence[TensorStats | None]) -> bool:
    """True if all are copies of one piece; pieces of which each is one number throughout, as zeros, may begin equal."""
    measured = [piece for piece in pieces if piece is not None]
    return len(measured) == len(pieces) and measured[0].min != measured[0].max and same_value(pieces)


_WHOLE_NUMBERS = frozenset({"int64", "int32", "int16", "int8", "uint8"})


def _batch_layouts(
    gathering: Gathering, entry: Gathered, shares: Sequence[Sequence[Part]], wholes: Sequence[Shape]
) -> list[PartLayout]:
    shape, phase = wholes[0], entry.first.site.phase
    if len(wholes) == 1:
        return [PartLayout("same", shape)]
    if phase not in OF_BATCH:
        return [PartLayout("same", shape), *_cut_layouts(shares, wholes)]
    cuts = [
        PartLayout("split", whole, dim)
        for dim in range(len(shape))
        if (whole := _joined_shape(wholes, dim)) is not None
    ]
    if any(whole != shape for whole in wholes):
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
    """Tell whether statistics of all parts agree; parts without statistics agree with any."""
    measured = [part for part in parts if part is not None]
    return all(_is_equal(measured[0], part) for part in measured[1:])


def _is_equal(stats: TensorStats, twin_stats: TensorStats) -> bool:
    # Fingerprints are exact; without them sums may differ in the last digits.
    if stats.fingerprint is not None and twin_stats.fingerprint is not None:
        return stats.fingerprint == twin_stats.fingerprint and stats.shape == twin_stats.shape
    if _EXACT(stats) != _EXACT(twin_stats):
        return False
    tolerance = _SUM_REL * max(stats.norm, twin_stats.norm)
    return (
        abs(stats.sum - twin_stats.sum) <= tolerance * math.sqrt(max(stats.numel, 1))
        and abs(stats.norm - twin_stats.norm) <= tolerance
    )


_EXACT = attrgetter("numel", "min", "max", "shape", "dtype", "nan", "pos_inf", "neg_inf", "zero", "subnormal")


# -- merging ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Whole:
    """Statistics and stored numbers of a value or of a part of it."""

    stats: TensorStats | None
    load: Loader | None
    note: str = ""


def _merge_team(share: Sequence[Part], layout: PartLayout, gathering: Gathering) -> _Whole:
    values = [part.value for part in share]
    if layout.how == "placed":
        return _place_parts(share, gathering)
    if layout.how == "split":
        return _side_by_side([_Whole(value.stats, value.load, value.note) for value in values], layout.dim, gathering)
    if layout.how == "own":
        raise MergeError(
            f"ranks {_rank_list(values)} hold one model together and have different values here: terms of a sum that "
            "has not been taken yet, or values that should be equal"
        )
    return _Whole(values[0].stats, values[0].load, values[0].note)


def _place_parts(share: Sequence[Part], gathering: Gathering) -> _Whole:
    first = share[0].value
    placed_values = [(part.value, part.place) for part in share if part.place is not None]
    measured = [(value.ranks[0], position, value.stats) for value, position in placed_values if value.stats is not None]
    if len(measured) < len(share):
        return _Whole(None, None, first.note)
    stats = whole_of(f"{first.site.name}#{first.site.call}:{first.site.slot}", measured)
    loads = [(position.offsets, value.load) for value, position in placed_values]
    stored = [(offsets, load) for offsets, load in loads if offsets is not None and load is not None]
    if len(stored) < len(share) or not gathering.whole:
        return _Whole(stats, None)
    return _Whole(stats, lambda: placed([(offsets, load()) for offsets, load in stored], placed_values[0][1].shape))


def _side_by_side(parts: Sequence[_Whole], dim: int, gathering: Gathering) -> _Whole:
    """Concatenate parts along ``dim``; fingerprint and projections do not follow from those of the parts."""
    measured = [part.stats for part in parts if part.stats is not None]
    loads = [part.load for part in parts if part.load is not None]
    stats = functools.reduce(operator.add, measured) if len(measured) == len(parts) else None
    stored = gathering.whole and len(loads) == len(parts)
    return _Whole(
        None if stats is None else replace(stats, fingerprint=None, projections=None),
        (lambda: SideBySide([load() for load in loads], dim)) if stored else None,
        next((part.note for part in parts if part.note), ""),
    )


def _join_shares(wholes: Sequence[_Whole], layout: PartLayout, gathering: Gathering) -> _Whole:
    """Concatenate shares, run by run where their runs alternate along the first dim."""
    whole = _side_by_side(wholes, layout.dim, gathering)
    if layout.dim or layout.runs == 1 or whole.load is None:
        return whole
    loads = [share.load for share in wholes if share.load is not None]
    return replace(whole, load=lambda: in_groups([load() for load in loads], 0, layout.runs))


def _merge_batch(
    gathering: Gathering, entry: Gathered, wholes: Sequence[_Whole], layout: PartLayout, scale: float
) -> _Whole:
    if len(wholes) == 1 and layout.how == "same":
        return _scale_whole(wholes[0], scale)
    if layout.how == "split":
        pieces = [wholes[index] for index in layout.picked] if layout.picked else wholes
        return _scale_whole(_join_shares(pieces, layout, gathering), scale)
    if layout.how == "same":
        return _merge_replicas(entry, wholes)
    if layout.how == "own":
        raise MergeError(
            f"ranks {_rank_list([part.value for part in _first_parts(entry)])} each have a different value here"
        )
    missing = gathering.num_teams * gathering.num_micro - len(wholes)
    if missing > 0:
        raise MergeError(f"{missing} of {len(wholes) + missing} shares of the batch have no record of it")
    return _sum_terms(wholes, scale / len(wholes) if layout.how == "mean" else scale)


def _merge_replicas(entry: Gathered, wholes: Sequence[_Whole]) -> _Whole:
    """First replica; where replicas differ, the first that is not equal to most others, with a note."""
    kinds: list[list[int]] = []
    for index, whole in enumerate(wholes):
        equal = next((kind for kind in kinds if same_value([wholes[kind[0]].stats, whole.stats])), None)
        if equal is None:
            kinds.append([index])
        else:
            equal.append(index)
    if len(kinds) == 1:
        return wholes[0]
    majority = max(kinds, key=len)
    odd = next(kind for kind in kinds if kind is not majority)
    firsts = [part.value for part in _first_parts(entry)]
    odd_ranks, majority_ranks = (_rank_list([firsts[index] for index in kind]) for kind in (odd, majority))
    return replace(wholes[odd[0]], note=f"replicas differ: rank {odd_ranks} (shown) from rank {majority_ranks}")


def _first_parts(entry: Gathered) -> list[Part]:
    return [share[0] for share in _shares(entry)]


def scaled(value: Value, scale: float) -> Value:
    """Multiply ``value`` by ``scale``."""
    whole = _scale_whole(_Whole(value.stats, value.load), scale)
    return replace(value, stats=whole.stats, load=whole.load, scale=value.scale * scale)


def _scale_whole(whole: _Whole, scale: float) -> _Whole:
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
        projections=None
        if stats.projections is None
        else tuple(projection * scale for projection in stats.projections),
    )


def _sum_terms(wholes: Sequence[_Whole], scale: float) -> _Whole:
    """Sum of terms times ``scale``; statistics give it for single numbers only."""
    loads = [whole.load for whole in wholes if whole.load is not None]
    load = (lambda: Scaled(Sum([load() for load in loads]), scale)) if len(loads) == len(wholes) else None
    measured = [whole.stats for whole in wholes if whole.stats is not None]
    if len(measured) == len(wholes) and all(stats.numel == 1 for stats in measured):
        return _Whole(_number_stats(measured[0], sum(map(single_number, measured)) * scale), load)
    return _Whole(None, load, f"a sum of {len(wholes)} terms, which follows from stored values and not from statistics")


def single_number(stats: TensorStats) -> float:
    """Number of a value that has one element."""
    if stats.nan:
        return math.nan
    return math.inf if stats.pos_inf else -math.inf if stats.neg_inf else stats.sum


def _number_stats(like: TensorStats, number: float) -> TensorStats:
    """Statistics of a single ``number``."""
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


def _rank_list(values: Sequence[Value]) -> str:
    return ", ".join(str(value.ranks[0]) for value in values)
