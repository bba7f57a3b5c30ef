"""False alarms of the whole family of checks in healthy trainings, beside those of the rules that people use."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.judgement.cache import Job, train_all
from benchmarks.judgement.judging import judged, series_of
from benchmarks.judgement.rivals import RULES, alarms
from benchmarks.judgement.workloads import HEALTHY, OUTSIDE, Workload

WORKERS = (2, 3, 4, 8)
SEEDS = 5
STEPS = 2000


def jobs(kinds: tuple[Workload, ...], *, quick: bool) -> list[Job]:
    """Every kind of healthy training with every number of workers; no seed is used twice."""
    seeds, steps = (1, 150) if quick else (SEEDS, STEPS)
    return [
        Job(workload, workers, seed=1000 * kind + 100 * size + number, steps=steps)
        for kind, workload in enumerate(kinds)
        for size, workers in enumerate(WORKERS)
        for number in range(seeds)
    ]


def measure(folder: Path, *, quick: bool) -> dict[str, Any]:
    """Alarms of the checks, and of other rules, by kind of training and number of workers; and outside the null."""
    outside = _measure(jobs(OUTSIDE, quick=quick), folder)
    return _measure(jobs(HEALTHY, quick=quick), folder) | {
        "outside": outside["rows"],
        "outside_alarms": outside["alarms"],
    }


def _measure(wanted: list[Job], folder: Path) -> dict[str, Any]:
    train_all(wanted, folder)
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    details: list[dict[str, Any]] = []
    spent: dict[str, float] = {}
    for job in wanted:
        recorded = job.recorded(folder)
        key = (job.workload.name, job.workers)
        row = rows.setdefault(
            key,
            {"kind": key[0], "workers": key[1], "runs": 0, "steps": 0, "alarms": 0, "rules": dict.fromkeys(RULES, 0)},
        )
        told = judged(series_of(recorded), spent)
        row["runs"] += 1
        row["steps"] += job.steps
        row["alarms"] += len(told)
        for rule in RULES:
            row["rules"][rule] += len(alarms(recorded, rule))
        details += [{"kind": job.workload.name, "workers": job.workers, "seed": job.seed} | asdict(one) for one in told]
        if told:
            print(f"{key} seed {job.seed}: {[(one.code, one.ranks, one.crossed) for one in told]}", file=sys.stderr)
    return {"rows": list(rows.values()), "alarms": details, "seconds": spent}
