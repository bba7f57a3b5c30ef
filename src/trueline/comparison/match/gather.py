"""Gathers the values of one step from all ranks of a run: which values of different ranks are one.

Ranks that hold one model together are a *team*; teams share the batch, and so do the micro-batches of a step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from trueline.comparison.match.call_pairs import updated
from trueline.comparison.match.names import plain_name
from trueline.judge.recorded.step_values import OF_BATCH, RankStep, StepValues, Value, read_rank_step
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run
from trueline.store.records.whole import Place

_PHASES = ("fwd", "save", "bwd", "comm", "param", "grad", "opt")


class Owner(NamedTuple):
    """The share of the batch that a value belongs to (team and micro-batch), and the member of the team that saw it."""

    team: int
    micro: int
    member: int


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """What one rank saw in one micro-batch; ``place`` says where it lies in a DTensor, if it does."""

    owner: Owner
    value: Value
    place: Place | None


@dataclass(eq=False, slots=True)
class Gathered:
    """One value of the step as all ranks saw it. ``first`` represents it until it is merged; its ``index`` and
    ``root`` are indices of ``Gathering.gathered``.
    """

    first: Value
    parts: list[Part] = field(default_factory=list[Part])


@dataclass(frozen=True, eq=False)
class Gathering:
    """All values of a step of one run. ``num_teams`` teams shared the batch, each in ``num_micro`` pieces (1 where
    these are compared one by one), whether or not all of them recorded it. ``whole`` is False where only the first rows
    of values were stored. ``params`` identifies each rank's parameters by their numbers, see ``numbers_of``.
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
        """One value for each entry: the one that represents it."""
        return StepValues(self.label, self.step, self.ranks, [entry.first for entry in self.gathered], self.compiled)


def read_ranks(run: Run, step: int, ranks: Sequence[int]) -> dict[int, RankStep]:
    """The step of each rank that recorded it, by rank."""
    read = {rank: read_rank_step(run, step, rank) for rank in ranks}
    return {rank: found for rank, found in read.items() if found.values}


def num_micro(steps: Mapping[int, RankStep]) -> int:
    """Micro-batches of a step, as its forward passes count them."""
    micros = {value.site.micro for step in steps.values() for value in step.values if value.site.phase == "fwd"}
    return 1 + max(micros, default=0)


def gather(run: Run, step: int, steps: Mapping[int, RankStep], *, micros_apart: bool, alone: bool = False) -> Gathering:
    """The values of all ranks by where they were seen, in the order of the first rank; what only others saw follows
    what it follows there. With ``micros_apart`` the values of each micro-batch stay separate; ``alone``: only the share
    of these ranks is meant, not the whole batch.

    Raises ``CannotTell`` where it is not known which ranks are a team.
    """
    teams = teams_of(run, steps)
    pieces = 1 if micros_apart else num_micro(steps)
    order, updates = _Order(), _Updates()
    for rank, rank_step in steps.items():
        team, member = teams[rank]
        order.begin(rank)
        seen: Counter[tuple[object, ...]] = Counter()
        for value in updates.numbered(list(_without_preparation(rank_step.values))):
            key, micro = _key(value, seen, micros_apart=micros_apart, pieces=pieces)
            if micro is None:
                continue
            order.add(key, value, Part(Owner(team, micro, member), value, rank_step.places.get(value.index)))
    shares = {team for team, _ in teams.values()}
    own = set(run.manifest.data_parallel_ranks)
    return Gathering(
        label=run.path,
        step=step,
        ranks=tuple(steps),
        gathered=order.finish(),
        num_teams=max(len(shares), len(own) if set(steps) <= own and not alone else 0),
        num_micro=pieces,
        whole=all(rank_step.whole for rank_step in steps.values()),
        compiled=run.manifest.compiled,
        params=frozenset(
            numbers_of(value)
            for rank_step in steps.values()
            for value in rank_step.values
            if value.site.phase == "param" and value.stats is not None
        ),
    )


def numbers_of(value: Value) -> tuple[object, ...]:
    """A key that identifies a value of a rank by its numbers, wherever it was seen."""
    stats = value.stats
    known = () if stats is None else (stats.fingerprint, stats.min, stats.max, stats.sum, stats.sum_sq)
    return (value.ranks, value.shape, *known)


def teams_of(run: Run, steps: Mapping[int, RankStep]) -> dict[int, tuple[int, int]]:
    """By rank: its team, and its index within the team, from activations that are DTensors, else from the manifest.

    Raises ``CannotTell`` where neither says so.
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
    """Where a rank is on each axis of the meshes over which activations lie."""
    found: dict[object, int] = {}
    for index, place in rank_step.places.items():
        if rank_step.values[index].site.phase in OF_BATCH:
            names = place.names or tuple(f"axis {axis} of {place.sizes}" for axis in range(len(place.sizes)))
            found |= dict(zip(names, place.coordinate, strict=True))
    return tuple(sorted(found.items(), key=str))


def _teams_by_manifest(run: Run, ranks: list[int]) -> dict[int, tuple[int, int]]:
    own = [rank for rank in run.manifest.data_parallel_ranks if rank in ranks]
    if len(ranks) == 1 or set(ranks) <= set(own):
        return {rank: (index, 0) for index, rank in enumerate(ranks)}
    if run.manifest.adapter == "sharded" and own and len(ranks) % len(own) == 0:
        size = len(ranks) // len(own)
        if own == ranks[::size]:
            return {rank: divmod(index, size) for index, rank in enumerate(ranks)}
    raise CannotTell(
        f"{len(ranks)} ranks recorded '{run.path}', and it is not known which of them share the batch and which hold "
        f"one model together: the manifest names {own} as those whose gradients are averaged, and no activation is a "
        "DTensor. Compare with a run of the same ranks."
    )


def _without_preparation(values: Sequence[Value]) -> Iterator[Value]:
    """The values but for those of calls that prepare a micro-batch before the first module takes it: how a script
    shares a batch out depends on how many ranks and micro-batches share it.
    """
    begins: dict[int, int] = {}
    for value in values:
        if value.in_model:
            begins.setdefault(value.site.micro, value.index)
    left_out: set[int] = set()
    seen: dict[int, int] = {}
    for value in values:
        site = value.site
        if site.phase == "fwd" and value.kind == "op" and value.index < begins.get(site.micro, 0):
            left_out.add(value.index)
        elif value.root in left_out:
            yield replace(value, root=seen.setdefault(value.root, value.index))
        else:
            yield value


def _key(
    value: Value, seen: Counter[tuple[object, ...]], *, micros_apart: bool, pieces: int
) -> tuple[tuple[object, ...], int | None]:
    """The key of a value on all ranks, and the micro-batch that it belongs to; None where it repeats another value."""
    site = value.site
    of_batch = site.phase in OF_BATCH
    key = (site.phase, site.name, site.call, site.slot, value.kind)
    again = seen[(site.micro, *key)]
    seen[(site.micro, *key)] += 1
    if micros_apart or not of_batch:
        return (*key, again, site.micro), 0
    if value.kind == "param" and pieces > 1:  # the gradient of a parameter arrives once in every backward
        return (*key, 0, 0), again
    # The gradient of a parameter also arrives at the calls of earlier micro-batches, when that of a later one does.
    repeated = pieces > 1 and site.phase == "bwd" and again > 0 and value.root < value.index
    return (*key, again, 0), None if repeated else site.micro


class _Updates:
    """Numbers the calls of the optimizer in one way for all ranks. Where ranks hold different parameters, as the stages
    of a pipeline do, one number is a call on another parameter on each rank.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._used: dict[str, set[int]] = {}

    def numbered(self, values: Sequence[Value]) -> Sequence[Value]:
        """The values of a rank; calls on parameters that other ranks do not have get numbers of their own."""
        params = updated(values, plain_name)
        met: Counter[tuple[str, str]] = Counter()
        moved: dict[tuple[int, str, int], int] = {}
        done: list[Value] = []
        for value in values:
            site = value.site
            if site.phase != "opt" or value.kind != "op":
                done.append(value)
                continue
            key = (site.micro, site.name, site.call)
            if key not in moved:
                param = params.get(value.index, "")
                moved[key] = self._number(site.name, param, met[site.name, param], site.call)
                met[site.name, param] += 1
            same = moved[key] == site.call
            done.append(value if same else replace(value, site=replace(site, call=moved[key])))
        return done

    def _number(self, name: str, param: str, ordinal: int, own: int) -> int:
        used = self._used.setdefault(name, set())
        found = self._numbers.get((name, param, ordinal))
        if found is None:
            found = own if own not in used else max(used) + 1
            self._numbers[name, param, ordinal] = found
            used.add(found)
        return found


class _Order:
    """Entries in the order of the first rank, as ranks add to them."""

    def __init__(self) -> None:
        self._entries: dict[tuple[object, ...], Gathered] = {}
        self._place: dict[tuple[object, ...], tuple[int, ...]] = {}
        self._ends: dict[str, int] = {}
        self._at: dict[tuple[int, int], int] = {}
        self._rank = 0
        self._first = True
        self._last: dict[str, int] = {}

    def begin(self, rank: int) -> None:
        """Start with the values of ``rank``."""
        self._first = self._first and not self._entries
        self._rank, self._last = rank, {}

    def add(self, key: tuple[object, ...], value: Value, part: Part) -> None:
        """One more part of a value."""
        entry = self._entries.get(key)
        phase = value.site.phase
        if entry is None:
            entry = self._entries[key] = Gathered(value)
            if self._first:
                place = (value.index, 0, 0, 0)
                self._ends[phase] = value.index
            else:
                # A later stage of a pipeline runs after the first one, and its backward pass before that one's.
                after = self._last.get(phase, self._ends.get("fwd" if phase == "bwd" else phase, -1))
                late = _PHASES.index(phase) if phase in _PHASES else len(_PHASES)
                place = (after, 1 + late, -self._rank if phase == "bwd" else self._rank, value.index)
            self._place[key] = place
        self._last[phase] = self._place[key][0]
        entry.parts.append(part)
        self._at[self._rank, value.index] = id(entry)

    def finish(self) -> list[Gathered]:
        """All entries in order, the values that represent them renumbered."""
        entries = [self._entries[key] for key in sorted(self._entries, key=lambda key: self._place[key])]
        index = {id(entry): place for place, entry in enumerate(entries)}
        for place, entry in enumerate(entries):
            value = entry.first
            root = index[self._at[value.ranks[0], value.root]]
            entry.first = replace(value, index=place, root=root if root < place else place)
        return entries
