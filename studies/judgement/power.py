"""Detection delay and right-rank rate of planted faults, beside the information limit and the rules that people use."""

from __future__ import annotations

import functools
import math
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from studies.judgement.cache import Job, said, train_all
from studies.judgement.faults import BAD, FAULTS
from studies.judgement.judging import Told, judged, series_of
from studies.judgement.rivals import RULES, alarms
from studies.judgement.workers import Recorded
from studies.judgement.workloads import CLASSES, TEXT, Workload

from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.schema.plan import FALSE_ALARMS

SEEDS = 20
START = 100
"""The step at which the fault begins."""

AFTER, LONG_AFTER = 300, 1000
"""Steps that are watched after that; the second for faults of a fraction of a spread in the quicker training."""

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
    """Every fault with 8 workers in two trainings, and some with 2 and 4; all settings of a seed in turn."""
    dropout = replace(TEXT, name="LM, dropout, own seeds", dropout="own")
    settings = [(workload, 8, name) for workload in (TEXT, CLASSES) for name in FAULTS]
    settings += [(dropout, 8, "duplicated pair")]
    settings += [(TEXT, workers, name) for workers in (2, 4) for name in FEW_WORKERS]
    return [
        Job(workload, workers, 50_000 + number, START + _after(workload, name, quick=quick), FAULTS[name], START)
        for number in range(1 if quick else SEEDS)
        for workload, workers, name in settings
    ]


def _after(workload: Workload, fault: str, *, quick: bool) -> int:
    """How many steps are watched after the fault began."""
    if quick:
        return 100
    return LONG_AFTER if workload is CLASSES and fault in WEAK else AFTER


def measure(folder: Path, *, quick: bool) -> dict[str, Any]:
    """Delays, names, codes and limits by setting; a delay of None was not found in the steps watched."""
    wanted = jobs(quick=quick)
    train_all(wanted, folder)
    settings: dict[tuple[str, int, str], list[dict[str, Any]]] = {}
    watched: dict[tuple[str, int, str], int] = {}
    for number, job in enumerate(wanted):
        key = (job.workload.name, job.workers, job.fault.name)
        settings.setdefault(key, []).append(said(job, folder, "power", functools.partial(_said, job, folder)))
        watched[key] = job.steps - START
        if number % 50 == 49:
            print(f"judged {number + 1} of {len(wanted)}", file=sys.stderr, flush=True)
    return {"rows": [_row(key, watched[key], runs) for key, runs in settings.items()], "start": START}


def _said(job: Job, folder: Path) -> dict[str, Any]:
    """What is said of one run, by us and by the rules."""
    recorded = job.recorded(folder)
    first = {rule: next((one for one in alarms(recorded, rule) if one[0] >= START), None) for rule in RULES}
    rules = {
        rule: {"delay": one and one[0] - START + 1, "right": one is not None and one[1] in job.fault.ranks}
        for rule, one in first.items()
    }
    return {"rules": rules, "shifts": shifts(recorded, job)} | _ours(job, recorded)


def shifts(recorded: Recorded, job: Job) -> dict[str, float]:
    """By statistic, how far the bad worker is from the mean of the others after the start, in spreads of the others."""
    found = {}
    for name in ("loss", "log_norm", "cosine"):
        values_TN = np.asarray(getattr(recorded, name)[START:], dtype=np.float64)
        others_TN = np.delete(values_TN, BAD, axis=1)
        healthy_TN = np.asarray(getattr(recorded, name)[START // 2 : START], dtype=np.float64)
        spread = others_TN.var(axis=1, ddof=1).mean() if job.workers > 2 else healthy_TN.var(axis=1, ddof=1).mean()
        difference = float((values_TN[:, BAD] - others_TN.mean(axis=1)).mean())
        found[name] = difference / math.sqrt(spread) if spread > 0 else 0.0
    return found


def _ours(job: Job, recorded: Recorded) -> dict[str, Any]:
    """Judge the whole run, and again what there was of it when the first alarm could be told."""
    told = judged(series_of(recorded))
    late = [one for one in told if one.crossed >= START]
    found: dict[str, Any] = {"early": len(told) - len(late), "delay": None, "scale": None}
    if not late:
        return found
    crossed, then = _live(job, recorded, late[0].crossed)
    return found | {
        "delay": crossed - START + 1,
        "first": sorted({one.code for one in then}),
        "codes": sorted({one.code for one in late}),
        "named": _naming(then, job),
        "named_at_end": _naming(late, job),
        "scale": _scale(job, recorded, crossed),
    }


def _live(job: Job, recorded: Recorded, crossed: int) -> tuple[int, list[Told]]:
    """The step at which the run so far alarms, and what it then says: ``crossed``, unless that is seen in hindsight."""
    for end in [crossed, *(min(crossed + round(5 * 1.2**power), job.steps - 1) for power in range(30))]:
        told = [one for one in judged(series_of(recorded, num_steps=end + 1)) if one.crossed >= START]
        if told:
            return end, told
    return job.steps - 1, []


def _scale(job: Job, recorded: Recorded, crossed: int) -> dict[str, Any] | None:
    """When the run is first called a scale (looked at after 10, 16, 26 ... steps from the alarm), and by how much."""
    for length in sorted({min(crossed + round(10 * 1.6**power), job.steps) for power in range(12)}):
        told = judged(series_of(recorded, num_steps=length), checks=("worker_scale",))
        if told:
            low, high = told[0].interval or (math.nan, math.nan)
            holds = low <= job.fault.factor <= high
            return {"delay": length - START, "factor": told[0].measured, "holds": holds}
    return None


def _naming(told: list[Told], job: Job) -> str:
    """What the findings name: "right" ranks alone, "both" of two where one is off, "all" or none, or a "wrong" one."""
    names = {frozenset(one.ranks) for one in told}
    everyone = frozenset(range(job.workers))
    specific = names - {everyone, frozenset()}
    if not specific:
        return "both" if job.workers == 2 and everyone in names else "all"
    return "right" if all(name <= frozenset(job.fault.ranks) for name in specific) else "wrong"


def _row(key: tuple[str, int, str], watched: int, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """One setting over its seeds: counts, mean shifts, and the limits that follow from the largest of them."""
    training, workers, fault = key
    shift = {name: float(np.mean([run["shifts"][name] for run in runs])) for name in ("loss", "log_norm", "cosine")}
    nats = max(one**2 for one in shift.values()) / 2 * (workers - 1) / workers
    found = [run for run in runs if run["delay"] is not None]
    scales = [run["scale"] for run in runs]
    known = [scale for scale in scales if scale]
    return {
        "training": training,
        "workers": workers,
        "fault": fault,
        "watched": watched,
        "delays": [run["delay"] for run in runs],
        "named": dict(Counter(run["named"] for run in found)),
        "named_at_end": dict(Counter(run["named_at_end"] for run in found)),
        "first": dict(Counter(code for run in found for code in run["first"])),
        "codes": dict(Counter(code for run in found for code in run["codes"])),
        "early": sum(run["early"] for run in runs),
        "scale": {
            "delays": [scale and scale["delay"] for scale in scales],
            "factors": [scale["factor"] for scale in known],
            "covered": sum(scale["holds"] for scale in known),
        },
        "rules": {
            rule: {
                "delays": [run["rules"][rule]["delay"] for run in runs],
                "right": sum(run["rules"][rule]["right"] for run in runs),
            }
            for rule in RULES
        },
        "shifts": shift,
        "limit": math.log(10_000 / FALSE_ALARMS) / nats,
        "cap": AlarmBudget().log_threshold("loss", among=workers) / math.log(workers),
    }
