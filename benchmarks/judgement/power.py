"""Detection delay and right-rank rate of planted faults, beside the information limit and the rules that people use."""

from __future__ import annotations

import math
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.judgement.cache import Job, train_all
from benchmarks.judgement.faults import BAD, FAULTS
from benchmarks.judgement.judging import Told, judged, series_of
from benchmarks.judgement.rivals import RULES, alarms
from benchmarks.judgement.workers import Recorded
from benchmarks.judgement.workloads import CLASSES, TEXT

from trueline.analyze.promise import Promise

SEEDS = 20
START = 100
"""The step at which the fault begins."""

AFTER, LONG_AFTER = 500, 1500
"""Steps that are watched after that; the second for faults of a fraction of a spread."""

WEAK = (
    "loss × 1.02",
    "loss × 1.05",
    "gradient × 1.05",
    "noise of 30 % added to the gradient",
    "5% of the labels random",
)
FEW_WORKERS = (
    "loss × 1.1",
    "gradient × 1.1",
    "gradient's sign flipped",
    "100% of the labels random",
    "1/8 of the tokens",
)


def jobs(*, quick: bool) -> list[Job]:
    """Every fault with 8 workers in two trainings, and some with 2, 3 and 4; no seed is used twice in one setting."""
    dropout = replace(TEXT, name="LM, dropout, own seeds", dropout="own")
    settings = [(workload, 8, name) for workload in (TEXT, CLASSES) for name in FAULTS]
    settings += [(dropout, 8, "duplicated pair")]
    settings += [(TEXT, workers, name) for workers in (2, 3, 4) for name in FEW_WORKERS]
    return [
        Job(workload, workers, 50_000 + number, START + after_of(name, quick=quick), FAULTS[name], START)
        for workload, workers, name in settings
        for number in range(1 if quick else SEEDS)
    ]


def after_of(fault: str, *, quick: bool) -> int:
    """How many steps are watched after the fault began."""
    return 100 if quick else LONG_AFTER if fault in WEAK else AFTER


def measure(folder: Path, *, quick: bool) -> dict[str, Any]:
    """Delays, names, codes and limits by setting; a delay of None was not found in the steps watched."""
    wanted = jobs(quick=quick)
    train_all(wanted, folder)
    settings: dict[tuple[str, int, str], dict[str, Any]] = {}
    for job in wanted:
        key = (job.workload.name, job.workers, job.fault.name)
        row = settings.setdefault(key, _empty(job))
        recorded = job.recorded(folder)
        _add_ours(row, job, recorded)
        for rule, found in row["rules"].items():
            raised = [(step, worker) for step, worker in alarms(recorded, rule) if step >= START]
            found["delays"].append(raised[0][0] - START + 1 if raised else None)
            found["right"] += bool(raised) and raised[0][1] in job.fault.ranks
        row["shifts"].append(shifts(recorded, job))
        if len(row["delays"]) == 1 or len(row["delays"]) % 10 == 0:
            print(key, row["delays"], dict(row["first"]), row["named"], file=sys.stderr, flush=True)
    return {"rows": [_closed(row) for row in settings.values()], "start": START}


def shifts(recorded: Recorded, job: Job) -> dict[str, float]:
    """By statistic, how far the bad worker is from the mean of the others after the start, in spreads of the others."""
    found = {}
    for name in ("loss", "log_norm", "cosine"):
        values_TN = np.asarray(getattr(recorded, name)[START:], dtype=np.float64)
        others_TN = np.delete(values_TN, BAD, axis=1)
        healthy_TN = np.asarray(getattr(recorded, name)[START // 2 : START], dtype=np.float64)
        spread = others_TN.var(axis=1, ddof=1).mean() if job.workers > 2 else healthy_TN.var(axis=1, ddof=1).mean()
        found[name] = float((values_TN[:, BAD] - others_TN.mean(axis=1)).mean() / math.sqrt(spread))
    return found


def _empty(job: Job) -> dict[str, Any]:
    return {
        "training": job.workload.name,
        "workers": job.workers,
        "fault": job.fault.name,
        "watched": job.steps - START,
        "delays": [],
        "named": Counter(),
        "named_at_end": Counter(),
        "first": Counter(),
        "codes": Counter(),
        "early": 0,
        "scale": {"delays": [], "factors": [], "covered": 0},
        "shifts": [],
        "rules": {rule: {"delays": [], "right": 0} for rule in RULES},
    }


def _add_ours(row: dict[str, Any], job: Job, recorded: Recorded) -> None:
    """Judge the whole run, and again what there was of it when the first alarm could be told."""
    told = judged(series_of(recorded))
    late = [one for one in told if one.crossed >= START]
    row["early"] += len(told) - len(late)
    if not late:
        row["delays"].append(None)
        row["scale"]["delays"].append(None)
        return
    crossed = late[0].crossed
    then = [one for one in judged(series_of(recorded, num_steps=crossed + 1)) if one.crossed >= START]
    row["delays"].append(crossed - START + 1)
    row["first"].update({one.code for one in then or late[:1]})
    row["codes"].update({one.code for one in late})
    row["named"][_naming(then or late[:1], job)] += 1
    row["named_at_end"][_naming(late, job)] += 1
    _add_scale(row["scale"], job, recorded, crossed)


def _add_scale(row: dict[str, Any], job: Job, recorded: Recorded, crossed: int) -> None:
    """When the run is first called a scale (looked at after 10, 13, 17 ... steps from the alarm), and by how much."""
    steps = sorted({min(crossed + round(10 * 1.3**power), job.steps) for power in range(20)})
    for length in steps:
        told = judged(series_of(recorded, num_steps=length), checks=("worker_scale",))
        if told:
            low, high = told[0].interval or (math.nan, math.nan)
            row["delays"].append(length - START)
            row["factors"].append(told[0].measured)
            row["covered"] += low <= job.fault.factor <= high
            return
    row["delays"].append(None)


def _naming(told: list[Told], job: Job) -> str:
    """What the findings name: the "right" ranks, "both" of two where one is off, "all" or none, or a "wrong" one."""
    names = {frozenset(one.ranks) for one in told}
    everyone = frozenset(range(job.workers))
    specific = names - {everyone, frozenset()}
    if not specific:
        return "both" if job.workers == 2 and everyone in names else "all"
    return "right" if specific == {frozenset(job.fault.ranks)} else "wrong"


def _closed(row: dict[str, Any]) -> dict[str, Any]:
    """Mean shifts, and the limits that follow from the largest of them."""
    workers = row["workers"]
    mean = {name: float(np.mean([one[name] for one in row["shifts"]])) for name in ("loss", "log_norm", "cosine")}
    nats = max(shift**2 for shift in mean.values()) / 2 * (workers - 1) / workers
    line = Promise().log_threshold("loss", among=workers)
    counts = {name: dict(row[name]) for name in ("named", "named_at_end", "first", "codes")}
    limits = {"shifts": mean, "limit": math.log(10_000) / nats, "cap": line / math.log(workers)}
    return row | counts | limits
