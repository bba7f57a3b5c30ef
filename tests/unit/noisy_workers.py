"""Healthy series with heavy tails, drift and common spikes, in which tests shift one worker."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from tests.unit.healthy_run import Rows

from trueline.laws.unlike_workers.series import WorkerSeries

SPREAD = 0.1
"""Standard deviation of loss and log norm over workers, about."""


def noisy_workers(num_workers: int, num_steps: int, *, num_groups: int = 0, seed: int = 5, **more: Any) -> WorkerSeries:
    """t(3) noise; a batch that is harder has a larger loss and norm; drift and one spike in 50 steps hit all alike."""
    rng = np.random.default_rng(seed)
    shape = (num_steps, num_workers)
    unit = SPREAD / math.sqrt(3)  # the variance of t(3) is 3
    common = np.cumsum(rng.normal(0, 0.02, (num_steps, 1)), axis=0) + 2.0 * (rng.random((num_steps, 1)) < 0.02)
    batch = unit * rng.standard_t(3, shape)
    log_norm = common + 0.6 * batch + 0.8 * unit * rng.standard_t(3, shape)
    cosine = 0.2 + 0.02 * rng.standard_t(3, shape)
    return WorkerSeries(
        steps=np.arange(num_steps, dtype=np.int64),
        ranks=tuple(range(num_workers)),
        loss=4 + common + 0.6 * batch + 0.8 * unit * rng.standard_t(3, shape),
        log_norm=log_norm,
        cosine=cosine,
        group_names=tuple(f"layer{g}" for g in range(num_groups)),
        group_log_norm=log_norm[:, :, None] + unit * rng.standard_t(3, (*shape, num_groups)),
        group_cosine=cosine[:, :, None] + 0.02 * rng.standard_t(3, (*shape, num_groups)),
        **more,
    )


def shifted(series: WorkerSeries, worker: int, *, since: int, until: int | None = None, **by: float) -> WorkerSeries:
    """The series with ``by`` (loss=..., log_norm=..., cosine=..., in their own units) added to one worker; norms and
    cosines in all groups too.
    """
    changed = {name: getattr(series, name).copy() for name in by}
    changed |= {f"group_{name}": getattr(series, f"group_{name}").copy() for name in by if name != "loss"}
    for name, values in changed.items():
        values[since:until, worker] += by[name.removeprefix("group_")]
    return replace(series, **changed)


def scaled(series: WorkerSeries, worker: int, factor: float, *, since: int, loss_too: bool) -> WorkerSeries:
    """The series with one worker's gradient, and its loss or not, multiplied."""
    series = shifted(series, worker, since=since, log_norm=math.log(factor))
    loss = series.loss.copy()
    loss[since:, worker] *= factor if loss_too else 1.0
    return replace(series, loss=loss)


def in_one_group(series: WorkerSeries, name: str, worker: int, group: int, *, since: int, by: float) -> WorkerSeries:
    """The series with ``by`` added to one group of one worker in ``group_log_norm`` or ``group_cosine``."""
    values = getattr(series, name).copy()
    values[since:, worker, group] += by
    return replace(series, **{name: values})


def rows_of(series: WorkerSeries) -> Rows:
    """The rows that a recorder would have left of such series, for ``write_run``; three groups, or none."""
    rows: Rows = {}
    for t, step in enumerate(series.steps.tolist()):
        for n, rank in enumerate(series.ranks):
            rows[step, rank] = {
                "loss": float(series.loss[t, n]),
                "grad_norm": math.exp(series.log_norm[t, n]),
                "cosine_others": float(series.cosine[t, n]),
            }
            if series.group_names:
                rows[step, rank] |= {
                    "group_grad_norms": np.exp(series.group_log_norm[t, n]),
                    "group_cosine_others": series.group_cosine[t, n],
                }
    return rows
