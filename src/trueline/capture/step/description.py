"""Keeps the description of this rank's Run up to date: the manifest (first rank) and the environment file."""

from __future__ import annotations

import time
import traceback
from pathlib import Path

from trueline.capture.job.configs_in_sight import configs_in_sight
from trueline.capture.job.environment import describe_optimizer, describe_rank, param_lists
from trueline.capture.job.job_facts import FactsInBackground
from trueline.capture.model.layout import Layout
from trueline.capture.model.parameters import Parameters
from trueline.capture.probes.base import Step
from trueline.capture.record.stacks import is_users_file
from trueline.capture.step.call_sites import call_sites
from trueline.capture.step.schedule import MAX_INTERVAL, Decision
from trueline.capture.step.working_parts import Watching
from trueline.schema.files.run_manifest import ParamLists, PlanRevision, RankEnv, with_interval
from trueline.schema.plan import EARLY_STEPS, Plan

_FACTS_S = 5.0
"""Seconds that closing waits for facts of the job that are still collected: a Run of few steps is to have them, too."""


class Description:
    """Holds the manifest and environment that the Sink has, and sends them again when they have changed."""

    def __init__(self, watching: Watching) -> None:
        self.manifest = watching.start.manifest
        self._watching, self._adapter = watching, watching.adapter
        self.env = RankEnv(rank=watching.team.rank, world_size=watching.team.size)
        self._described: object = None
        self._signature: object = None
        self._interval: tuple[int, bool] | None = None
        self._layout: Layout | None = None
        self._lists: list[ParamLists] = []
        self._facts: FactsInBackground | None = None

    def update(self, parameters: Parameters, step: Step) -> None:
        """Send the description of this step, if anything has changed. Hyper-parameters that change at every step
        (schedules) are columns of the row and do not count as a change. How gradients are reduced, and what a thread
        finds out of the job, is asked at sampled steps.
        """
        layout, notes = parameters.layout, tuple(self._adapter.notes)
        signature = (layout.digest, step.facts, notes, len(parameters.changes))
        if not step.sampled and signature == self._signature:
            return
        self._signature = (*signature[:1], dict(step.facts), *signature[2:])
        reduction = self._adapter.reduction()
        facts = self._facts and self._facts.now()
        now = (reduction, dict(step.facts), notes, len(parameters.changes), facts is not None, call_sites.lines)
        if self._layout is not None and layout.digest == self._layout.digest and now == self._described:
            return
        if self._layout is None:
            watching = self._watching
            self.env = describe_rank(watching.model, layout, world_size=watching.team.size, job=watching.start.job)
            self._lists = [param_lists(layout)]
            if watching.team.index == 0:
                self._facts = FactsInBackground(watching.model, layout.device, configs_in_sight(watching.model))
        elif layout.digest != self._layout.digest:
            self._lists.append(param_lists(layout, step=step.number))
        self._layout, self._described = layout, now
        self.env = self.env.model_copy(
            update=step.facts
            | {
                "reduce_hook": reduction.hook,
                "reduce_known": reduction.known,
                "reduce_lossy": reduction.lossy,
                "local_updates": reduction.hook if reduction.local else step.facts.get("local_updates", ""),
                "apart": parameters.unlike,
                "changes": parameters.changes,
                "lists": self._lists if len(self._lists) > 1 else [],
                "optimizer": describe_optimizer(step.optimizer, layout.index_of),
                "notes": list(notes),
                "facts": facts,
                "call_sites": call_sites.lines,
            }
        )
        self._send(notes=list(dict.fromkeys([*(self.manifest.notes if self.manifest else ()), *notes])))

    def finish(self, *, patience_s: float) -> None:
        """Send the facts of the job, if they were not there at any step; wait at most ``patience_s`` for them."""
        facts = self._facts and self._facts.now(patience_s=min(patience_s, _FACTS_S))
        if facts is not None and self.env.facts is None:
            self.env = self.env.model_copy(update={"facts": facts})
            self._send()

    def note_raised(self, error: BaseException) -> None:
        """Note which exception ended the training on this rank, and where in the user's own code; not its message,
        which may contain a secret.
        """
        users_frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users_file(frame.filename)]
        where = f" at {Path(users_frames[-1].filename).name}:{users_frames[-1].lineno}" if users_frames else ""
        raised = {"raised": f"{type(error).__name__}{where}", "raised_ns": time.time_ns()}
        self.env = self.env.model_copy(update=raised)
        self._send()

    def note_plan(self, plan: Plan, revision: int, *, step: int) -> None:
        """Note in the manifest which Plan is in force since ``step``."""
        if self.manifest is not None:
            taken_up = PlanRevision(revision=revision, step=step, plan=plan.kept())
            self._send(plans=[*self.manifest.plans, taken_up])

    def note_interval(self, decision: Decision, *, step: int) -> None:
        """Note in the manifest which interval is followed, and why; what that costs is measured, not foretold."""
        interval, early = decision.interval, decision.interval < decision.by_budget
        if self.manifest is None or (interval, early) == self._interval:
            return
        self._interval = interval, early
        why = "the smallest interval within the budget of time"
        if early:
            by_budget = f"then the budget of time asks for every {decision.by_budget}"
            why = f"checks need as many in the first {EARLY_STEPS} steps, {by_budget}"
        elif decision.floor:
            why = "no interval keeps the budget of time, as steps that are not sampled take more"
        elif interval == MAX_INTERVAL:
            why = "the budget of time asks for fewer"
        self._send(notes=with_interval(self.manifest.notes, interval, step=step, why=why))

    def _send(self, **changed: object) -> None:
        """Send both, the manifest with the fields that have ``changed``; only the first rank has one."""
        self.manifest = self.manifest and self.manifest.model_copy(update=changed)
        self._watching.safe_sink.describe(self.manifest, self.env)
