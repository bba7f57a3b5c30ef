"""False alarms of the whole family of checks in healthy trainings, beside those of the rules that people use."""

from __future__ import annotations

import functools
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from studies.judgement.cache import Job, said, train_all
from studies.judgement.judging import Told, judged, series_of
from studies.judgement.rivals import RULES, alarms
from studies.judgement.workloads import HEALTHY, Workload

from trueline.schema.plan import FALSE_ALARMS

WORKERS = (2, 3, 4, 8)
SEEDS = 5
STEPS = 2000
PROMISES = (10.0, 1.0, FALSE_ALARMS)
"""False alarms per 10,000 steps that are asked for: the default last, and two at which there is more to be counted."""


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
    """Alarms of the checks, and of other rules, by kind of training and number of workers."""
    return alarms_in(jobs(HEALTHY, quick=quick), folder)


def alarms_in(wanted: list[Job], folder: Path) -> dict[str, Any]:
    """The same of these trainings."""
    train_all(wanted, folder)
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    details: list[dict[str, Any]] = []
    for job in wanted:
        key = (job.workload.name, job.workers)
        row = rows.setdefault(key, _empty(*key))
        one = said(job, folder, "healthy", functools.partial(_said, job, folder))
        row["runs"] += 1
        row["steps"] += job.steps
        for promise, count in one["alarms"].items():
            row["alarms"][promise] += count
        for rule in RULES:
            row["rules"][rule] += one["rules"][rule]
        details += [{"kind": key[0], "workers": key[1], "seed": job.seed} | told for told in one["told"]]
        for told in one["told"]:
            print(key, job.seed, told["code"], told["ranks"], told["crossed"], file=sys.stderr, flush=True)
    return {"rows": list(rows.values()), "alarms": details}


def _empty(kind: str, workers: int) -> dict[str, Any]:
    counts = {"alarms": {f"{promise:g}": 0 for promise in PROMISES}, "rules": dict.fromkeys(RULES, 0)}
    return {"kind": kind, "workers": workers, "runs": 0, "steps": 0} | counts


def _said(job: Job, folder: Path) -> dict[str, Any]:
    """Alarms under every budget: where the loosest has none, no other can have any."""
    recorded = job.recorded(folder)
    series = series_of(recorded)
    told: list[Told] = []
    found: dict[str, int] = {}
    for number, promise in enumerate(PROMISES):
        told = judged(series, false_alarms=promise) if number == 0 or told else []
        found[f"{promise:g}"] = len(told)
    rules = {rule: len(alarms(recorded, rule)) for rule in RULES}
    return {"alarms": found, "told": [asdict(one) for one in told], "rules": rules}
