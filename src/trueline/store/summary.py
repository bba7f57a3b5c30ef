"""What is in a Run, in one JSON document: `trueline info`."""

from __future__ import annotations

from typing import Any

import numpy as np

from trueline.schema.columns.table import worker_columns
from trueline.schema.files.run_manifest import SCHEMA_VERSION
from trueline.store.reader import Run
from trueline.store.records.arrays import to_numpy
from trueline.store.records.record_summary import summarize_records


def summarize(run: Run) -> dict[str, Any]:
    """Manifest, steps, ranks, columns that hold anything, what is recorded, live Findings and problems of a Run, as
    plain values.
    """
    records = summarize_records(run)  # Before the problems, which reading adds to.
    return {
        "schema": SCHEMA_VERSION,
        "run": run.path,
        "manifest": run.manifest.model_dump(),
        "models": run.models,
        "steps": _span(run.steps),
        "ranks": _ranks(run),
        "columns": _columns(run),
        "records": records,
        "findings": [finding.to_json() for finding in run.live_findings],
        "problems": [*run.problems, *run.tensor_problems()],
    }


def _span(steps: np.ndarray) -> dict[str, int | None]:
    first, last = (int(steps[0]), int(steps[-1])) if len(steps) else (None, None)
    return {"count": len(steps), "first": first, "last": last}


def _ranks(run: Run) -> list[dict[str, Any]]:
    step_R, rank_R = to_numpy(run.column("step")), to_numpy(run.column("rank"))
    ranks: list[dict[str, Any]] = []
    for rank in run.ranks:
        env = run.env.get(rank)
        ranks.append(
            {
                "rank": rank,
                "steps": _span(step_R[rank_R == rank]),
                "closed": rank not in run.unclosed,
                "hostname": env.hostname if env else None,
                "device": env.device if env else None,
                "params": len(env.params) if env else None,
                "groups": [group.name for group in env.groups] if env else None,
                "notes": env.notes if env else [],
            }
        )
    return ranks


def _columns(run: Run) -> list[dict[str, Any]]:
    columns: list[dict[str, Any]] = []
    for column in worker_columns():
        values_R = run.column(column.name)
        measured = len(values_R) - values_R.null_count
        if measured:
            columns.append(
                {
                    "name": column.name,
                    "type": column.type,
                    "unit": column.unit,
                    "measured": measured,
                    "meaning": column.meaning,
                }
            )
    return columns
