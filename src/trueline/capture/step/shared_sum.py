"""The sum over workers of each sampled step: started when its numbers have reached the host, and read when it has
arrived. All ranks take from it the shared columns, the Plan and Layout in force, and the sampling interval.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from trueline.capture.job.triggers import seen_in_row
from trueline.capture.step import exchange, shared_columns
from trueline.capture.step.backlog import Backlog, StepRecord
from trueline.capture.step.next_step import NextStep
from trueline.capture.step.own_time import worst
from trueline.capture.step.working_parts import Watching

SUMMED = "gradients"
"""The name of the probe whose measurements are summed; a rank on which it has failed adds zeros."""


class SharedSum:
    """Starts and reads the sums of one rank. All ranks of the team start the same ones, also where a probe failed."""

    def __init__(self, watching: Watching, next_step: NextStep) -> None:
        self._next = next_step
        self._adapter, self._team, self._parts = watching.adapter, watching.team, watching.parts
        self._write = watching.safe_sink.write

    def start(self, record: StepRecord, *, now: int) -> None:
        """Start the sum of a sampled step, once its numbers are on the host; ``now`` is the current step."""
        if not record.looked_at:
            self._look_at(record, now=now)
        due = record.step_state.sampled and record.pending is None and self._team.group is not None
        if not (due and self._parts.works("exchange")):
            return
        sums = np.zeros(0)
        if record.measured and self._parts.works(SUMMED):
            with self._parts.guarded(SUMMED):
                sums = record.part_of_sum(self._adapter.reduction(), workers=self._team.size)
        with self._parts.guarded("exchange"):
            scalars = shared_columns.scalars(
                record.measurement or shared_columns.NOT_MEASURED,
                step=record.step,
                **self._parts.time.latest,
                passes=record.passes,
                plan=self._next.live.announced,
                seen=self._next.live.triggers.take_bits(),
                layout=record.step_state.layout.digest if sums.size else 0,
                wants=record.wants,
            )
            record.pending = exchange.start(self._team, step=record.step, scalars=scalars, sums=sums)

    def take_arrived(self, backlog: Backlog, *, deadline: float | None, decides_at: int | None) -> None:
        """Read the sums that have arrived, in order, and give up those that never will."""
        if not self._parts.works("exchange"):
            backlog.forget_sums()
        for record, arrived in backlog.sums(deadline=deadline, decides_at=decides_at):
            if arrived:
                self._take(record)
            else:
                error = TimeoutError(f"the sum over workers of step {record.step} never arrived")
                self._parts.end("exchange", error)

    def _look_at(self, record: StepRecord, *, now: int) -> None:
        """Note the faults that this rank can detect alone, from what has reached the host."""
        record.looked_at = True
        triggers, attempt = self._next.live.triggers, self._parts.attempt
        attempt("plan", triggers.look, record.copy.host, scaled=self._next.description.env.in_float16)
        if self._team.group is None:
            attempt("plan", triggers.receive, [triggers.take_bits()], step=record.step, from_step=now)

    def _take(self, record: StepRecord) -> None:
        if self._team.group is None and record.step_state.sampled:
            latest = self._parts.time.latest
            spent = {"plain_s": latest["plain"], "sampled_s": latest["sampled"], "step_s": latest["step_s"]}
            self._follow_budget(spent, record)
        result = record.pending.result() if record.pending is not None else None
        if result is None:
            return
        scalars = result[0]
        if (mismatch := shared_columns.iterations_differ(scalars)) is not None:
            self._parts.end("exchange", RuntimeError(mismatch))
            return
        plan, bits, wants = (scalars[:, shared_columns.SCALARS.index(name)] for name in ("plan", "seen", "wants"))
        self._next.live.receive(int(plan.max()), from_step=record.known_from)
        self._next.live.triggers.receive(bits.tolist(), step=record.step, from_step=record.known_from)
        self._next.parameters.receive(shared_columns.agreed(wants), from_step=record.known_from)
        self._write_shared(record, *result)
        if not record.beat:
            self._follow_budget(worst(scalars), record)

    def _write_shared(self, record: StepRecord, scalars: shared_columns.Array, flat: shared_columns.Array) -> None:
        reduction = self._adapter.reduction()
        columns = record.columns_of(scalars, flat, reduction)
        if not columns:
            return
        straight, mean = shared_columns.is_mean(columns)
        self._next.recheck.update(straight=straight, mean=mean)
        lossy = reduction.lossy or not reduction.known
        self._next.live.triggers.add(seen_in_row(columns, lossy=lossy, by_hand=not reduction.seen))
        self._write({"step": record.step} | columns)

    def _follow_budget(self, spent: Mapping[str, float], record: StepRecord) -> None:
        if not self._next.schedule.counts(record.step):
            return
        self._next.schedule.spent(**spent)
        decision = self._next.schedule.decide(record.step, interval=record.interval)
        if decision is not None:
            self._next.description.note_interval(decision, step=record.step)
