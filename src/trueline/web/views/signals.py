"""What can be drawn over ranks and steps: numbers of the table ``workers``, and those of one parameter group or layer;
and over steps alone: how far apart the workers are.

T steps, N ranks, K values of a list column.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from trueline.schema.column import Column
from trueline.schema.columns.table import worker_columns
from trueline.schema.errors import InputError
from trueline.store.reader import Run
from trueline.web.watched_run import WatchedRun

SignalSubject = Literal["rank", "job", "group"]
"""Whose numbers a signal has."""

_NUMBERS = ("float64", "float32", "int64", "int32")
_LEFT_OUT = frozenset({"step", "rank", "time_ns", "loss_operations"})
"""Scalars that are no measure of anything."""
_TITLES = {"loss": "Loss", "grad_norm": "Gradient norm", "cosine_others": "Gradient direction"}
"""Columns that are offered first."""
DISPERSIONS = {
    "loss_std": ("Loss: standard deviation", "over workers, N − 1"),
    "norm_std": ("Gradient norm: standard deviation", "over workers, N − 1"),
    "norm_cv": ("Gradient norm: coefficient of variation", "standard deviation over mean of the workers"),
    "cosine_mean": ("Gradient direction: mean pairwise cosine", "over all pairs: 1 the same, 0 unrelated, −1 opposite"),
    "loss_range": ("Loss: range", "largest less smallest worker"),
    "norm_range": ("Gradient norm: range", "largest less smallest worker"),
}
"""Fields of ``Dispersion``, what they are called, and what they mean."""
_OF_JOB, _OF_GROUPS = "job/", "groups/"
_MAX_GROUPS = 400
"""Parameter groups of a column that are offered."""


@dataclass(frozen=True, slots=True)
class Signal:
    """Something to draw: ``key`` is a column, or a column, a slash and the name of a parameter group, and its numbers
    are ``of`` ranks; ``groups/`` and a column is of all parameter groups, ``job/`` and a field of ``Dispersion`` of the
    job.
    """

    key: str
    title: str
    meaning: str
    unit: str
    group: str = ""
    of: SignalSubject = "rank"


@dataclass(frozen=True, slots=True)
class Signals:
    """What a Run has to draw, first what says most; its ranks with the machine of each, and the steps of its rows.

    ``flagged`` are ranks that an error or warning names, unless it names all. ``began`` are the steps since when
    incidents are there. ``truncated`` is how many parameter groups are not offered.
    """

    signals: tuple[Signal, ...]
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    step_first: int | None
    step_last: int | None
    num_steps: int
    flagged: tuple[int, ...]
    began: tuple[int, ...]
    truncated: int


def signals_of(watched: WatchedRun) -> Signals:
    """What can be drawn of a Run."""
    run = watched.run
    groups = [group.name for group in next(iter(run.env.values())).groups] if run.env else []
    columns = [
        Signal(column.name, title_of(column.name), column.meaning, column.unit)
        for column in _by_weight()
        if run.column(column.name).null_count < len(run.column(column.name))
    ]
    signals = [*columns[: len(_TITLES)], *_dispersions(watched), *columns[len(_TITLES) :]]
    for column in _lists():
        name = column.name
        if len(groups) > 1 and run.column(name).null_count < len(run.column(name)):
            signals.append(
                Signal(f"{_OF_GROUPS}{name}", f"{title_of(name)}: all groups", column.meaning, column.unit, of="group")
            )
            signals += [
                Signal(f"{name}/{group}", f"{title_of(name)}: {group}", column.meaning, column.unit, group)
                for group in groups[:_MAX_GROUPS]
            ]
    return Signals(
        signals=tuple(signals),
        ranks=tuple(run.ranks),
        hosts=tuple(run.env[rank].hostname if rank in run.env else "" for rank in run.ranks),
        step_first=int(run.steps[0]) if run.steps.size else None,
        step_last=watched.last_step,
        num_steps=int(run.steps.size),
        flagged=flagged_of(watched),
        began=_began(watched),
        truncated=max(len(groups) - _MAX_GROUPS, 0),
    )


def of_job(key: str) -> str:
    """The field of ``Dispersion`` that a signal is, "" for one of ranks."""
    return key.removeprefix(_OF_JOB) if key.startswith(_OF_JOB) else ""


def of_groups(key: str) -> str:
    """The column whose parameter groups a signal is about, "" for others."""
    return key.removeprefix(_OF_GROUPS) if key.startswith(_OF_GROUPS) else ""


def groups_of(watched: WatchedRun, column: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Names of parameter groups, and [T, K] the worst value of any rank (see ``worst_end``) and where one was measured;
    NaN where any rank has it. Raises ``InputError``.
    """
    run = watched.run
    names = [group.name for group in next(iter(run.env.values())).groups] if run.env else []
    if column not in _list_names() or not names:
        raise InputError(f"'{_OF_GROUPS}{column}' cannot be drawn. Ask for one of those that `signals` lists.")
    steps_R, _, lengths_R, flat = run.flat(column)
    # a row of another Layout has other groups
    whole_R = lengths_R == len(names)
    begins_R = (np.cumsum(lengths_R) - lengths_R)[whole_R]
    low = worst_end(column) == "low"
    values_TK = np.full((len(run.steps), len(names)), np.inf if low else -np.inf)
    at_R = np.searchsorted(run.steps, steps_R[whole_R])
    # unbuffered: several ranks write to the cell of one step, and the worst of them stays
    (np.minimum if low else np.maximum).at(values_TK, at_R, flat[begins_R[:, None] + np.arange(len(names))])
    measured_TK = np.zeros(values_TK.shape, dtype=bool)
    measured_TK[at_R] = True
    return names, values_TK, measured_TK


def groups_over_ranks(watched: WatchedRun, column: str, step: int) -> tuple[list[str], int, np.ndarray, np.ndarray]:
    """Names of parameter groups, the measured step nearest to ``step``, and [N, K] the values there and where they were
    measured. Raises ``InputError``.
    """
    names, _, measured_TK = groups_of(watched, column)
    run = watched.run
    steps = run.steps[measured_TK.any(axis=1)]
    if not steps.size:
        raise InputError(f"No step has numbers of '{column}'.")
    nearest = int(steps[np.abs(steps - step).argmin()])
    values_NK = np.full((len(run.ranks), len(names)), np.nan)
    measured_NK = np.zeros(values_NK.shape, dtype=bool)
    for (_, rank), values in run.lists(column, steps=[nearest]).items():
        if len(values) == len(names):
            index = run.ranks.index(rank)
            values_NK[index], measured_NK[index] = values, True
    return names, nearest, values_NK, measured_NK


def _dispersions(watched: WatchedRun) -> list[Signal]:
    results = watched.judgement.results
    if results is None or len(results.dispersion.ranks) < 2:
        return []
    return [
        Signal(f"{_OF_JOB}{name}", title, meaning, "", of="job")
        for name, (title, meaning) in DISPERSIONS.items()
        if not np.isnan(getattr(results.dispersion, name)).all()
    ]


def title_of(column: str) -> str:
    """What a column is called where it is drawn."""
    return _TITLES.get(column) or column.replace("_", " ").capitalize()


def values_of(watched: WatchedRun, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Values [T, N] float64 of a signal and where they were measured. Raises ``InputError`` for an unknown one."""
    column, slash, group = key.partition("/")
    if not slash and column in {scalar.name for scalar in _scalars()}:
        return watched.pivot(column)
    if slash and column in _list_names():
        return _of_group(watched.run, column, group)
    raise InputError(f"'{key}' cannot be drawn. Ask for one of those that `signals` lists.")


def worst_end(key: str) -> Literal["low", "high"]:
    """Which end of a signal is the worse one: of a cosine the low one."""
    return "low" if "cosine" in key and not key.startswith("cosine_se") else "high"


def flagged_of(watched: WatchedRun) -> tuple[int, ...]:
    """Ranks that an error or warning names, unless it names all of them."""
    report = watched.judgement.report
    all_ranks = set(watched.run.ranks)
    accused = {
        rank
        for finding in (report.findings if report else ())
        if finding.is_grave and set(finding.ranks) != all_ranks
        for rank in finding.ranks
    }
    return tuple(sorted(accused & all_ranks))


def _began(watched: WatchedRun) -> tuple[int, ...]:
    report = watched.judgement.report
    incidents = report.incidents if report else ()
    return tuple(sorted({incident.step_first for incident in incidents if incident.step_first is not None}))


def _of_group(run: Run, column: str, group: str) -> tuple[np.ndarray, np.ndarray]:
    values_TN = np.full((len(run.steps), len(run.ranks)), np.nan)
    measured_TN = np.zeros(values_TN.shape, dtype=bool)
    names = [entry.name for entry in next(iter(run.env.values())).groups] if run.env else []
    if group not in names:
        raise InputError(f"There is no parameter group '{group}'. Ask for one of those that `signals` lists.")
    index = names.index(group)
    steps_R, ranks_R, lengths_R, flat = run.flat(column)
    begins_R = np.cumsum(lengths_R) - lengths_R
    has_R = lengths_R > index
    at = np.searchsorted(run.steps, steps_R[has_R]), np.searchsorted(np.asarray(run.ranks), ranks_R[has_R])
    values_TN[at] = flat[begins_R[has_R] + index]
    measured_TN[at] = True
    return values_TN, measured_TN


def _scalars() -> list[Column]:
    return [column for column in worker_columns() if column.type in _NUMBERS and column.name not in _LEFT_OUT]


def _lists() -> list[Column]:
    """Columns with a number for each parameter group."""
    return [
        column for column in worker_columns() if column.type == "list<float64>" and column.name.startswith("group_")
    ]


def _list_names() -> list[str]:
    return [column.name for column in _lists()]


def _by_weight() -> list[Column]:
    first = list(_TITLES)
    return sorted(_scalars(), key=lambda column: first.index(column.name) if column.name in first else len(first))
