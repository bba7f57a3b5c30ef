"""Weights & Biases: ``wandb:PROJECT`` makes a run of its own, with the name of the Run, beside that of the training;
``WANDB_MODE=offline`` writes files only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from trueline.schema.finding import Finding
from trueline.schema.live import Numbers, headline

LIBRARY = "wandb"


def open_sink(target: str, run: str) -> WandB:
    """A run in the project ``target``, or ``ENTITY/PROJECT``."""
    import wandb

    entity, _, project = target.rpartition("/")
    for name in ("WANDB_RUN_ID", "WANDB_NAME", "WANDB_RESUME"):  # those of the training's own run
        os.environ.pop(name, None)
    made = wandb.init(
        project=project,
        entity=entity or None,
        name=os.path.basename(run),
        job_type="trueline",
        config={"trueline_run": run},
        settings=wandb.Settings(console="off", silent=True),
    )
    made.define_metric("trueline/step")
    made.define_metric("trueline/*", step_metric="trueline/step")
    return WandB(made)


class WandB:
    """Logs series over ``trueline/step``; a finding is an alert and an entry of the summary."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def numbers(self, several: Sequence[Numbers]) -> None:
        """A row a step."""
        for each in several:
            self._run.log({"trueline/step": each.step} | {f"trueline/{k}": value for k, value in each.values.items()})

    def finding(self, finding: Finding) -> None:
        """An alert, which W&B sends on as the user has set it up there, if it is more than an info."""
        text = headline(finding)
        self._run.summary[f"trueline/{finding.code}"] = text
        if finding.severity != "info":
            level = "ERROR" if finding.severity == "error" else "WARN"
            self._run.alert(title=f"trueline: {finding.code}", text=text, level=level)

    def close(self) -> None:
        """Send or write what is left: W&B's own process does that, and is waited for."""
        import wandb

        self._run.finish()
        wandb.teardown()
