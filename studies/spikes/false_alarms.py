"""How many jumps are reported in series that are healthy, simulated and from real trainings."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks import page
from studies.judgement.cache import Job, train_all
from studies.judgement.healthy import jobs
from studies.judgement.tables import rate
from studies.judgement.workers import Recorded
from studies.judgement.workloads import HEALTHY
from studies.spikes.laws import Law

from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.laws.jumps import grad_spike, loss_spike
from trueline.laws.jumps.run_series import RISE, WholeRun
from trueline.schema.errors import CannotTell
from trueline.schema.plan import FALSE_ALARMS

PROMISES = (10.0, 1.0, FALSE_ALARMS)
"""False alarms per 10,000 steps that are asked for: the default last, and two at which there is more to be counted."""

JUMPING = ("LM, curriculum, warm-up", "MLP, memorises 512 rows")
"""Trainings whose loss does jump: where a stage of the curriculum begins, and from nearly zero to many times that."""

GROUPS = 4
RUN_STEPS = 2000


def simulated(laws: Mapping[str, Law], *, runs: int) -> str:
    """The table of the laws, ``runs`` runs of each: the loss, the norm and four groups each follow it by themselves."""
    return _table("law", ((name, _runs_of(name, law, runs)) for name, law in laws.items()))


def trainings(folder: Path, *, quick: bool) -> str:
    """The table of real trainings, all workers together, and of each first worker as a run of its own."""
    wanted = jobs(HEALTHY, quick=quick)
    train_all(wanted, folder)
    kinds: dict[str, list[Job]] = {}
    for job in wanted:
        kinds.setdefault(job.workload.name, []).append(job)
    return _table("training", ((name, _trained(chosen, folder)) for name, chosen in kinds.items()))


def as_run(recorded: Recorded, job: Job, *, workers: slice = slice(None)) -> WholeRun:
    """The series that a Run of these workers has, but for norms, which are the root mean square of the workers' own."""
    rates = np.array([job.workload.rate(step) for step in range(job.steps)])
    squared_TNG = np.exp(2 * recorded.group_log_norm[:, workers].astype(np.float64))
    return WholeRun(
        steps=np.arange(job.steps),
        ranks=tuple(range(job.workers))[workers],
        loss=recorded.loss[:, workers].astype(np.float64).mean(axis=1),
        norm=np.sqrt(squared_TNG.sum(axis=2).mean(axis=1)),
        group_names=recorded.groups,
        group_norm=np.sqrt(squared_TNG.mean(axis=1)),
        starts=tuple((1 + np.flatnonzero(rates[1:] > RISE * rates[:-1])).tolist()),
        of_mean=False,
    )


def spikes_in(series: WholeRun, budget: AlarmBudget) -> Counter[str]:
    """How many jumps each check tells of."""
    found: Counter[str] = Counter()
    for check in (loss_spike, grad_spike):
        with contextlib.suppress(CannotTell):
            found[check.CODE] += sum(one.evidence["num_spikes"] for one in check.judge(series, budget))
    return found


def _runs_of(name: str, law: Law, runs: int) -> Iterator[WholeRun]:
    rng = np.random.default_rng([len(name), *name.encode()])
    for _ in range(runs):
        all_ST = np.exp(law(rng, (2 + GROUPS, RUN_STEPS)))
        names = tuple(f"group {g}" for g in range(GROUPS))
        yield WholeRun(np.arange(RUN_STEPS), (0,), all_ST[0], all_ST[1], names, all_ST[2:].T)


def _trained(chosen: Iterable[Job], folder: Path) -> Iterator[WholeRun]:
    for job in chosen:
        recorded = job.recorded(folder)
        yield as_run(recorded, job)
        yield dataclasses.replace(as_run(recorded, job, workers=slice(1)))


def _table(label: str, kinds: Iterable[tuple[str, Iterator[WholeRun]]]) -> str:
    """One line a kind of run: its jumps under each budget, and which check they are of under the last."""
    rows = {name: _counted(series) for name, series in kinds}
    steady = [row for name, row in rows.items() if name not in JUMPING]
    sums = {"all": sum(rows.values(), Counter())}
    if len(steady) < len(rows):
        sums["all but the curriculum and those that memorise"] = sum(steady, Counter())
    head = [label, "runs", "steps", *(f"budget {promise:g}" for promise in PROMISES), "of these"]
    return page.table(head, [_cells(name, row) for name, row in (rows | sums).items()])


def _counted(kind: Iterable[WholeRun]) -> Counter[str]:
    row: Counter[str] = Counter()
    for series in kind:
        row["runs"] += 1
        row["steps"] += len(series.steps)
        for budget in PROMISES:
            found = spikes_in(series, AlarmBudget(budget))
            row[f"{budget:g}"] += found.total()
        row += found
    return row


def _cells(name: str, row: Counter[str]) -> list[Any]:
    rates = [f"{row[f'{promise:g}']}: {rate(row[f'{promise:g}'], row['steps'])}" for promise in PROMISES]
    told = ", ".join(f"{row[code]} {code}" for code in ("loss-spike", "grad-spike") if row[code])
    return [name, row["runs"], f"{row['steps']:,}", *rates, told]
