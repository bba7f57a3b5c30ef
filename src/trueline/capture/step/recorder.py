"""The recorder: opens and closes steps, asks the probes, and hands what they measured to a Sink.

One step, on every rank: hooks measure gradients while backward runs; just before the optimizer's update everything is
staged and copied to the host, and the sum over workers is started; after the update the row is written. The sum is
read a step or more later and written as the second piece of the row. No step ever waits for another rank.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from trueline.capture.adapters.base import Adapter
from trueline.capture.job.backlog import Backlog
from trueline.capture.job.live_plan import Change, Live
from trueline.capture.job.outlet import Outlet
from trueline.capture.job.triggers import nonfinite_in, seen_in_row
from trueline.capture.model.host_copy import HostCopy
from trueline.capture.model.layout import ALIKE, Layout, make_layout
from trueline.capture.model.parameters import Parameters
from trueline.capture.probes.averaging import AveragingProbe
from trueline.capture.probes.batch import Batch, columns_of
from trueline.capture.probes.dataloader import DataLoaderProbe
from trueline.capture.probes.gradients import GradientProbe
from trueline.capture.probes.loss import LossProbe
from trueline.capture.probes.optimizer import hyper_parameters
from trueline.capture.probes.parts import STEPS_AT_START, PartProbe
from trueline.capture.probes.replicas import buffer_digests, param_digests
from trueline.capture.probes.streams import rng_digests
from trueline.capture.record.start import Idle, make_session, require_fitting
from trueline.capture.step import exchange, own_columns, shared_columns
from trueline.capture.step.contributions import Contributions, Pass
from trueline.capture.step.exact_cosines import exact_cosines
from trueline.capture.step.exchange import Team
from trueline.capture.step.identity import Identity
from trueline.capture.step.own_time import OwnTime, worst
from trueline.capture.step.passes import Passes
from trueline.capture.step.schedule import BEAT, Recheck, Schedule
from trueline.capture.step.step_record import StepRecord
from trueline.schema.finding import WATCH_DEGRADED, Finding
from trueline.schema.plan import Plan
from trueline.schema.roles import Sink
from trueline.schema.start import Start

_open_here: list[Recorder] = []
"""Those of this process, one for each model: what one computes, no other may record."""


class Recorder:
    """Watches one model on one rank. Made by ``capture.watch``; the methods are called by its hooks."""

    def __init__(self, model: nn.Module, *, adapter: Adapter, sink: Sink, plan: Plan, team: Team, start: Start) -> None:
        self.model = model
        self.plan = plan
        self.team = team
        self.loader = DataLoaderProbe()
        self.averaging = AveragingProbe()
        self.talks_in_forward = False
        self.contributions = Contributions()
        self.loss = LossProbe(adapter.notes, workers=team.size, guard=self.guarded, passes=self.contributions)
        self.parts = PartProbe(adapter.notes, self.contributions)
        self.autocast: dict[str, Any] = {}
        self.batch_given = False
        self.passes = Passes(by_hand=team.ranks if adapter.name == "manual" else ())
        self._adapter = adapter
        self._outlet = Outlet(sink, rank=team.rank)
        self._live = Live(
            plan,
            folder=getattr(sink, "path", None),
            rank=team.rank,
            ranks=team.ranks,
            accepts=partial(require_fitting, model),
            report=self._outlet.write,
            start=start,
        )
        self._make_session = partial(
            make_session,
            model,
            write=self._outlet.write,
            failed=lambda error: self._break("recording", error),
            notes=adapter.notes,
        )
        self.session = self._make_session(plan=self._live.records)
        self._schedule = Schedule(plan, first=start.step)
        self._recheck = Recheck()
        self._broken: set[str] = set()
        self._updating = False
        self._step = self._outlet.step = start.step
        self._time = OwnTime()
        self._backlog = Backlog()
        self._parameters = Parameters(
            model,
            make=lambda apart: make_layout(
                model,
                patterns=plan.param_names,
                max_groups=plan.max_groups,
                mesh=adapter.mesh,
                apart=apart,
            ),
            apart=team.apart or ALIKE,
        )
        self._attach()
        self._identity = Identity(start.manifest, adapter=adapter, team=team)
        _open_here.append(self)
        self._open()

    # -- called by the hooks ---------------------------------------------------------------------------------------

    @contextmanager
    def guarded(self, part: str) -> Iterator[None]:
        """Count the CPU time inside as Trueline's, and turn an exception of ours into a Finding: training goes on."""
        begin = self._time.cpu_s()
        sessions = [one.session for one in _open_here]
        for session in sessions:
            session.pause()
        try:
            yield
        except Exception as error:
            self._break(part, error)
        finally:
            for session in sessions:
                session.resume()
            self._time.add(self._time.cpu_s() - begin)

    def enter_forward(self) -> None:
        """A training forward pass begins: digest the buffers, once a step that is due for it.

        Here and not before the update, because DDP broadcasts buffers just before this point and every worker's own
        batch changes them (BatchNorm) just after it.
        """
        due = self._schedule.digests_params(self._step) and "buffer_digests" not in self._staged
        if due and "replicas" not in self._broken:
            with self.guarded("replicas"):
                self._identity.buffers, digests = buffer_digests(self.model)
                if digests is not None:
                    self._staged["buffer_digests"] = digests

    def consume(self, batch: Batch | None) -> None:
        """Take the samples of one training forward pass."""
        if batch is not None and self._schedule.within(self._step) and not self.contributions.is_over:
            self._batches.append((self.contributions.now(), batch))

    def before_update(self, optimizer: torch.optim.Optimizer, *, gradients_ready: bool) -> None:
        """Just before the optimizer changes anything. With a closure the gradients come later: see ``after_update``."""
        self._updating = True
        self.session.begin_update(type(optimizer).__name__, gradients_ready=gradients_ready)
        if not self._schedule.within(self._step):
            return
        with self.guarded("loss"):
            self.contributions.begin_update(optimizer)
        with self.guarded("parameters"):
            self._parameters.look(self._step)
        with self.guarded("optimizer"):
            self._row |= hyper_parameters(optimizer)
            self._describe(optimizer)
            self._row |= self.gradients.unreduced()
        if self._schedule.digests_params(self._step) and "replicas" not in self._broken:
            self._digest_replicas()
        if gradients_ready:
            self._gather()

    def after_update(self, *, seen: bool = True) -> None:
        """The update is done: the step ends, its row is written, the next one opens. Not ``seen`` where it is told of
        later: what is in ``.grad`` may be another step's.
        """
        self._updating = False
        self.session.close_step()
        if self._schedule.within(self._step):
            if self._record is None:
                self._gather(seen=seen)
            self._end_row()
        elif self._schedule.beats(self._step):
            row, nothing = {"step": self._step}, HostCopy({})
            done = self.passes.count
            beat = StepRecord(row, nothing, BEAT // 2, passes=done, sampled=True, layout=self.layout, beat=True)
            self._backlog.add(beat)
        self._step += 1
        self._outlet.step = self._step
        with self.guarded("exchange"):
            self.drain()
        self._open()

    def drain(self, *, patience_s: float = 0.0, decides_at: int | None = None) -> None:
        """Write the rows that have reached the host, then the sums that have arrived; wait at most ``patience_s``, and
        with ``decides_at`` only for sums that have a say in that step.
        """
        with self._time.may_block():
            until = time.perf_counter() + patience_s if patience_s > 0 else None
            for record in self._backlog.rows(until=until, decides_at=decides_at):
                self._write_row(record)
            if "exchange" in self._broken:
                self._backlog.forget_sums()
            for record, arrived in self._backlog.sums(until=until, decides_at=decides_at):
                if arrived:
                    self._write_sum(record)
                else:
                    self._break("exchange", TimeoutError(f"the sum over workers of step {record.step} never arrived"))

    def note_unwatched(self, name: str) -> None:
        """Say that another model is trained on this rank and not watched."""
        self._outlet.write(
            Finding(
                code=WATCH_DEGRADED,
                severity="info",
                claim=f"Model '{name}' is trained on rank {self.team.rank} and not watched: not all ranks began to "
                "train one of this name at the same time, or there are too many.",
                ranks=(self.team.rank,),
                step_first=self._step,
                next=("Look whether every rank trains the same models.",),
            )
        )

    def stop_exchange(self) -> None:
        """The process groups go away: read the sums that are under way, and start no more."""
        with self.guarded("exchange"):
            self.drain(patience_s=exchange.PATIENCE_S)
        self._broken.add("exchange")

    def close(self, raised: BaseException | None = None) -> None:
        """Write what is left, and that ``raised`` ended the training; close the Sink, and leave the model as it was."""
        with self.guarded("close"):
            self.drain(patience_s=exchange.PATIENCE_S)
        if "replicas" not in self._broken:
            self._digest_last()
        self.session.detach()
        self._detach()
        if raised is not None:
            with self.guarded("close"):
                self._identity.note_raised(raised)
                self._outlet.describe(self._identity.manifest, self._identity.env)
        self._outlet.close()

    def abandon(self) -> None:
        """Leave the model as it was, in a process that was forked: nothing is written, and no other thread is there."""
        self.session.abandon()
        self._detach()
        self.team.abandon()

    def _detach(self) -> None:
        _open_here.remove(self)
        self._adapter.detach()
        self.loader.detach()
        self.averaging.detach()
        self.loss.detach()

    # -- one step --------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._batches: list[tuple[Pass, Batch]] = []
        self._row: dict[str, Any] = {"step": self._step}
        self._staged: dict[str, Tensor] = {}
        self._record: StepRecord | None = None
        self.loss.begin()
        self._await_decision()
        self._take_up()
        self._sampled = self._schedule.samples(self._step)
        self._keeps = self._sampled and self._schedule.keeps_sketches(self._step)
        with self.guarded("gradients"):
            if self._parameters.due(self._step, alone=self.team.size == 1):
                self._attach()
        self.contributions.begin(self.layout.params)
        self.gradients.begin(
            active=self._measures,
            exact=self.plan.exact and self._keeps,
            wants_reduced=self._sampled and self._recheck.due(),
        )
        starts = 0 <= self._step - self._schedule.first < STEPS_AT_START
        self.parts.begin(active=self._keeps or starts)
        self.session.open_step(self._step)

    def _await_decision(self) -> None:
        """Before a step is chosen, every sum that may change the interval or the Plan from here on must be in: all
        ranks decide alike.

        Such a sum is two samples old, so it is there; a rank that is gone costs ``PATIENCE_S`` once, then sums stop.
        """
        if self._backlog.decides(self._step) and self.team.group is not None and "exchange" not in self._broken:
            with self.guarded("exchange"):
                self.drain(patience_s=exchange.PATIENCE_S, decides_at=self._step)

    def _take_up(self) -> None:
        """Look for another Plan, and follow what all ranks agreed on to hold from this step on."""
        if "plan" not in self._broken:
            with self.guarded("plan"):
                self._live.look(self._step, agrees="exchange" not in self._broken)
                change = self._live.due(self._step)
                if self._live.triggers.news_at == self._step:
                    self._schedule.look_again(self._step)
                if change is not None:
                    self._follow(change)

    def _follow(self, change: Change) -> None:
        if change.revision is not None:
            self.plan = change.plan
            self._schedule.follow(change.plan, step=self._step)
            if self._identity.note_plan(change.plan, change.revision, step=self._step):
                self._outlet.describe(self._identity.manifest, self._identity.env)
        if isinstance(self.session, Idle):
            self.session = self._make_session(plan=change.records)
        else:
            self.session.follow(change.records)

    @property
    def layout(self) -> Layout:
        """The Layout in force."""
        return self._parameters.layout

    @property
    def _measures(self) -> bool:
        """Whether gradients are looked at in this step. A rank that cannot any more still takes part in the sums."""
        return self._sampled and self._adapter.mesh.compares and "gradients" not in self._broken

    def _attach(self) -> None:
        self.gradients = GradientProbe(self.layout)
        self._adapter.attach(self.gradients, self.guarded)

    def _digest_replicas(self) -> None:
        with self.guarded("replicas"):
            self._staged["param_digests"] = param_digests(self.layout)
            self._row |= rng_digests(self.layout.device)

    def _digest_last(self) -> None:
        """Digest the parameters as training left them. Asks no other rank, and no device for long; an update that never
        ended left nothing that replicas must share.
        """
        last = self._step - 1
        if self._updating or last < self._schedule.first or not self._schedule.within(last):
            return
        with self.guarded("replicas"):
            if self.layout.fits():
                copy = HostCopy({"closing_digests": param_digests(self.layout)})
                if copy.arrives(within_s=exchange.PATIENCE_S):
                    self._outlet.write({"step": last} | own_columns.digest_columns(copy.host))

    def _gather(self, *, seen: bool = True) -> None:
        if self._measures:
            with self.guarded("gradients"), torch.no_grad():
                self._gather_gradients(seen=seen)
        if self._keeps and self.plan.exact and self.team.side is not None and "exact cosines" not in self._broken:
            with self.guarded("exact cosines"), torch.no_grad():
                self._gather_exactly()
        copy, kept = HostCopy({}), self.contributions.kept()
        with self.guarded("row"):
            self._staged |= columns_of(self._batches, kept) | self.loss.result(kept) | self.parts.result(kept)
            self._staged |= kept.result()
            copy = HostCopy(self._staged)
        self._record = StepRecord(
            self._row,
            copy,
            self._schedule.interval,
            passes=self.passes.count,
            kept=kept,
            sampled=self._sampled,
            layout=self.layout,
            wants=self._parameters.wants,
            measured=self._measures,
            keeps_sketch=self._keeps,
        )
        if copy.ready():
            self._start_sum(self._record)

    def _gather_gradients(self, *, seen: bool) -> None:
        if seen:
            self.gradients.see_used()
        self._staged |= self.gradients.payload()

    def _gather_exactly(self) -> None:
        copies = self.gradients.copies
        self._row["exact_cosines"] = exact_cosines(copies, self.layout, team=self.team, step=self._step)

    def _start_sum(self, record: StepRecord) -> None:
        """Begin the sum over workers of a sampled step, once its numbers are on the host."""
        self._look_at(record)
        if record.pending is not None or self.team.group is None or not record.sampled or "exchange" in self._broken:
            return
        sums = np.zeros(0)
        if record.measured and "gradients" not in self._broken:
            with self.guarded("gradients"):
                sums = record.part_of_sum(workers=self.team.size)
        with self.guarded("exchange"):
            scalars = shared_columns.scalars(
                record.own or shared_columns.NOTHING,
                step=record.step,
                spent=self._time.latest,
                passes=record.passes,
                plan=self._live.announced,
                seen=self._live.triggers.tell(),
                layout=record.layout.digest if sums.size else 0,
                wants=record.wants,
            )
            record.pending = exchange.start(self.team, step=record.step, scalars=scalars, sums=sums)

    def _look_at(self, record: StepRecord) -> None:
        """Note what this rank alone sees amiss in what has reached the host. One process tells itself at once."""
        if record.looked_at:
            return
        record.looked_at = True
        with self.guarded("plan"):
            triggers = self._live.triggers
            triggers.see(nonfinite_in(record.copy.host, scaled="torch.float16" in str(self.autocast)))
            if self.team.group is None:
                triggers.hear([triggers.tell()], step=record.step, known=self._step)

    def _end_row(self) -> None:
        if self._record is None:
            return
        self._record.row |= self._time.end_step(sampled=self._sampled)
        self._record.row |= {
            "time_ns": time.time_ns(),
            "epoch": self.loader.epoch,
            "passes": self.passes.clock(),
        }
        self._backlog.add(self._record)

    # -- writing ---------------------------------------------------------------------------------------------------

    def _write_row(self, record: StepRecord) -> None:
        self._start_sum(record)
        if record.beat:
            return
        host, num_micro = record.kept.left(record.copy.host)
        columns = (
            record.row
            | {"num_micro": num_micro}
            | own_columns.gradient_columns(host, record.layout, sharded=record.layout.mesh.shards > 1)
        )
        columns |= own_columns.digest_columns(host) | self._loss_columns(host, record.step, micros=num_micro or 0)
        if record.keeps_sketch and record.own is not None:
            columns["sketch"] = record.own.local.astype(np.float32).ravel()
        self._outlet.write(columns)

    def _loss_columns(self, host: Mapping[str, Tensor], step: int, *, micros: int) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        with self.guarded("loss"):
            columns |= self.loss.columns(host, step=step, micros=micros)
            models_loss = columns.pop("models_loss", True)
            columns |= self.parts.columns(host, columns.pop("part_losses", []), models_loss=models_loss)
        return columns

    def _write_sum(self, record: StepRecord) -> None:
        result = record.pending.result() if record.pending is not None else None
        if result is None:
            return
        scalars = result[0]
        if (apart := shared_columns.apart(scalars)) is not None:
            self._break("exchange", RuntimeError(apart))
            return
        plan, seen, wants = (scalars[:, shared_columns.SCALARS.index(name)] for name in ("plan", "seen", "wants"))
        self._live.hear(int(plan.max()), known=record.known)
        self._live.triggers.hear(seen.tolist(), step=record.step, known=record.known)
        self._parameters.hear(wants, known=record.known)
        self._write_shared(record, *result)
        if not record.beat:
            self._follow_budget(scalars, record)

    def _write_shared(self, record: StepRecord, scalars: shared_columns.Array, flat: shared_columns.Array) -> None:
        reduction = self._adapter.reduction()
        columns = record.columns_of(scalars, flat, reduction)
        if not columns:
            return
        straight, mean = shared_columns.is_mean(columns)
        self._recheck.heard(straight=straight, mean=mean)
        lossy = reduction.lossy or not reduction.known
        self._live.triggers.see(seen_in_row(columns, lossy=lossy, by_hand=not reduction.seen))
        self._outlet.write({"step": record.step} | columns)

    def _follow_budget(self, scalars: shared_columns.Array, record: StepRecord) -> None:
        if not self._schedule.counts(record.step):
            return
        self._schedule.spent(**worst(scalars))
        decision = self._schedule.decide(record.step, interval=record.interval)
        if decision is not None and self._identity.note_interval(decision, step=record.step):
            self._outlet.describe(self._identity.manifest, self._identity.env)

    def _describe(self, optimizer: torch.optim.Optimizer) -> None:
        self.loader.at_training_step()
        changed = self._identity.update(
            self.model,
            self._parameters,
            step=self._step,
            optimizer=optimizer,
            data=self.loader.facts,
            autocast=self.autocast,
            token_source=self._batches[0][1].token_source if self._batches else "",
            loss_source=self.loss.source,
            talks_in_forward=self.talks_in_forward,
            local_updates=self.averaging.averager or ("the plan" if self.plan.local_updates else ""),
        )
        if changed:
            self._outlet.describe(self._identity.manifest, self._identity.env)

    # -- what goes wrong -------------------------------------------------------------------------------------------

    def _break(self, part: str, error: Exception) -> None:
        """Detach one part after an exception of ours and say so once; never raises."""
        if part in self._broken:
            return
        self._broken.add(part)
        if part == "gradients":
            self.gradients.begin(active=False)
        self._outlet.degraded(part, error)
