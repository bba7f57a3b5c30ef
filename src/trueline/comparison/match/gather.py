"""Values of one step from all ranks of a run: those of different ranks that are one value are put together.

Ranks that hold one model together are a *team*; teams share the batch, and so do the micro-batches of a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from trueline.comparison.match.call_pairs import updated_params
from trueline.comparison.match.names import plain_name
from trueline.judge.recorded.step_values import OF_BATCH, RankStep, StepValues, Value, read_rank_step
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run
from trueline.store.records.whole import ShardPlace

_PHASES = ("fwd", "save", "bwd", "comm", "param", "grad", "opt")


class Owner(NamedTuple):
    """Share of the batch that a value belongs to (team and micro-batch), and the member of the team that saw it."""

    team: int
    micro: int
    member: int


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """Value of one rank in one micro-batch; ``place`` is its position in a DTensor, None for plain tensors."""

    owner: Owner
    value: Value
    place: ShardPlace | None


@dataclass(eq=False, slots=True)
class Gathered:
    """One value of the step in parts, as all ranks saw it.

    ``first`` represents it until it is merged; its ``index`` and ``root`` are indices of ``Gathering.gathered``.
    """

    first: Value
    parts: list[Part] = field(default_factory=list[Part])


@dataclass(frozen=True, eq=False)
class Gathering:
    """All values of a step of one run.

    ``num_teams`` teams shared the batch, each in ``num_micro`` pieces (1 where these are compared one by one), whether
    or not all of them recorded it. ``whole`` is False where only the first rows of values were stored. ``params``
    identifies each rank's parameters by their numbers, see ``value_digest``.
    """

    label: str
    step: int
    ranks: tuple[int, ...]
    gathered: list[Gathered]
    num_teams: int
    num_micro: int
    whole: bool
    compiled: frozenset[str] = frozenset()
    params: frozenset[tuple[object, ...]] = frozenset()

    @property
    def values(self) -> StepValues:
        """Values that represent the entries, in order."""
        return StepValues(self.label, self.step, self.ranks, [entry.first for entry in self.gathered], self.compiled)


def read_ranks(run: Run, step: int, ranks: Sequence[int]) -> dict[int, RankStep]:
    """Read the step of each rank that recorded it, by rank."""
    steps = {rank: read_rank_step(run, step, rank) for rank in ranks}
    return {rank: rank_step for rank, rank_step in steps.items() if rank_step.values}


def num_micro(steps: Mapping[int, RankStep]) -> int:
    """Number of micro-batches of a step, as its forward passes count them."""
    micros = {value.site.micro for step in steps.values() for value in step.values if value.site.phase == "fwd"}
    return 1 + max(micros, default=0)


def gather(run: Run, step: int, steps: Mapping[int, RankStep], *, micros_apart: bool, alone: bool = False) -> Gathering:
    """Gather the values of all ranks by site, in the order of the first rank.

    A value of other ranks alone follows its predecessor there. With ``micros_apart`` the values of each micro-batch
    stay separate; with ``alone`` only the share of these ranks is meant, not the whole batch.

    Raises ``CannotTell`` where it is not known which ranks are a team.
    """
    teams = teams_of(run, steps)
    pieces = 1 if micros_apart else num_micro(steps)
    order, updates = _EntryOrder(), _UpdateNumbers()
    for rank, rank_step in steps.items():
        team, member = teams[rank]
        order.begin(rank)
        sightings: Counter[tuple[object, ...]] = Counter()
        for value in updates.renumber(list(_without_preparation(rank_step.values))):
            key, micro = _gather_key(value, sightings, micros_apart=micros_apart, pieces=pieces)
            if micro is None:
                continue
            order.add(key, value, Part(Owner(team, micro, member), value, rank_step.shard_places.get(value.index)))
    team_ids = {team for team, _ in teams.values()}
    data_parallel_ranks = set(run.manifest.data_parallel_ranks)
    # Teams that did not record have their share of the batch, too.
    num_teams = len(data_parallel_ranks) if set(steps) <= data_parallel_ranks and not alone else 0
    return Gathering(
        label=run.path,
        step=step,
        ranks=tuple(steps),
        gathered=order.finish(),
        num_teams=max(num_teams, len(team_ids)),
        num_micro=pieces,
        whole=all(rank_step.whole for rank_step in steps.values()),
        compiled=run.manifest.compiled,
        params=frozenset(
            value_digest(value)
            for rank_step in steps.values()
            for value in rank_step.values
            if value.site.phase == "param" and value.stats is not None
        ),
    )


def value_digest(value: Value) -> tuple[object, ...]:
    """Key that identifies a value of a rank by its numbers, at any site."""
    stats = value.stats
    numbers = () if stats is None else (stats.fingerprint, stats.min, stats.max, stats.sum, stats.sum_sq)
    return (value.ranks, value.shape, *numbers)


def teams_of(run: Run, steps: Mapping[int, RankStep]) -> dict[int, tuple[int, int]]:
    """Team of each rank and its index within the team, from activations that are DTensors, else from the manifest.

    Raises ``CannotTell`` where neither suffices.
    """
    coordinates = {rank: _coordinates(rank_step) for rank, rank_step in steps.items()}
    if not any(coordinates.values()):
        return _teams_by_manifest(run, list(steps))
    members = sorted(set(coordinates.values()))
    met: Counter[tuple[object, ...]] = Counter()
    teams: dict[int, tuple[int, int]] = {}
    for rank, coordinate in coordinates.items():
        teams[rank] = met[coordinate], members.index(coordinate)
        met[coordinate] += 1
    return teams


def _coordinates(rank_step: RankStep) -> tuple[tuple[object, int], ...]:
    """Coordinate of a rank on each axis of the meshes of its activations, as (axis, coordinate), sorted."""
    coordinates: dict[object, int] = {}
    for index, place in rank_step.shard_places.items():
        if rank_step.values[index].site.phase in OF_BATCH:
            names = place.names or tuple(f"axis {axis} of {place.sizes}" for axis in range(len(place.sizes)))
            coordinates |= dict(zip(names, place.coordinate, strict=True))
    return tuple(sorted(coordinates.items(), key=str))


def _teams_by_manifest(run: Run, ranks: list[int]) -> dict[int, tuple[int, int]]:
    first_ranks = [rank for rank in run.manifest.data_parallel_ranks if rank in ranks]
    if len(ranks) == 1 or set(ranks) <= set(first_ranks):
        return {rank: (index, 0) for index, rank in enumerate(ranks)}
    if run.manifest.adapter == "sharded" and first_ranks and len(ranks) % len(first_ranks) == 0:
        size = len(ranks) // len(first_ranks)
        if first_ranks == ranks[::size]:
            return {rank: divmod(index, size) for index, rank in enumerate(ranks)}
    raise CannotTell(
        f"{len(ranks)} ranks recorded '{run.path}', and it is not known which of them share the batch and which hold "
        f"one model together: the manifest names {first_ranks} as those whose gradients are averaged, and no "
        "activation is a DTensor. Compare with a run of the same ranks."
    )


def _without_preparation(values: Sequence[Value]) -> Iterator[Value]:
    """Leave out values of calls that prepare a micro-batch before the first module takes it.

    The way in which a script divides a batch depends on the number of ranks and micro-batches.
    """
    begins: dict[int, int] = {}
    for value in values:
        if value.in_model:
            begins.setdefault(value.site.micro, value.index)
    dropped: set[int] = set()
    new_roots: dict[int, int] = {}
    for value in values:
        site = value.site
        if site.phase == "fwd" and value.kind == "op" and value.index < begins.get(site.micro, 0):
            dropped.add(value.index)
        elif value.root in dropped:
            yield replace(value, root=new_roots.setdefault(value.root, value.index))
        else:
            yield value


def _gather_key(
    value: Value, sightings: Counter[tuple[object, ...]], *, micros_apart: bool, pieces: int
) -> tuple[tuple[object, ...], int | None]:
    """Key of a value on all ranks, and its micro-batch, None where it repeats another value."""
    site = value.site
    of_batch = site.phase in OF_BATCH
    key = (site.phase, site.name, site.call, site.slot, value.kind)
    repetition = sightings[(site.micro, *key)]
    sightings[(site.micro, *key)] += 1
    if micros_apart or not of_batch:
        return (*key, repetition, site.micro), 0
    if value.kind == "param" and pieces > 1:  # the gradient of a parameter arrives once in every backward
        return (*key, 0, 0), repetition
    # The gradient of a parameter also arrives at the calls of earlier micro-batches, when that of a later one does.
    repeated = pieces > 1 and site.phase == "bwd" and repetition > 0 and value.root < value.index
    return (*key, repetition, 0), None if repeated else site.micro


class _UpdateNumbers:
    """Common numbering of the optimizer's calls for all ranks.

    Where ranks hold different parameters, as the stages of a pipeline do, one recorded number is a call on another
    parameter on each rank.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._taken_numbers: dict[str, set[int]] = {}

    def renumber(self, values: Sequence[Value]) -> Sequence[Value]:
        """Renumber the values of a rank: calls on parameters that other ranks lack get numbers of their own."""
        params = updated_params(values, plain_name)
        num_calls: Counter[tuple[str, str]] = Counter()
        new_numbers: dict[tuple[int, str, int], int] = {}
        renumbered: list[Value] = []
        for value in values:
            site = value.site
            if site.phase != "opt" or value.kind != "op":
                renumbered.append(value)
                continue
            key = (site.micro, site.name, site.call)
            if key not in new_numbers:
                param = params.get(value.index, "")
                new_numbers[key] = self._number(site.name, param, num_calls[site.name, param], site.call)
                num_calls[site.name, param] += 1
            unchanged = new_numbers[key] == site.call
            renumbered.append(value if unchanged else replace(value, site=replace(site, call=new_numbers[key])))
        return renumbered

    def _number(self, name: str, param: str, ordinal: int, recorded: int) -> int:
        taken_numbers = self._taken_numbers.setdefault(name, set())
        number = self._numbers.get((name, param, ordinal))
        if number is None:
            number = recorded if recorded not in taken_numbers else max(taken_numbers) + 1
            self._numbers[name, param, ordinal] = number
            taken_numbers.add(number)
        return number


class _EntryOrder:
    """Collector of entries, in the order of the first rank."""

    def __init__(self) -> None:
        self._entries: dict[tuple[object, ...], Gathered] = {}
        self._sort_keys: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._ends: dict[str, int] = {}
        self._entry_ids: dict[tuple[int, int], int] = {}
        self._rank = 0
        self._first = True
        self._last: dict[str, int] = {}

    def begin(self, rank: int) -> None:
        """Start the values of ``rank``."""
        self._first = self._first and not self._entries
        self._rank, self._last = rank, {}

    def add(self, key: tuple[object, ...], value: Value, part: Part) -> None:
        """Add one part of a value."""
        entry = self._entries.get(key)
        phase = value.site.phase
        if entry is None:
            entry = self._entries[key] = Gathered(value)
            if self._first:
                sort_key = (value.index, 0, 0, 0)
                self._ends[phase] = value.index
            else:
                # A later stage of a pipeline runs after the first one, and its backward pass before that one's.
                predecessor = self._last.get(phase, self._ends.get("fwd" if phase == "bwd" else phase, -1))
                phase_rank = _PHASES.index(phase) if phase in _PHASES else len(_PHASES)
                sort_key = (predecessor, 1 + phase_rank, -self._rank if phase == "bwd" else self._rank, value.index)
            self._sort_keys[key] = sort_key
        self._last[phase] = self._sort_keys[key][0]
        entry.parts.append(part)
        self._entry_ids[self._rank, value.index] = id(entry)

    def finish(self) -> list[Gathered]:
        """Return all entries in order, with renumbered representing values."""
        entries = [self._entries[key] for key in sorted(self._entries, key=lambda key: self._sort_keys[key])]
        index = {id(entry): position for position, entry in enumerate(entries)}
        for position, entry in enumerate(entries):
            value = entry.first
            root = index[self._entry_ids[value.ranks[0], value.root]]
            entry.first = replace(value, index=position, root=root if root < position else position)
        return entries
