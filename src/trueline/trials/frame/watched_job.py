"""The job of a trial, run under watch: whether the Run that it leaves shows the finding."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trueline.capture.child_env import CHANGES, environment
from trueline.store.reader import Run
from trueline.trials.frame.runs import Way
from trueline.trials.frame.same_fault import Outcome, TargetFinding, outcome_of, target_of
from trueline.trials.frame.trial import Job, how_it_ended

RUN = "run"
"""The Run in the folder of each run."""

EVERY_STEP = {"preset": "workers", "every": 1, "params_every": 1, "budget": 1.0}
"""The Plan of runs that are compared and not timed: everything at every step."""
AFTER = 3
"""Updates after the last step that is needed: that one ends with the next, and what ranks learn of each other comes
one step later.
"""


def run_watched(
    job: Job,
    run_path: Path,
    *,
    plan: Mapping[str, Any],
    changes: Mapping[str, Any],
    environ: Mapping[str, str] = MappingProxyType({}),
    folder: Path | None = None,
) -> tuple[bool, str]:
    """Run ``job`` in ``folder`` under ``plan``, with ``changes`` made in its processes: (whether it left a Run at
    ``run_path``; how it ended where that was not well, or why there is no Run). What it prints goes beside that. Raises
    ``OSError`` where the command cannot be started.
    """
    run_path = run_path.absolute()
    environ = environment(out=str(run_path), plan=dict(plan), overwrite=True, base={**os.environ, **environ})
    environ[CHANGES] = json.dumps(changes)
    printed = run_path.with_name("printed.txt" if run_path.name == RUN else f"printed-{run_path.name}.txt")
    why = how_it_ended(job.run(environ, printed=printed, folder=folder))
    # a job that never steps leaves no Run, however well it ended
    is_there = run_path.exists()
    return is_there, why if is_there else why or "nothing of it was watched: no training step was seen"


@dataclass(frozen=True)
class WatchedJob:
    """Runs ``job`` under ``plan`` for as many steps as the Run that showed ``target`` first had."""

    job: Job
    target: TargetFinding
    plan: Mapping[str, Any]
    last_step: int
    seconds: float | None = None
    """That the steps of that Run took, without its start."""

    @classmethod
    def like(cls, run: Run, job: Job, *, code: str | None = None, steps: int | None = None) -> WatchedJob:
        """``job`` under the Plan of ``run``, for the finding that it shows. Raises ``InputError`` where it has none."""
        plan = {**run.manifest.plan, "sinks": [], "on_finding": None, "stop": ""}
        last = int(run.steps[-1]) if run.steps.size else 0
        return cls(job, target_of(run, code), plan, last if steps is None else steps - 1, _seconds(run))

    def up_to(self, step: int) -> dict[str, int]:
        """The change by which a run ends once ``step`` is recorded."""
        return {"updates": step + AFTER}

    def plan_says(self) -> list[str]:
        """Lines of the plan: what is looked for, and what each run is."""
        return [
            f"Looked for: {self.target.code}: {self.target.claim}",
            f"Each run: {' '.join(self.job.words)}, watched, up to step {self.last_step}.",
        ]

    def __call__(self, way: Way, run_folder: Path) -> Outcome:
        """Run it; raises ``OSError`` where the command cannot be started."""
        run_path, changes = (run_folder / RUN).absolute(), {**self.up_to(self.last_step), **way.changes}
        job = self.job.with_words(way.words)
        is_there, why = run_watched(
            job, run_path, plan=self.plan, changes=changes, environ=way.environ, folder=way.folder
        )
        if not is_there:
            return Outcome(None, why)
        return outcome_of(str(run_path), self.target, ended=why, last_step=changes["updates"] - AFTER)


def _seconds(run: Run) -> float | None:
    ends = [value for value in run.column("time_ns").to_pylist() if value is not None]
    return (max(ends) - min(ends)) / 1e9 if ends else None


def batch_of(run: Run) -> int | None:
    """The batch size that the DataLoaders of all ranks declared; None where that is not known."""
    sizes = {env.data.get("batch_size") for env in run.env.values()}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) else None
