"""How large a jump must be to be reported, in real trainings."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from benchmarks import page
from studies.judgement.cache import Job, train_all
from studies.judgement.healthy import jobs
from studies.judgement.workloads import HEALTHY
from studies.spikes.false_alarms import as_run

from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.judge.stats.peaks_over_threshold import find_spikes
from trueline.laws.jumps import grad_spike, loss_spike
from trueline.laws.jumps.run_series import WholeRun, log_level, logs

STEPS = (50, 60, 100, 200, 500, 1500)
FOLDS = (1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)


def table(folder: Path, *, quick: bool) -> str:
    """Fraction of trainings (not those with a curriculum or that memorise) in which a fold at a step is told."""
    wanted = [job for job in jobs(HEALTHY, quick=quick) if not _odd(job)]
    train_all(wanted, folder)
    runs = [as_run(job.recorded(folder), job) for job in wanted]
    about = (
        f"{len(runs)} trainings. At one step the loss, or the norm of the gradient, is multiplied; what is reported "
        "must begin there."
    )
    rows = []
    for name, kind, least in (("loss", "loss", loss_spike.LEAST), ("norm", "norm", grad_spike.LEAST)):
        for step in STEPS:
            told = [_told(runs, name, kind, least, step, fold) for fold in FOLDS]
            rows.append([name, step, *(f"{one:.2f}" for one in told)])
    return about + "\n\n" + page.table(["series", "step", *(f"× {fold:g}" for fold in FOLDS)], rows)


def _odd(job: Job) -> bool:
    """Whether the loss of a training jumps by itself."""
    return any(word in job.workload.name for word in ("curriculum", "memorises", "spike"))


def _told(runs: list[WholeRun], name: str, kind: str, least: float, step: int, fold: float) -> float:
    line = log_level(AlarmBudget(), kind)
    hits: list[bool] = []
    for run in runs:
        log_T = logs(getattr(run, name))[: step + 1].copy()
        if len(log_T) == step + 1:
            log_T[step] = np.median(log_T[step - 16 : step]) + np.log(fold)
            found = find_spikes(log_T, log_level=line, least=float(np.log(least)), starts=run.starts)
            hits.append(any(spike.first == step for spike in found))
    return float(np.mean(hits)) if hits else float("nan")
