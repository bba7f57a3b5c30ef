"""``Watch``: the handle a training script holds, and how watching is put on a model and taken off again."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import datetime
import itertools
import logging
import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from trueline.capture.adapters import choose_adapter
from trueline.capture.adapters.backward_end import differentiable
from trueline.capture.adapters.base import Adapter
from trueline.capture.adapters.sharded import StagesAdapter
from trueline.capture.job.environment import autocast_state
from trueline.capture.model import patches
from trueline.capture.model.hook import Hook
from trueline.capture.model.layout import unwrap, watched_parameters
from trueline.capture.model.names import name_of
from trueline.capture.model.world import collectives_started, world_size
from trueline.capture.probes.batch import read_batch
from trueline.capture.probes.dataloader import DataLoaderProbe
from trueline.capture.probes.optimizer import updates_made
from trueline.capture.record.start import require_fitting
from trueline.capture.step import shared_columns
from trueline.capture.step.exchange import Team, make_team
from trueline.capture.step.recorder import Recorder
from trueline.capture.step.updates import Updates
from trueline.schema.errors import CaptureError, InputError, TruelineError
from trueline.schema.plan import Plan
from trueline.schema.roles import Sink
from trueline.schema.run_manifest import Attempt, Manifest
from trueline.schema.start import Job, Start

REDUCING = ("ddp", "fsdp1", "fsdp2")
"""Adapters of frameworks whose backward pass reduces: whoever trains comes to it."""


LISTENS = 3
"""Forward passes at the start of which it is asked whether ranks exchange tensors within them."""

_COMPILED = (
    "updates run inside of what torch.compile made, where gradients are not seen as the optimizer receives them: leave "
    "optimizer.step() outside to have them."
)

_log = logging.getLogger("trueline")


class SinkMaker(Protocol):
    """Makes this rank's Sink in the Run that the team led by rank ``lead`` shares. ``lead`` goes first, creates it and
    decides how ``job`` begins, which its Sink tells as ``start``; the others are given that.
    """

    def __call__(self, *, rank: int, lead: int, job: Job, start: Start | None) -> Sink:
        """The Sink of ``rank``."""
        ...


class Watch:
    """Watching of one model. Every method is safe to call when watching has broken down: training never notices.

    ``run_path`` is where the Run goes, ``name`` what the model is called, and ``param_ids`` tells its parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None,
        *,
        make_sink: SinkMaker,
        run_path: str,
        plan: Plan,
        process_group: dist.ProcessGroup | None = None,
        version: str = "",
        step: int | None = None,
        name: str = "",
    ) -> None:
        self.run_path = run_path
        self.name = name or name_of(model)
        self.param_ids = {id(param) for param in model.parameters()}
        self._optimizers = _as_refs(optimizer)
        watched_parameters(model, patterns=plan.param_names)
        require_fitting(model, plan)
        adapter = choose_adapter(model, process_group)
        compared = (
            adapter.name if adapter.mesh.compares and adapter.name != "fsdp1" else ""
        )  # its shards have other shapes
        team = make_team(adapter.mesh, model=model, adapter=compared, replicas=adapter.name in REDUCING)
        if team.apart is None:
            adapter.detach()
            adapter = StagesAdapter(process_group)
        adapter.notes += _notes(team)
        job = _job(model, adapter, plan, step=step, updates=updates_made(ref() for ref in self._optimizers))
        sink, start, followed = _open_together(team, make_sink, job, plan)
        if followed != plan:
            adapter.notes.append(
                f"rank {team.rank} was given another Plan than rank {team.ranks[0]}: that is followed."
            )
        plan = followed
        team.connect(side=plan.exact and adapter.mesh.compares)
        team.room = shared_columns.room(plan.max_groups) if adapter.mesh.compares else 0
        if team.index == 0:
            manifest = _manifest(adapter, team, job=job, start=start, version=version, model=self.name)
            start = dataclasses.replace(start, manifest=manifest)
        self._recorder = Recorder(model, adapter=adapter, sink=sink, plan=plan, team=team, start=start)
        self.updates = Updates(self._optimizers, watched=lambda key: key in self._recorder.layout.index_of)
        self._listens = LISTENS if adapter.name == "manual" else 0
        self._talk = 0
        self._handles = self._hook(model, adapter)
        self._closed = False
        self._notes = adapter.notes
        patches.destroy_groups.add(self._before_destroy)
        atexit.register(self._at_exit)
        _living.add(self)
        if (optimizer_running := self.updates.running()) is not None:
            self._recorder.before_update(optimizer_running, gradients_ready=False)

    @contextlib.contextmanager
    def step(self, batch: Any = None) -> Iterator[Watch]:
        """One training step (or micro-batch) on ``batch``, whose samples are digested here instead of at the forward
        pass.
        """
        self._end_unseen()
        if batch is not None:
            with self._recorder.guarded("batch"):
                self._recorder.contributions.forward_begins()
                self._recorder.consume(read_batch(batch))
            self._recorder.batch_given = True
        try:
            yield self
        finally:
            self._recorder.batch_given = False

    def loss(self, loss: Tensor | float, tokens: float | Tensor | None = None) -> None:
        """Take this worker's loss before any averaging, and the number of tokens that it is the mean over.

        A loss with several elements is one per sample: their mean is the loss, weighted by ``tokens`` if those are
        counted per sample too.
        """
        with self._recorder.guarded("loss"):
            self._recorder.loss.give(loss, tokens)

    def save(self, name: str, value: Tensor) -> None:
        """Record ``value`` and its gradient under ``name`` in the steps that are recorded; nothing in the others."""
        self._recorder.session.save(name, value)

    def use_loader_probe(self, probe: DataLoaderProbe) -> None:
        """Take the epoch from a probe that has listened since before watching began."""
        self._recorder.loader.detach()
        self._recorder.loader = probe

    def note_unwatched(self, name: str) -> None:
        """Say that a further model of this name is trained and not watched."""
        self._recorder.note_unwatched(name)

    @classmethod
    def further(cls, out: str, model: nn.Module, name: str) -> str | None:
        """What ``model`` is to be called inside of the Run at ``out``, where a Watch of another model has that open in
        this process: ``name``, or for a second one ``name-2``.
        """
        held = {id(param) for param in model.parameters()}
        if not any(one.run_path == out and not one.param_ids >= held for one in [*_living]):
            return None
        taken = {one.run_path for one in [*_living]}
        numbered = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
        return next(each for each in numbered if further_run(out, each) not in taken)

    def close(self, *, raised: BaseException | None = None) -> None:
        """Write what is left, take all hooks off and give back the connections between ranks. Called again, or at
        exit, it does nothing. ``raised`` is what ended the training, if that is known.
        """
        if not self._closed:
            self._end_unseen()
            self._unhook()
            if not self.updates.ended_any:
                _log.warning("trueline: no optimizer step seen, so the Run at '%s' has no steps.", self.run_path)
            self._recorder.close(raised)
            self._recorder.team.give_back()

    def abandon(self) -> None:
        """Take all hooks off and leave everything else as it is: another process, of which this one is a fork, watches
        on.
        """
        if not self._closed:
            self._unhook()
            self._recorder.abandon()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: object, raised: BaseException | None, *_: object) -> None:
        self.close(raised=raised)

    def _at_exit(self) -> None:
        """Close, knowing what the interpreter is ended by; at a prompt that is whatever was raised last."""
        self.close(raised=None if hasattr(sys, "ps1") else getattr(sys, "last_value", None))

    def _unhook(self) -> None:
        self._closed = True
        _living.discard(self)
        atexit.unregister(self._at_exit)
        patches.destroy_groups.remove(self._before_destroy)
        for handle in self._handles:
            handle.remove()

    def _hook(self, model: nn.Module, adapter: Adapter) -> list[Any]:
        handles: list[Any] = [
            register_optimizer_step_pre_hook(Hook(self._before_update)),
            register_optimizer_step_post_hook(Hook(self._after_update)),
        ]
        self.forward_module = seen = _forward_module(model)
        if seen is None:
            adapter.notes.append(
                "the model is compiled in place: its forward pass is not hooked, pass batches by watch.step(batch)."
            )
        else:
            handles.append(seen.register_forward_pre_hook(Hook(self.before_forward), with_kwargs=True))
            handles.append(seen.register_forward_hook(Hook(self._after_forward), with_kwargs=True))
        return handles

    def before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the samples of a training forward pass; evaluation and generation are left alone."""
        if not (module.training and torch.is_grad_enabled()):
            return
        self._end_unseen()
        self.updates.saw_forward()
        recorder = self._recorder
        with recorder.guarded("batch"):
            self._talk = collectives_started() if self._listens > 0 else 0
            if not recorder.batch_given:
                recorder.contributions.forward_begins()
            recorder.passes.at_forward(recorder.model)
            recorder.autocast = autocast_state()
            recorder.loader.at_training_step()
            if module is unwrap(recorder.model):
                recorder.enter_forward()
            if not recorder.batch_given:
                recorder.consume(read_batch(*args, **kwargs))

    def _after_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if module.training and torch.is_grad_enabled():
            with self._recorder.guarded("batch"):
                self._recorder.passes.at_output(output)
                self._recorder.contributions.at_output(output)
                if self._listens > 0:
                    self._listens -= 1
                    self._recorder.talks_in_forward |= collectives_started() > self._talk
            with self._recorder.guarded("loss"):
                self._recorder.loss.from_output(output, kwargs, shifted=self._recorder.parts.shifted)
            if not self._recorder.contributions.is_over:
                with self._recorder.guarded("losses of samples"):
                    self._recorder.parts.see(output, args, kwargs)
            if self.updates.asks_for_backward:
                for tensor in differentiable(output):
                    tensor.register_hook(Hook(self._after_backward))

    def _after_backward(self, gradient: Tensor) -> None:
        self.updates.saw_backward()

    def _before_update(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments for torch to go on with, None for these."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0] is the optimizer
        if self.updates.begin(optimizer, has_closure=closure is not None):
            self._recorder.before_update(optimizer, gradients_ready=closure is None)
            return self._recorder.contributions.counting(args, kwargs)
        return None

    def _end_unseen(self) -> None:
        """End the step whose update was in what torch.compile made, where no hook is called."""
        with self._recorder.guarded("optimizer"):
            optimizer = self.updates.unseen()
            if optimizer is None:
                return
            if _COMPILED not in self._notes:
                self._notes.append(_COMPILED)
        self._recorder.before_update(optimizer, gradients_ready=False)
        self._recorder.after_update(seen=False)

    def _after_update(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.updates.end(optimizer):
            self._recorder.after_update()

    def _before_destroy(self, group: dist.ProcessGroup | None = None) -> None:
        if group is None or group is dist.group.WORLD:
            self._recorder.stop_exchange()
            self._recorder.team.give_back()


_living: weakref.WeakSet[Watch] = weakref.WeakSet()


def further_run(out: str, name: str) -> str:
    """Where the Run of a further model of the Run at ``out`` goes."""
    return os.path.join(out, "models", name)


def _let_go() -> None:
    """Take every Watch off in a process that was just forked: the Run, the group and its threads are its parent's."""
    for watch in [*_living]:
        watch.abandon()


os.register_at_fork(after_in_child=_let_go)


def _as_refs(
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer] | None,
) -> tuple[weakref.ref[torch.optim.Optimizer], ...]:
    if optimizer is None:
        return ()
    several = optimizer if isinstance(optimizer, (list, tuple)) else (optimizer,)
    inner = [_innermost(one) for one in several]
    if all(isinstance(one, torch.optim.Optimizer) for one in inner):
        return tuple(weakref.ref(one) for one in inner)
    raise CaptureError(
        f"optimizer is a {type(optimizer).__name__}. Pass a torch.optim.Optimizer, a list of them, or leave it out."
    )


def _innermost(optimizer: Any) -> Any:
    """The optimizer whose step torch's hooks see, inside of those that Accelerate (which are optimizers too) and
    Lightning wrap around it, and of post-local SGD's, which was never constructed as an optimizer.
    """
    while not hasattr(optimizer, "_optimizer_step_pre_hooks") and isinstance(
        inner := getattr(optimizer, "optim", None), torch.optim.Optimizer
    ):
        optimizer = inner
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    return optimizer


def _forward_module(model: nn.Module) -> nn.Module | None:
    """The module whose forward hooks run in eager mode once a training step: the innermost that is not compiled.

    A hook inside a compiled region would be traced and could change what the compiler fuses, so the outermost wrapper
    is taken where anything below it is compiled; None where the outermost is compiled in place.
    """
    chain = [model]
    while (inner := _one_inside(chain[-1])) is not None:
        chain.append(inner)
    compiled = any(hasattr(module, "_orig_mod") or _compiled_in_place(module) for module in chain)
    if not compiled:
        return unwrap(model)
    return None if _compiled_in_place(model) else model


def _one_inside(model: nn.Module) -> nn.Module | None:
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return model.module
    return getattr(model, "_orig_mod", None)


def _compiled_in_place(module: nn.Module) -> bool:
    return getattr(module, "_compiled_call_impl", None) is not None


def _job(model: nn.Module, adapter: Adapter, plan: Plan, *, step: int | None, updates: int | None) -> Job:
    return Job(
        world_size=world_size(),
        adapter=adapter.name,
        params=tuple(name for name, _ in watched_parameters(model, patterns=plan.param_names)),
        plan=plan.model_dump(mode="json"),
        step=step,
        updates=updates,
    )


def _notes(team: Team) -> list[str]:
    """What is to be said of the ranks that met."""
    notes: list[str] = []
    if team.missing:
        notes.append(
            f"rank{'s' if len(team.missing) > 1 else ''} {', '.join(map(str, team.missing))} did not come to train "
            f"this model in time: only {', '.join(map(str, team.ranks))} of its ranks are in this Run."
        )
    if team.apart:
        names = sorted(team.apart.shape | team.apart.frozen)
        if names:
            notes.append(
                f"Parameters are not the same on all ranks ({len(names)}, {names[0]} for one): their gradients are not "
                "compared, all others are."
            )
    return notes


def _open_together(team: Team, make_sink: SinkMaker, job: Job, plan: Plan) -> tuple[Sink, Start, Plan]:
    """Every rank's Sink, the first rank's first, how the job begins, and the first rank's Plan, which all follow; where
    that fails all ranks raise, so that none waits for the others.
    """
    failure: TruelineError | None = None
    sink: Sink | None = None
    start = Start(step=job.step or 0)
    if team.index == 0:
        try:
            sink = make_sink(rank=team.rank, lead=team.ranks[0], job=job, start=None)
            start = getattr(sink, "start", start)
        except TruelineError as error:
            failure = error
        except OSError as error:
            failure = InputError(str(error))
    failure, shared, plan = team.share((failure, dataclasses.replace(start, manifest=None), plan))
    if failure is not None:
        team.give_back()
        raise failure
    start = start if team.index == 0 else shared
    if sink is None:
        sink = make_sink(rank=team.rank, lead=team.ranks[0], job=job, start=start)
    return sink, start, plan


def _manifest(adapter: Adapter, team: Team, *, job: Job, start: Start, version: str, model: str) -> Manifest:
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    manifest = Manifest(
        trueline_version=version,
        started_at=now,
        world_size=job.world_size,
        data_parallel_ranks=list(team.ranks) if adapter.mesh.compares else [team.ranks[0]],
        adapter=adapter.name,
        model=model,
        command=list(sys.argv),
        plan=job.plan,
        attempts=[Attempt(step=start.step, started_at=now, updates=job.updates, plan=job.plan)],
        notes=list(adapter.notes),
    )
    earlier = start.manifest
    if earlier is None:
        return manifest
    return manifest.model_copy(
        update={
            "started_at": earlier.started_at or now,
            "plan": earlier.plan or job.plan,
            "plans": earlier.plans,
            "attempts": earlier.attempts,
            "notes": list(dict.fromkeys([*earlier.notes, *adapter.notes])),
        }
    )
