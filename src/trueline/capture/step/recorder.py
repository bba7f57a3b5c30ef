"""The recorder: opens and closes steps, calls the probes, and passes what they measured to a Sink.

One step, on every rank: probes measure at its moments; just before the optimizer's update the tensors that they took
are copied to the host, and the sum over workers is started; after the update the row is written. The sum is read one or
more steps later and written as the second piece of the row. No step ever waits for another rank.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

from trueline.capture.model.host_copy import HostCopy
from trueline.capture.model.layout import NOTHING_UNLIKE, Layout, make_layout, unwrap
from trueline.capture.model.outputs import differentiable
from trueline.capture.model.parameters import Parameters
from trueline.capture.probes.base import Probe
from trueline.capture.step import exchange
from trueline.capture.step.backlog import Backlog, StepRecord
from trueline.capture.step.call_sites import call_sites
from trueline.capture.step.description import Description
from trueline.capture.step.next_step import NextStep
from trueline.capture.step.passes import Contributions, CountedPasses, ReducedPasses
from trueline.capture.step.probing import Probing
from trueline.capture.step.schedule import BEAT
from trueline.capture.step.shared_sum import SUMMED, SharedSum
from trueline.capture.step.untrained import FEWEST_PASSES, Untrained, class_name, no_update
from trueline.capture.step.working_parts import Watching
from trueline.schema.plan import Plan

OF_PARAMETERS = (
    *("gradients", "gradients between passes", "kept gradients", "clipping", "exact cosines"),
    *("replicas", "updates", "averages", "initial values"),
)
"""Names of probes that read gradients or weights by the Layout."""


class Recorder:
    """Records one model on one rank; the hooks of a Watch call it. ``notes`` go into the manifest: what is not seen.
    ``has_no_pass`` is True until a forward pass is seen.
    """

    def __init__(self, watching: Watching, *, probes: Sequence[Probe], contributions: Contributions) -> None:
        self.model, self.team, self.parts = watching.model, watching.team, watching.parts
        self.safe_sink, self.contributions = watching.safe_sink, contributions
        self._adapter, plan = watching.adapter, watching.plan
        self.notes = self._adapter.notes
        limits = {"patterns": plan.param_names, "max_groups": plan.max_groups, "mesh": self._adapter.mesh}
        make = partial(make_layout, self.model, **limits)
        self._parameters = Parameters(
            self.model, make=lambda unlike: make(unlike=unlike), unlike=self.team.unlike or NOTHING_UNLIKE
        )
        self._description = Description(watching)
        self._next = NextStep(watching, parameters=self._parameters, description=self._description)
        self._sum = SharedSum(watching, self._next)
        self._probing = Probing(probes, self.parts)
        self._passes = ReducedPasses(by_hand=self.team.ranks if self._adapter.name == "manual" else ())
        self._backlog = Backlog()
        self._updating = False
        self.has_no_pass = True
        self._now = self.safe_sink.step = self.first_step = watching.start.step
        with self.parts.timed():
            self._decide()
        self.parts.session.open_step(self._now, sampled=self._step.sampled)
        self._untrained = self.parts.attempt("weights", Untrained, self.layout.params)

    @property
    def layout(self) -> Layout:
        """The Layout in force."""
        return self._parameters.layout

    @property
    def plan(self) -> Plan:
        """The Plan in force."""
        return self._next.live.plan

    @property
    def now(self) -> int:
        """The step that is open."""
        return self._now

    def take_stop(self) -> str:
        """Why training is to stop now, by a change of the Plan that all ranks take up at this step; once."""
        stop, self._next.stop = self._next.stop, ""
        return stop

    # -- called by the hooks ---------------------------------------------------------------------------------------

    def at_batch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A batch was given by hand, or is read by the forward pass that begins."""
        with self.parts.timed():
            self._take_batch(args, kwargs)

    def at_forward(
        self,
        module: nn.Module,
        called_with: tuple[tuple[Any, ...], dict[str, Any]],
        part: nn.Module | None = None,
        *,
        is_given: bool = False,
    ) -> None:
        """A training forward pass begins, on the batch that it is ``called_with``, unless one ``is_given`` by hand.
        Where the script calls parts of ``module`` one by one, ``part`` is this one, and the pass may go on that another
        began.
        """
        args, kwargs = called_with
        with self.parts.timed():
            self.has_no_pass = False
            if part is None or self.contributions.part_begins(part):
                if not is_given:
                    self._take_batch(args, kwargs)
                self.parts.attempt("passes", self._count_forward)
            elif not is_given:
                self._probing.ask("batch", args=args, kwargs=kwargs)
            if part is None:
                self._probing.ask("forward", module=module, args=args, kwargs=kwargs)
            else:
                self._probing.ask("forward", module=module, called=part, args=args, kwargs=kwargs)

    def at_output(self, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """The forward pass has returned ``output``."""
        with self.parts.timed():
            self.parts.attempt("passes", self._count_output, output)
            self._probing.ask("output", args=args, kwargs=kwargs, output=output)

    def before_update(self, optimizer: torch.optim.Optimizer, *, gradients_ready: bool) -> None:
        """Just before the optimizer changes anything. With a closure the gradients come later: see ``after_update``."""
        self._updating = True
        self.parts.attempt("call sites", call_sites.note, "step")
        self.parts.session.begin_update(optimizer, gradients_ready=gradients_ready)
        if not self._step.watched:
            return
        attempt = self.parts.attempt
        with self.parts.timed():
            attempt("passes", self.contributions.begin_update, optimizer)
            attempt("parameters", self._parameters.look, self._now)
            if self._parameters.cut:
                self._end_parameters()
            self._probing.ask("update", optimizer=optimizer)
            attempt("environment", self._description.update, self._parameters, self._step)
            if gradients_ready:
                self._gather()

    def after_update(self, *, has_gradients: bool = True) -> None:
        """The update is done: the step ends, its row is written, the next step begins. ``has_gradients`` is False where
        the update is noticed only later: the gradients in ``.grad`` may be another step's.
        """
        self._updating = False
        self.parts.session.close_step()
        with self.parts.timed():
            if self._step.watched:
                if self._record is None:
                    self._gather(has_gradients=has_gradients)
                self._end_row()
            elif self._next.schedule.beats(self._now):
                self._step.sampled = True
                beat = StepRecord(self._step, {}, HostCopy({}), BEAT // 2, passes=self._passes.count, beat=True)
                self._backlog.add(beat)
            self._now += 1
            self.safe_sink.step = self._now
            self.parts.attempt("exchange", self.drain)
            self._decide()
        self.parts.session.open_step(self._now, sampled=self._step.sampled)

    def follow(self, before: Callable[[Any], None], after: Callable[[], None]) -> Any:
        """The handle of the adapter's ``follow``; None where updates are those of optimizers of torch."""
        return self._adapter.follow(before, after)

    def drain(self, *, patience_s: float = 0.0, decides_at: int | None = None) -> None:
        """Write the rows that have reached the host, then the sums that have arrived; wait at most ``patience_s``, and
        with ``decides_at`` only for sums on which decisions for that step depend.
        """
        with self.parts.time.may_block():
            deadline = time.perf_counter() + patience_s if patience_s > 0 else None
            for record in self._backlog.rows(deadline=deadline, decides_at=decides_at):
                self._write_row(record)
            self._sum.take_arrived(self._backlog, deadline=deadline, decides_at=decides_at)

    def stop_exchange(self) -> None:
        """Read the sums that were started, and start no more: the process groups are about to be destroyed."""
        with self.parts.guarded("exchange"):
            self.drain(patience_s=exchange.PATIENCE_S)
        self.parts.end("exchange")

    def note_no_update(self) -> None:
        """Leave a Finding that backward passes were made and no update, unless weights have changed all the same."""
        num_passes = self.contributions.num_reached
        if num_passes < FEWEST_PASSES or self._untrained is None:
            return
        with self.parts.guarded("close"):
            are_unchanged = self._untrained.are_unchanged(self.layout.params)
            if are_unchanged is not False:
                self._description.update(self._parameters, self._step)
                model = class_name(unwrap(self.model))
                self.safe_sink.write(no_update(model, num_passes, rank=self.team.rank, are_unchanged=are_unchanged))

    def close(self, raised: BaseException | None = None, *, patience_s: float = exchange.PATIENCE_S) -> None:
        """Write the remaining rows, and that ``raised`` ended the training; close the Sink and restore the model. Wait
        at most ``patience_s`` for sums.
        """
        with self.parts.guarded("close"):
            self.drain(patience_s=patience_s)
        with self.parts.guarded("close"):
            self._write_last()
        self.parts.session.detach(raised=raised is not None)
        self._leave()
        with self.parts.guarded("close"):
            self._description.finish(patience_s=patience_s)
        if raised is not None:
            with self.parts.guarded("close"):
                self._description.note_raised(raised)
        self.safe_sink.close()

    def abandon(self) -> None:
        """Restore the model in a process that was forked: nothing is written, and no other thread exists."""
        self.parts.session.abandon()
        self._leave()
        self.team.abandon()

    def _end_parameters(self) -> None:
        """Let go of all that reads gradients and weights, without a Finding of its own."""
        for part in OF_PARAMETERS:
            self.parts.end(part)

    def _leave(self) -> None:
        self.parts.close()
        self._adapter.detach()

    def _take_batch(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.parts.attempt("passes", self.contributions.forward_begins)
        self._probing.ask("batch", args=args, kwargs=kwargs)

    def _count_forward(self) -> None:
        goes_round = self._adapter.goes_round
        self._passes.at_forward(self.model, bypasses=goes_round is not None and goes_round() is True)

    def _count_output(self, output: Any) -> None:
        tensors = list(differentiable(output))
        self._passes.at_output(tensors)
        self.contributions.at_output(tensors)

    # -- one step --------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        self._record: StepRecord | None = None
        self._await_decision()
        self._step = self._next.decide(self._now)
        self.contributions.begin(self.layout.params)
        self._probing.begin(self._step)

    def _await_decision(self) -> None:
        """Read every sum that may change the interval or the Plan from this step on, so that all ranks decide alike.

        Such a sum is two samples old, so it has arrived; a rank that has stopped costs ``PATIENCE_S`` once, then sums
        end.
        """
        if self._backlog.decides(self._now) and self.team.group is not None and self.parts.works("exchange"):
            with self.parts.guarded("exchange"):
                self.drain(patience_s=exchange.PATIENCE_S, decides_at=self._now)

    def _gather(self, *, has_gradients: bool = True) -> None:
        attempt = self.parts.attempt
        counted = attempt("passes", self.contributions.counted) or CountedPasses()
        self._probing.ask("gradients", gradients_known=has_gradients, counted=counted)
        copy = attempt("row", HostCopy, self._probing.hand_over() | counted.result()) or HostCopy({})
        self._record = StepRecord(
            self._step,
            self._probing.row,
            copy,
            self._next.schedule.interval,
            passes=self._passes.count,
            probes=self._probing.due,
            wants=self._parameters.wants,
            measured=self._step.measures and self.parts.works(SUMMED),
        )
        if copy.ready():
            self._sum.start(self._record, now=self._now)

    def _end_row(self) -> None:
        self._probing.ask("updated")
        if self._record is not None:
            if tensors := self._probing.hand_over():
                self.parts.attempt("row", self._record.copy.add, tensors)
            row = self._record.row
            row |= self.parts.time.end_step(sampled=self._step.sampled)
            row["time_ns"], row["passes"] = time.time_ns(), self._passes.clock()
            self._backlog.add(self._record)

    # -- writing ---------------------------------------------------------------------------------------------------

    def _write_row(self, record: StepRecord) -> None:
        self._sum.start(record, now=self._now)
        if record.beat:
            return
        host, num_micro = record.step_state.counted.drop_zeroed(record.copy.host)
        row = record.row | {"num_micro": num_micro}
        self._probing.columns(record.probes, host, record.step_state, row)
        if record.step_state.keeps_sketch and record.measurement is not None:
            row["sketch"] = record.measurement.local.astype(np.float32).ravel()
        self.safe_sink.write(row)

    def _write_last(self) -> None:
        """Write what probes measure of the model as training left it. Needs no other rank, and does not wait long for a
        device. After an update that was interrupted, replicas need not be equal: then nothing is written.
        """
        last, schedule = self._now - 1, self._next.schedule
        if self._updating or last < schedule.first or not schedule.watches(last):
            return
        probes = self._probing.ask_last()
        copy = HostCopy(self._probing.hand_over())
        if copy.host and copy.arrives(within_s=exchange.PATIENCE_S):
            row: dict[str, Any] = {"step": last}
            self._probing.columns(probes, copy.host, self._step, row)
            self.safe_sink.write(row)
