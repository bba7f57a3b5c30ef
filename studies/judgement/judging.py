"""What the seven checks say about recorded trainings, as plain rows that a table can be made from."""

from __future__ import annotations

import contextlib
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from studies.judgement.workers import Recorded

from trueline.judge.registry import installed_checks
from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.laws.unlike_workers.series import WorkerSeries
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.plan import FALSE_ALARMS

CHECKS = (
    "worker_loss_outlier",
    "worker_grad_norm_outlier",
    "worker_direction_outlier",
    "worker_scale",
    "dispersion_high",
    "dispersion_low",
    "token_imbalance",
)
Judge = Callable[[WorkerSeries, AlarmBudget], list[Finding]]


@dataclass(frozen=True)
class Told:
    """One finding, in short. ``crossed``: the step at which it could first be told."""

    code: str
    severity: str
    ranks: tuple[int, ...]
    statistic: str
    crossed: int
    first: int
    measured: float
    interval: tuple[float, float] | None
    claim: str


def judges(checks: tuple[str, ...] = CHECKS) -> dict[str, Judge]:
    """The pure function of every check of the family."""
    modules = {check.code: importlib.import_module(check.find.__module__) for check in installed_checks()}
    return {name: modules[name.replace("_", "-")].judge for name in checks}


def series_of(recorded: Recorded, *, num_steps: int | None = None) -> WorkerSeries:
    """The series that a Run of these workers has, of its first ``num_steps`` steps.

    Where the average is weighted by tokens, the loss that a worker is seen with is its sum over the mean number of
    tokens, as in Hugging Face's Trainer. The allowance is ``series.shard_allowance`` of shards that are read whole.
    """
    steps, workers = recorded.loss[:num_steps].shape
    cut = {
        field.name: np.asarray(getattr(recorded, field.name)[:num_steps], dtype=np.float64)
        for field in fields(recorded)
        if field.name not in ("groups", "weighted")
    }
    loss, tokens = cut["loss"], cut["tokens"]
    if recorded.weighted:
        loss = loss * tokens / tokens.mean(axis=1, keepdims=True)
    parts = {t: tuple(part[np.isfinite(part)] for part in cut["parts"][t]) for t in range(steps)}
    return WorkerSeries(
        steps=np.arange(steps),
        ranks=tuple(range(workers)),
        loss=loss,
        log_norm=cut["log_norm"],
        cosine=cut["cosine"],
        group_names=recorded.groups,
        group_log_norm=cut["group_log_norm"],
        group_cosine=cut["group_cosine"],
        tokens=tokens,
        samples=cut["samples"],
        sample_losses=parts,
        allowance=(2 + math.sqrt(2 * math.log(workers))) * np.sqrt(cut["shard_frac"]),
    )


def judged(series: WorkerSeries, *, checks: tuple[str, ...] = CHECKS, false_alarms: float = FALSE_ALARMS) -> list[Told]:
    """What the checks say under a budget of ``false_alarms`` per 10,000 healthy steps, in order of crossing."""
    found: list[Told] = []
    for judge in judges(checks).values():
        with contextlib.suppress(CannotTell):
            found += [_told(finding) for finding in judge(series, AlarmBudget(false_alarms))]
    return sorted(found, key=lambda told: told.crossed)


def _told(finding: Finding) -> Told:
    evidence: dict[str, Any] = dict(finding.evidence)
    return Told(
        code=finding.code,
        severity=finding.severity,
        ranks=tuple(finding.ranks),
        statistic=str(evidence.get("statistic", "")),
        crossed=int(evidence["crossed_step"]),
        first=int(finding.step_first if finding.step_first is not None else -1),
        measured=math.nan if finding.measured is None else float(finding.measured),
        interval=tuple(evidence["interval"]) if evidence.get("interval") else None,
        claim=finding.claim,
    )
