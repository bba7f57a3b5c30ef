"""Decides how a step is measured, before it begins, from what all ranks share: the Plan, the schedule, the Layout."""

from __future__ import annotations

from functools import partial
from typing import Any

from trueline.capture.job.live_plan import Change, Live
from trueline.capture.model.parameters import Parameters
from trueline.capture.probes.base import Step
from trueline.capture.record.make_session import Idle, make_session, require_fitting
from trueline.capture.step.description import Description
from trueline.capture.step.schedule import Recheck, Schedule
from trueline.capture.step.working_parts import Watching


class NextStep:
    """Decides step by step, from the Plan (``live``), the cost (``schedule``), the reduction (``recheck``) and the
    ``parameters``. ``SharedSum`` updates these with the sums that it reads.
    """

    def __init__(self, watching: Watching, *, parameters: Parameters, description: Description) -> None:
        self.parts, self._team, self._plan = watching.parts, watching.team, watching.plan
        write, start, model = watching.safe_sink.write, watching.start, watching.model
        self.live = Live(
            self._plan,
            folder=watching.safe_sink.folder,
            rank=self._team.rank,
            ranks=self._team.ranks,
            accepts=partial(require_fitting, model),
            report=write,
            start=start,
        )
        self.schedule = Schedule(self._plan, first=start.step)
        self.recheck = Recheck()
        self.parameters = parameters
        self.description = description
        self._facts: dict[str, Any] = {}
        self.stop = ""
        """Why training is to stop before the step that was decided last; empty: it is not."""
        failed = partial(self.parts.end, "recording")
        self._make_session = partial(
            make_session, model, write=write, failed=failed, notes=watching.adapter.notes, spend=self.parts.time.add
        )
        self.parts.session = self._make_session(plan=self.live.records)

    def decide(self, number: int) -> Step:
        """The decisions for step ``number``. Call it before every step, in order, inside of ``WorkingParts.timed``."""
        attempt = self.parts.attempt
        if self.parts.works("plan"):
            attempt("plan", self._look, number)
        schedule = self.schedule
        sampled = schedule.samples(number)
        attempt("parameters", self.parameters.follow, number, alone=self._team.size == 1)
        return Step(
            number,
            self.parameters.layout,
            self._plan,
            self._facts,
            age=number - schedule.first,
            watched=schedule.watches(number),
            sampled=sampled,
            keeps_sketch=sampled and schedule.keeps_sketches(number),
            digests=schedule.digests_params(number),
            rechecks=sampled and self.recheck.due(),
        )

    def _look(self, number: int) -> None:
        """Look for a changed Plan, and follow the changes that all ranks have agreed on from this step on."""
        self.live.look(number, agrees=self.parts.works("exchange"))
        change = self.live.due(number)
        if self.live.triggers.news_at == number:
            self.schedule.look_again(number)
        if change is not None:
            self._follow(change, number)

    def _follow(self, change: Change, number: int) -> None:
        if change.revision is not None:
            self._plan = change.plan
            self.schedule.follow(change.plan, step=number)
            self.description.note_plan(change.plan, change.revision, step=number)
            self.stop = change.plan.stop
        if isinstance(self.parts.session, Idle):
            self.parts.session = self._make_session(plan=change.records)
        else:
            self.parts.session.follow(change.records)
