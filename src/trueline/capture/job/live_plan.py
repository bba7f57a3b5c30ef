"""The Plan while training goes on: edits of the plan file, and recordings that a finding starts, at the same step on
all ranks.

The first rank looks at ``plan.json`` at step boundaries, at most once in ``LOOK_S``. What it takes from there becomes a
numbered copy that never changes, and the number goes into the next sum over workers, which every rank has two samples
later: then all read the same copy. One process needs no sum and takes it up at its next step.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trueline.capture.job.triggers import MAX_RECORDINGS, Detection, Triggers
from trueline.schema.errors import PlanError
from trueline.schema.files.plan_files import plan_path, read_changes, revision_path, write_plan
from trueline.schema.files.start import FIRST, Start
from trueline.schema.finding import PLAN_REFUSED, RECORDING_STARTED, Finding
from trueline.schema.plan import Plan
from trueline.schema.safe_logger import SafeLogger

_log = SafeLogger()

LOOK_S = 1.0
"""Time between two looks at the plan file: one ``stat`` on the first rank, which a file system over a network answers
in a millisecond.
"""

PATIENCE_S = 5.0
"""Seconds that an announced copy of the Plan is waited for where a shared file system does not show it yet."""

Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Change:
    """A change that holds from a step on: the Plan, its revision if that is new, and the Plan by which steps are
    recorded (None: none is).
    """

    plan: Plan
    revision: int | None
    records: Plan | None


class Live:
    """Knows the Plan in force on one rank of a team. ``ranks`` are the global ranks of the team, this one's first where
    ``leads``; ``accepts`` raises ``PlanError`` for a Plan that does not fit the job.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        folder: str | None,
        rank: int,
        ranks: Sequence[int],
        accepts: Callable[[Plan], None],
        report: Callable[[Finding], None],
        start: Start = FIRST,
    ) -> None:
        self.plan = plan
        self.triggers = Triggers()
        self.announced = start.revision
        """The latest revision that the first rank has made, as far as this rank knows by itself."""
        self._folder = folder
        self._rank = rank
        self._ranks = tuple(ranks)
        self._leads = folder is not None and rank == self._ranks[0]
        self._accepts = accepts
        self._report = report
        self._newest = plan
        self._agreed: list[tuple[int, int]] = []
        self._in_force = start.revision
        self._looked_at = time.monotonic()
        self._stamp: Stamp | None = None
        self._doubtful: Stamp | None = None
        self.records = self._recorded_by(plan)
        if self._leads and not start.keeps_plan:
            self._offer()

    def look(self, step: int, *, agrees: bool) -> None:
        """On the first rank: take what changed in the plan file, before ``step``. ``agrees`` is False where ranks no
        longer exchange sums.
        """
        now = time.monotonic()
        if not self._leads or now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        stamp = self._stamp_now()
        if stamp is None or stamp == self._stamp:
            return
        try:
            self._take(stamp, step, agrees=agrees)
        except (PlanError, OSError) as error:
            if self._doubtful == stamp:  # an editor may have been in the middle of it at the first look
                self._stamp = stamp
                self._refuse(str(error), step)
            self._doubtful = stamp

    def receive(self, revision: int, *, from_step: int) -> None:
        """The first rank announced ``revision`` in a sum that every rank has before ``from_step``."""
        if revision > max([self._in_force, *(number for _, number in self._agreed)]):
            self._agreed.append((from_step, revision))

    def due(self, step: int) -> Change | None:
        """The change that holds from ``step`` on, if any. Ask before every step, in order."""
        if len(self._ranks) == 1:
            self.receive(self.announced, from_step=step)
        revision = max((number for from_step, number in self._agreed if from_step <= step), default=None)
        records = self.records
        if revision is not None:
            self._agreed = [(from_step, number) for from_step, number in self._agreed if number > revision]
            self._follow(revision, step)
            records = self._recorded_by(self._stretched(step))
        detection = self.triggers.start(step, when=self.plan.when, num_steps=self.plan.when_steps)
        if detection is not None:
            self._report_recording(detection, step)
            stretch = {"steps": (step, self.triggers.ends), "every": None, "next_steps": self.plan.when_steps}
            records = self._recorded_by(self.plan.model_copy(update={**stretch, "when": (), "ring": None}))
        if revision is None and records is self.records:
            return None
        self.records = records
        return Change(self.plan, revision, records)

    # -- the plan file ---------------------------------------------------------------------------------------------

    def _offer(self) -> None:
        """Put the Plan that the job starts with where it can be edited."""
        assert self._folder is not None
        try:
            write_plan(plan_path(self._folder), self.plan)
        except OSError as error:
            _log.debug("the plan file cannot be written: %s", error)
        self._stamp = self._stamp_now()

    def _stamp_now(self) -> Stamp | None:
        assert self._folder is not None
        try:
            status = os.stat(plan_path(self._folder))
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _take(self, stamp: Stamp, step: int, *, agrees: bool) -> None:
        """Make the file's content the next revision; raises ``PlanError`` or ``OSError``."""
        assert self._folder is not None
        path = plan_path(self._folder)
        plan = self._newest.revised(read_changes(path), f"plan file '{path}'")
        self._accepts(plan)
        if not agrees:
            raise PlanError("ranks no longer exchange sums, so they cannot change the Plan at the same step.")
        if plan != self._newest:
            write_plan(revision_path(self._folder, self.announced + 1), plan)
            self.announced += 1
            self._newest = plan
        self._stamp, self._doubtful = stamp, None

    def _refuse(self, why: str, step: int) -> None:
        _log.warning("trueline: the changed plan file is not followed: %s", why)
        self._report(
            Finding(
                code=PLAN_REFUSED,
                severity="info",
                claim=f"The plan file as it was before step {step} is not followed: {why}",
                ranks=(self._rank,),
                step_first=step,
                next=("Correct it: `trueline plan RUN --set KEY=VALUE` refuses what cannot be followed.",),
            )
        )

    def _follow(self, revision: int, step: int) -> None:
        """Put a revision into force. A rank that cannot read it stays behind, and says so: training goes on."""
        assert self._folder is not None
        self._in_force = revision
        try:
            self.plan = self.plan.revised(_patiently(revision_path(self._folder, revision)), f"revision {revision}")
        except (PlanError, OSError) as error:
            self._refuse(f"revision {revision} of the Plan cannot be read on rank {self._rank} ({error}).", step)
            return
        _log.info("trueline: revision %s of the Plan is in force from step %s on", revision, step)

    def _stretched(self, step: int) -> Plan:
        """The Plan in force, with the steps that ``next_steps`` asks for from ``step`` on."""
        if self.plan.next_steps is None:
            return self.plan
        stretch = {"steps": (step, step + self.plan.next_steps), "every": None}
        return self.plan.model_copy(update={**stretch, "when": (), "ring": None})

    # -- what is recorded ------------------------------------------------------------------------------------------

    def _recorded_by(self, plan: Plan) -> Plan | None:
        """By which Plan this rank records: none where it takes no part, or a finding must come first without a ring."""
        return plan if plan.records_on(self._rank) and (plan.ring or not plan.when) else None

    def _report_recording(self, detection: Detection, step: int) -> None:
        """Report on the first rank what started a recording."""
        last = self.triggers.ends - 1
        beside_ring = f", beside the latest {self.plan.ring} that were kept in memory" if self.plan.ring else ""
        steps = f"step {step} is" if last == step else f"steps {step} to {last} are"
        steps += f" recorded{beside_ring}"
        detecting_ranks = tuple(self._ranks[worker] for worker in detection.workers)
        ranks = f"rank{'s' if len(detecting_ranks) > 1 else ''} {', '.join(map(str, detecting_ranks))}"
        count = f"recording {self.triggers.started} of at most {MAX_RECORDINGS}"
        go_back = f"Go back to a checkpoint of step {detection.clean} or before."
        back = "" if detection.clean is None else f" It was not yet there at step {detection.clean}. {go_back}"
        before = () if detection.clean is None else (go_back,)
        if self._rank == self._ranks[0]:
            self._report(
                Finding(
                    code=RECORDING_STARTED,
                    severity="info",
                    claim=f"{detection.code} was seen on {ranks} by step {detection.step}: {steps} ({count}).{back}",
                    ranks=detecting_ranks,
                    step_first=detection.step,
                    step_last=last,
                    evidence={"trigger": detection.code, "recorded_steps": [step, last], "clean_step": detection.clean},
                    next=("List what was recorded: `trueline info RUN --site '*'`", *before),
                )
            )


def _patiently(path: str) -> dict[str, Any]:
    """The content of a copy of the Plan that exists, as soon as this machine sees it."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return read_changes(path)
        except FileNotFoundError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
