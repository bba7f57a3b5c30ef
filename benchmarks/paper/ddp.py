"""Does one process that plays all workers compute what real ones do? The demo under DDP and gloo, against it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from benchmarks.paper.cells import PAPER, Size, job_of, setting_of
from benchmarks.paper.together import train_together

import trueline
from trueline.demo.fine_tune import Material
from trueline.demo.ranks import Ranks
from trueline.demo.worker_training import train

WORKERS = 4
STEPS = 20
SEED = 0
PATIENCE_S = 600.0


def agreement(material: Material, size: Size) -> list[dict[str, Any]]:
    """One row a setting: largest relative difference of losses and gradient norms, at the first and at any step.

    ``codes`` are what `trueline check` says, as errors and warnings, about the Run that the real workers left.
    """
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="trueline-paper-") as folder, Ranks(WORKERS, timeout_s=PATIENCE_S) as ranks:
        for reading, name in [*(("sharded", setting.name) for setting in PAPER), ("unsharded", PAPER[0].name)]:
            run = Path(folder) / f"{reading}-{name}"
            job = job_of(setting_of(reading, name), material, size, seed=SEED, steps=STEPS, run=run)
            losses_TN = np.stack([learned.losses for learned in ranks.run(train, job)], axis=1)
            norms_TN, _ = trueline.open_run(job.run).pivot("grad_norm")
            ours, _ = train_together(job, WORKERS)
            report = trueline.check(job.run)
            codes = sorted({finding.code for finding in report.findings if finding.is_grave})
            rows.append(
                {
                    "reading": reading,
                    "setting": name,
                    "loss": _apart(ours.losses_TN, losses_TN),
                    "norm": _apart(ours.norms_TN, norms_TN),
                    "codes": codes,
                }
            )
    return rows


def _apart(ours_TN: np.ndarray, real_TN: np.ndarray) -> dict[str, float]:
    """Largest relative difference over workers, at the first step and over all."""
    apart_T = np.abs(ours_TN / real_TN - 1).max(axis=1)
    return {"first": float(apart_T[0]), "all": float(apart_T.max())}
