"""What holds in a step, decided before it begins from what all ranks share: the Plan, the schedule, the Layout."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from trueline.capture.job.live_plan import Change, Live
from trueline.capture.job.outlet import Outlet
from trueline.capture.model.parameters import Parameters
from trueline.capture.probes.base import Step
from trueline.capture.record.start import Idle, make_session, require_fitting
from trueline.capture.step.exchange import Team
from trueline.capture.step.identity import Identity
from trueline.capture.step.schedule import Recheck, Schedule
from trueline.capture.step.working_parts import WorkingParts
from trueline.schema.plan import Plan
from trueline.schema.start import Start


class NextStep:
    """Decides it step by step; ``recheck`` learns from the sums what became of the reduction."""

    def __init__(
        self,
        model: nn.Module,
        *,
        plan: Plan,
        start: Start,
        team: Team,
        notes: list[str],
        outlet: Outlet,
        parts: WorkingParts,
        parameters: Parameters,
        identity: Identity,
    ) -> None:
        self.live = Live(
            plan,
            folder=outlet.folder,
            rank=team.rank,
            ranks=team.ranks,
            accepts=partial(require_fitting, model),
            report=outlet.write,
            start=start,
        )
        self.schedule = Schedule(plan, first=start.step)
        self.recheck = Recheck()
        self._plan = plan
        self._alone = team.size == 1
        self._outlet = outlet
        self._parts = parts
        self._parameters = parameters
        self._identity = identity
        self._facts: dict[str, Any] = {}
        failed = partial(parts.end, "recording")
        self._make_session = partial(make_session, model, write=outlet.write, failed=failed, notes=notes)
        parts.session = self._make_session(plan=self.live.records)

    def decide(self, number: int) -> Step:
        """What holds in step ``number``. Ask before every step, in order."""
        if self._parts.works("plan"):
            with self._parts.guarded("plan"):
                self._look(number)
        schedule = self.schedule
        sampled = schedule.samples(number)
        with self._parts.guarded("parameters"):
            self._parameters.due(number, alone=self._alone)
        return Step(
            number,
            self._parameters.layout,
            self._plan,
            self._facts,
            age=number - schedule.first,
            watched=schedule.within(number),
            sampled=sampled,
            keeps_sketch=sampled and schedule.keeps_sketches(number),
            digests=schedule.digests_params(number),
            rechecks=sampled and self.recheck.due(),
        )

    def _look(self, number: int) -> None:
        """Look for another Plan, and follow what all ranks agreed on to hold from this step on."""
        self.live.look(number, agrees=self._parts.works("exchange"))
        change = self.live.due(number)
        if self.live.triggers.news_at == number:
            self.schedule.look_again(number)
        if change is not None:
            self._follow(change, number)

    def _follow(self, change: Change, number: int) -> None:
        if change.revision is not None:
            self._plan = change.plan
            self.schedule.follow(change.plan, step=number)
            if self._identity.note_plan(change.plan, change.revision, step=number):
                self._outlet.describe(self._identity.manifest, self._identity.env)
        if isinstance(self._parts.session, Idle):
            self._parts.session = self._make_session(plan=change.records)
        else:
            self._parts.session.follow(change.records)
