"""States of the parameters that each rank holds, step by step, and where ranks come to hold them differently."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trueline.judge.compared_ranks import data_parallel_ranks, odd_ranks
from trueline.schema.files.run_manifest import ParamState, RankEnv
from trueline.store.reader import Run

TRAINS, FROZEN, ABSENT = "trains", "frozen", "absent"


@dataclass(frozen=True)
class Parting:
    """Parameters that ranks hold differently from ``step`` to ``step_last``: ``values`` by rank, of one ``aspect``
    (state, dtype, shape, replaced). ``odd`` are the ranks to report, ``changed`` those that changed at ``step``.
    """

    aspect: str
    names: tuple[str, ...]
    values: Mapping[int, str]
    odd: tuple[int, ...]
    changed: frozenset[int]
    step: int
    step_last: int


def find_partings(run: Run) -> list[Parting]:
    """Steps from which ranks hold parameters differently, in order; parameters that part together are one Parting."""
    ranks = [rank for rank in data_parallel_ranks(run) if rank in run.env]
    names = {change.name for rank in ranks for change in run.env[rank].changes if change.name}
    names |= {state.name for rank in ranks for state in run.env[rank].apart}
    if len(ranks) < 2 or not names or not len(run.steps):
        return []
    last_steps = {rank: _last_step(run, rank) for rank in ranks}
    timelines = {rank: _timeline(run.env[rank], names) for rank in ranks}
    steps = sorted({int(run.steps[0])} | {change.step for rank in ranks for change in run.env[rank].changes})
    names_by_key: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
    partings: dict[tuple[object, ...], Parting] = {}
    for name in sorted(names):
        for parting in _partings_of_param(name, timelines, last_steps, steps=steps, end=int(run.steps[-1])):
            key = (parting.step, parting.step_last, parting.aspect, *parting.values.items())
            names_by_key[key].append(name)
            partings.setdefault(key, parting)
    merged = [replace(parting, names=tuple(names_by_key[key])) for key, parting in partings.items()]
    return sorted(merged, key=lambda parting: (parting.step, parting.aspect, parting.names))


_Timeline = dict[str, list[tuple[int, dict[str, str]]]]
"""By name of a parameter, the value of each aspect from a step on; '' where it is not known."""


def _timeline(env: RankEnv, names: set[str]) -> _Timeline:
    first = env.lists[0] if env.lists else env
    trains = dict(zip(first.params, first.requires_grad, strict=False))
    dtypes = dict(zip(first.params, first.param_dtypes, strict=False))
    shapes = dict(zip(first.params, first.param_shapes, strict=False))
    start = {name: ParamState(name=name) for name in names}
    start |= {name: ParamState(name=name, trains=False) for name in first.frozen}
    start |= {
        name: ParamState(name=name, trains=trains[name], dtype=dtypes.get(name, ""), shape=shapes.get(name, []))
        for name in trains
    }
    # the manifest lists parameters of the first rank, and these where this rank differs
    start |= {state.name: state for state in env.apart}
    timeline: _Timeline = {name: [(-1, _aspects(start[name], replaced=0))] for name in names}
    num_replaced: defaultdict[str, int] = defaultdict(int)
    for change in env.changes:
        if change.name:
            num_replaced[change.name] += change.replaced
            timeline[change.name].append((change.step, _aspects(change, replaced=num_replaced[change.name])))
    return timeline


def _aspects(state: ParamState, *, replaced: int) -> dict[str, str]:
    is_held = state.trains is not None
    return {
        "state": ABSENT if not is_held else TRAINS if state.trains else FROZEN,
        "dtype": state.dtype if is_held else "",
        "shape": str(state.shape) if is_held and state.dtype else "",
        "replaced": str(replaced) if is_held else "",
    }


def _partings_of_param(
    name: str, timelines: Mapping[int, _Timeline], last_steps: Mapping[int, int], *, steps: Sequence[int], end: int
) -> Iterator[Parting]:
    """Partings of one parameter: for each aspect the first, until ranks hold it equally again."""
    for aspect in ("state", "dtype", "shape", "replaced"):
        open_: Parting | None = None
        before: dict[int, str] = {}
        for step in steps:
            values = {
                rank: _aspects_at(timeline[name], step)[aspect]
                for rank, timeline in timelines.items()
                if last_steps[rank] >= step
            }
            value_of = {rank: value for rank, value in values.items() if value}
            differ = len(set(value_of.values())) > 1
            if differ and open_ is None:
                changed = frozenset(rank for rank, value in value_of.items() if before.get(rank, value) != value)
                odd = odd_ranks(value_of)
                # without a majority, those that have just changed are the ones to look at
                if len(odd) == len(value_of) and 0 < len(changed) < len(value_of):
                    odd = tuple(sorted(changed))
                open_ = Parting(aspect, (name,), value_of, odd, changed, step=step, step_last=end)
            elif open_ is not None and not differ and len(value_of) == len(open_.values):
                yield replace(open_, step_last=step - 1)
                open_ = None
            before = values
        if open_ is not None:
            yield open_


def _aspects_at(timeline: Sequence[tuple[int, dict[str, str]]], step: int) -> dict[str, str]:
    return next(aspects for step_first, aspects in reversed(timeline) if step_first <= step)


def _last_step(run: Run, rank: int) -> int:
    """The last step that the rank has finished while its parameters were followed, -1 where there is none."""
    measured_T = run.pivot("time_ns")[1][:, run.ranks.index(rank)]
    last_row = int(run.steps[measured_T][-1]) if measured_T.any() else -1
    # a change without a name says that parameters are followed no longer
    return min([last_row, *(change.step - 1 for change in run.env[rank].changes if not change.name)])
