"""MLflow: ``mlflow:URI`` makes a run in the experiment ``trueline`` of that tracking server or directory."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

from trueline.schema.finding import Finding
from trueline.schema.live import Numbers, headline

LIBRARY = "mlflow"

MAX_METRICS = 1000
"""Metrics in one request: the limit of MLflow's ``log_batch``."""


def open_sink(target: str, run: str) -> MLflow:
    """A run on the tracking server, or in the directory, ``target``."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(target)
    experiment_found = client.get_experiment_by_name("trueline")
    experiment = client.create_experiment("trueline") if experiment_found is None else experiment_found.experiment_id
    tags = {"mlflow.runName": os.path.basename(run), "trueline.run": run}
    return MLflow(client, client.create_run(experiment, tags=tags).info.run_id)


class MLflow:
    """Series are metrics, a finding is a tag."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._id = client, run_id

    def numbers(self, rows: Sequence[Numbers]) -> None:
        from mlflow.entities import Metric

        now_ms = int(time.time() * 1000)
        metrics = [
            Metric(f"trueline.{name}", value, now_ms, step_numbers.step)
            for step_numbers in rows
            for name, value in step_numbers.values.items()
        ]
        for begin in range(0, len(metrics), MAX_METRICS):
            self._client.log_batch(self._id, metrics=metrics[begin : begin + MAX_METRICS])

    def finding(self, finding: Finding) -> None:
        self._client.set_tag(self._id, f"trueline.{finding.code}", headline(finding)[:5000])

    def close(self) -> None:
        self._client.set_terminated(self._id)
