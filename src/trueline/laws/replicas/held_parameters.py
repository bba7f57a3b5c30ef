"""Which parameters each rank held, in which state, from which step on; and where ranks part."""

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


def partings(run: Run) -> list[Parting]:
    """Where ranks come to hold parameters differently, the first first; parameters that do so together are one."""
    ranks = [rank for rank in data_parallel_ranks(run) if rank in run.env]
    names = {change.name for rank in ranks for change in run.env[rank].changes if change.name}
    names |= {state.name for rank in ranks for state in run.env[rank].apart}
    if len(ranks) < 2 or not names or not len(run.steps):
        return []
    last = {rank: _last_step(run, rank) for rank in ranks}
    lines = {rank: _timeline(run.env[rank], names) for rank in ranks}
    steps = sorted({int(run.steps[0])} | {change.step for rank in ranks for change in run.env[rank].changes})
    together: defaultdict[tuple[object, ...], list[str]] = defaultdict(list)
    found: dict[tuple[object, ...], Parting] = {}
    for name in sorted(names):
        for one in _of(name, lines, last, steps=steps, end=int(run.steps[-1])):
            key = (one.step, one.step_last, one.aspect, *one.values.items())
            together[key].append(name)
            found.setdefault(key, one)
    merged = [replace(one, names=tuple(together[key])) for key, one in found.items()]
    return sorted(merged, key=lambda one: (one.step, one.aspect, one.names))


_Line = dict[str, list[tuple[int, dict[str, str]]]]
"""By name of a parameter, from which step on each aspect of it has which value; '' for one that is not known."""


def _timeline(env: RankEnv, names: set[str]) -> _Line:
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
    start |= {state.name: state for state in env.apart}
    line: _Line = {name: [(-1, _aspects(start[name], replaced=0))] for name in names}
    count: defaultdict[str, int] = defaultdict(int)
    for change in env.changes:
        if change.name:
            count[change.name] += change.replaced
            line[change.name].append((change.step, _aspects(change, replaced=count[change.name])))
    return line


def _aspects(state: ParamState, *, replaced: int) -> dict[str, str]:
    held = state.trains is not None
    return {
        "state": ABSENT if not held else TRAINS if state.trains else FROZEN,
        "dtype": state.dtype if held else "",
        "shape": str(state.shape) if held and state.dtype else "",
        "replaced": str(replaced) if held else "",
    }


def _of(
    name: str, lines: Mapping[int, _Line], last: Mapping[int, int], *, steps: Sequence[int], end: int
) -> Iterator[Parting]:
    """The partings of one parameter: for each aspect the first, until ranks hold it equally again."""
    for aspect in ("state", "dtype", "shape", "replaced"):
        open_: Parting | None = None
        before: dict[int, str] = {}
        for step in steps:
            values = {rank: _at(lines[rank][name], step)[aspect] for rank in lines if last[rank] >= step}
            known = {rank: value for rank, value in values.items() if value}
            apart = len(set(known.values())) > 1
            if apart and open_ is None:
                changed = frozenset(rank for rank in known if before.get(rank, known[rank]) != known[rank])
                odd = odd_ranks(known)
                if len(odd) == len(known) and 0 < len(changed) < len(known):
                    odd = tuple(sorted(changed))
                open_ = Parting(aspect, (name,), known, odd, changed, step=step, step_last=end)
            elif open_ is not None and not apart and len(known) == len(open_.values):
                yield replace(open_, step_last=step - 1)
                open_ = None
            before = values
        if open_ is not None:
            yield open_


def _at(line: Sequence[tuple[int, dict[str, str]]], step: int) -> dict[str, str]:
    return next(aspects for since, aspects in reversed(line) if since <= step)


def _last_step(run: Run, rank: int) -> int:
    """The last step that the rank has finished while its parameters were followed, -1 where there is none."""
    there = run.pivot("time_ns")[1][:, run.ranks.index(rank)]
    ended = int(run.steps[there][-1]) if there.any() else -1
    return min([ended, *(change.step - 1 for change in run.env[rank].changes if not change.name)])
