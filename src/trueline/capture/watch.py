"""``Watch``: the handle a training script holds, and how watching is put on a model and taken off again."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from trueline.capture.beginning import SinkMaker, begin
from trueline.capture.declared_averages import declared_averages
from trueline.capture.model import patches
from trueline.capture.model.model_names import name_of
from trueline.capture.model.object_table import ObjectTable
from trueline.capture.model.outputs import differentiable
from trueline.capture.model.scripted import hide_hooks
from trueline.capture.model.untraced import Hook, forward_module, in_backward
from trueline.capture.probes.surroundings import updates_made
from trueline.capture.step.call_sites import KINDS, call_sites
from trueline.capture.step.called_parts import CalledParts
from trueline.capture.step.exchange import PATIENCE_S
from trueline.capture.step.updates import Updates, closure_of
from trueline.schema.columns.evaluations import UntrainedPass
from trueline.schema.errors import CaptureError, TrainingStopped
from trueline.schema.plan import Plan
from trueline.schema.roles import Guard, Sink
from trueline.schema.safe_logger import SafeLogger

_COMPILED = (
    "updates run inside of what torch.compile made, where gradients are not seen as the optimizer receives them: leave "
    "optimizer.step() outside to have them."
)

_log = SafeLogger()

DROPPED_S = 1.0
"""Longest wait for late sums of a model that was dropped: a collection of garbage may come at any line of a job."""


class Watch:
    """Watching of one model. Every method is safe to call when watching has broken down: training never notices.

    ``run_path`` is where the Run goes, ``name`` what the model is called, ``param_ids`` are the ``id`` of its
    parameters, and ``epoch`` knows its training data.
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
        make_guard: Callable[[Plan], Guard],
        averages: Any = (),
    ) -> None:
        self.run_path = run_path
        self.name = name or name_of(model)
        self.param_ids = {id(param) for param in model.parameters()}
        optimizers = _as_refs(optimizer)
        self._recorder, self._probes, self._skipping = begin(
            model,
            make_sink=make_sink,
            plan=plan,
            process_group=process_group,
            version=version,
            step=step,
            updates=updates_made(ref() for ref in optimizers),
            name=self.name,
            averages=declared_averages(averages),
            make_guard=make_guard,
        )
        self.epoch = self._probes.epoch
        self._notes = self._recorder.notes
        self._guarded = self._recorder.parts.guarded
        self._batch_given = False
        self._called_parts: CalledParts | None = None
        self.updates = Updates(optimizers, watched=lambda key: key in self._recorder.layout.index_of)
        self._handles = self._hook(model)
        call_sites.listen(*KINDS)
        self._closed = False
        self._after_close: list[Callable[[], None]] = []
        patches.destroy_groups.add(self._before_destroy)
        patches.serialising.install()
        _note_living(self)
        if (optimizer_running := self.updates.running()) is not None:
            # watching began in a closure: the update that called it began before there was a hook
            self._recorder.before_update(optimizer_running, gradients_ready=False)

    @contextlib.contextmanager
    def step(self, batch: Any = None) -> Iterator[Watch]:
        """One training step (or micro-batch) on ``batch``, whose samples are digested here instead of at the forward
        pass.
        """
        self._end_unseen()
        if batch is not None:
            self._recorder.at_batch((batch,), {})
            self._batch_given = True
        try:
            yield self
        finally:
            self._batch_given = False

    def loss(self, loss: Tensor | float, tokens: float | Tensor | None = None) -> None:
        """Take this worker's loss before any averaging, and the number of tokens that it is the mean over.

        A loss with several elements is one per sample: their mean is the loss, weighted by ``tokens`` if those are
        counted per sample too.
        """
        with self._guarded("losses given by hand"):
            self._probes.loss.give(loss, tokens)

    def save(self, name: str, value: Tensor) -> None:
        """Record ``value`` and its gradient under ``name`` in the steps that are recorded; nothing in the others."""
        self._recorder.parts.session.save(name, value)

    @property
    def plan(self) -> Plan:
        """The Plan that all ranks follow."""
        return self._recorder.plan

    @property
    def folder(self) -> str | None:
        """Folder of the Run of this rank's team."""
        return self._recorder.safe_sink.folder

    @property
    def records_to(self) -> Sink:
        """The Sink of records that do not come from a probe."""
        return self._recorder.safe_sink

    @property
    def first_step(self) -> int:
        """The step with which this start of the job began."""
        return self._recorder.first_step

    @property
    def leads(self) -> bool:
        """True if this is the first rank of those that share the Run."""
        return self._recorder.team.index == 0

    def know_passes(self, passes: Sequence[tuple[UntrainedPass, Tensor | None]]) -> None:
        """Take what was seen of forward passes before watching began."""
        self._probes.evaluations.know(passes)

    def follow_parts(self, part: nn.Module | None = None) -> None:
        """The script calls parts of the model and not the model: see the passes of these. ``part`` is about to be
        called.
        """
        if self._called_parts is None and self.forward_module is not None:
            self._called_parts = CalledParts(self.forward_module, self._hook_part)
        if self._called_parts is not None and part is not None:
            self._called_parts.add(part)

    def after_close(self, call: Callable[[], None]) -> None:
        """``call`` when this process has closed its part of the Run."""
        self._after_close.append(call)

    def note_unwatched(self, name: str) -> None:
        """Say that a further model of this name is trained and not watched."""
        self._recorder.safe_sink.note_unwatched(name)

    @classmethod
    def further_name(cls, run_path: str, model: nn.Module, name: str) -> str | None:
        """Name of ``model`` inside of the Run at ``run_path``, where a Watch of another model has that open in this
        process: ``name``, or for a second one ``name-2``.
        """
        param_ids = {id(param) for param in model.parameters()}
        same_run = (watch for watch in _living if watch.run_path == run_path)
        # no further model then, but the watched one once more, or a part of it
        if run_path not in _paths_ended and all(watch.param_ids >= param_ids for watch in same_run):
            return None
        paths_taken = {watch.run_path for watch in _living} | _paths_ended
        numbered = (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))
        return next(candidate for candidate in numbered if further_run(run_path, candidate) not in paths_taken)

    def close(self, *, raised: BaseException | None = None) -> None:
        """Write what is left, take all hooks off and give back the connections between ranks. Called again, or at
        exit, it does nothing. ``raised`` is what ended the training, if that is known.
        """
        self._close(raised, patience_s=PATIENCE_S)

    def _close(self, raised: BaseException | None, *, patience_s: float) -> None:
        if not self._closed:
            self._end_unseen()
            self._unhook()
            if not self.updates.ended_any:
                left_out = self._probes.scaler.num_left_out
                why = (
                    f": a GradScaler left out all {left_out} updates, as gradients were not finite" if left_out else ""
                )
                _log.warning("trueline: no optimizer step seen%s, so the Run at '%s' has no steps.", why, self.run_path)
                if raised is None and not left_out:
                    self._recorder.note_no_update()
            self._recorder.close(raised, patience_s=patience_s)
            self._probes.detach()
            self._recorder.team.give_back()
            for call in self._after_close:
                call()

    def abandon(self) -> None:
        """Take all hooks off and leave everything else as it is: another process, of which this one is a fork, watches
        on.
        """
        if not self._closed:
            self._unhook()
            self._recorder.abandon()
            self._probes.detach()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: object, raised: BaseException | None, *_: object) -> None:
        self.close(raised=raised)

    def __del__(self) -> None:
        """The model is gone, and nobody else holds this: its Run is over."""
        if not getattr(self, "_closed", True):
            with contextlib.suppress(Exception):
                _paths_ended.add(self.run_path)
                self._close(None, patience_s=DROPPED_S)

    def _unhook(self) -> None:
        self._closed = True
        if self._skipping is not None:
            self._skipping.detach()
        _living.drop(self)
        if not _living:
            call_sites.ignore(*KINDS)  # the functions of torch come back with the last model
            patches.serialising.remove()
        patches.destroy_groups.remove(self._before_destroy)
        patches.update_begins.remove(self._before_update)
        patches.update_ended.remove(self._after_update)
        _files.discard(self.records_to)
        _unhooked.discard(self)
        for handle in self._handles:
            handle.remove()
        if self._called_parts is not None:
            self._called_parts.remove()

    def _hook(self, model: nn.Module) -> list[Any]:
        followed = self._recorder.follow(self._before_step, self._after_step)
        handles: list[Any] = [] if followed is None else [followed]
        if followed is None:
            patches.update_begins.add(self._before_update)
            patches.update_ended.add(self._after_update)
        hide_hooks()
        self.forward_module = hooked = forward_module(model)
        if hooked is None:
            _unhooked.add(self)
            self._notes.append(
                "the model is compiled: its forward pass is not hooked, pass batches by watch.step(batch)."
            )
        else:
            handles.append(hooked.register_forward_pre_hook(Hook(self.before_forward), with_kwargs=True))
            handles.append(hooked.register_forward_hook(Hook(self._after_forward), with_kwargs=True))
        return handles

    def _hook_part(self, part: nn.Module) -> list[Any]:
        before, after = Hook(self._before_part), Hook(self._after_part)
        return [
            part.register_forward_pre_hook(before, with_kwargs=True),
            part.register_forward_hook(after, with_kwargs=True),
        ]

    def _before_part(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if torch.is_grad_enabled() and not self._is_inside():
            self._begin_pass(part, args, kwargs, part)

    def _after_part(self, part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if torch.is_grad_enabled() and not self._is_inside():
            self._end_pass(part, args, kwargs, output)

    def _is_inside(self) -> bool:
        """True if a part runs within a pass of the whole model, or in a backward pass that computes it again."""
        return self._called_parts is None or self._called_parts.whole_runs or in_backward()

    def before_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take the samples of a forward pass that may be trained on: a model may be so in evaluation mode too, and
        what no gradient comes back from is not counted.
        """
        trains, step = torch.is_grad_enabled(), self._recorder.now
        # passes of a model in training mode without gradients count as untrained only until it trains
        if not module.training or not (trains or self.updates.ended_any):
            self._probes.evaluations.begins(module, args, kwargs, step=step)
        if self._called_parts is not None:
            self._called_parts.whole_runs = True
        if trains:
            self._begin_pass(module, args, kwargs)

    def _begin_pass(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], part: nn.Module | None = None
    ) -> None:
        self._end_unseen()
        self._stop_if_asked()
        if self._skipping is not None:
            self._skipping.at_forward()
        if module.training:
            self.updates.saw_forward()
        if part is not None and self.forward_module is not None:
            module = self.forward_module
        self._recorder.at_forward(module, (args, kwargs), part, is_given=self._batch_given)

    def _after_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        trains = torch.is_grad_enabled()
        if not module.training or not (trains or self.updates.ended_any):
            self._probes.evaluations.ended(module)
        if self._called_parts is not None:
            self._called_parts.whole_runs = False
        if trains:
            self._end_pass(module, args, kwargs, output)

    def _end_pass(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        self._recorder.at_output(args, kwargs, output)
        # a hook on each output costs every step: only where gradients alone tell whether the pass was trained on
        if self.updates.asks_for_backward or not module.training:
            for tensor in differentiable(output):
                tensor.register_hook(Hook(self._after_backward))

    def _after_backward(self, gradient: Tensor) -> None:
        self.updates.saw_forward()
        self.updates.saw_backward()

    def _before_update(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments for torch to go on with, None for these."""
        closure = closure_of(args, kwargs)
        ends_step = self.updates.begin(optimizer, has_closure=closure is not None)
        if self._skipping is not None and self._leaves_out(optimizer, ends_step, has_closure=closure is not None):
            return None
        if ends_step:
            # none of whose passes was seen
            if self._recorder.has_no_pass and closure is None and self._called_parts is None:
                self.follow_parts()
            self._recorder.before_update(optimizer, gradients_ready=closure is None)
            return self._recorder.contributions.counting(args, kwargs)
        return None

    def _leaves_out(self, optimizer: torch.optim.Optimizer, ends_step: bool, *, has_closure: bool) -> bool:
        """True if the update that begins is not made, and so ends no step."""
        assert self._skipping is not None
        if ends_step:
            with self._recorder.parts.timed():
                return self._skipping.at_update(optimizer, step=self._recorder.now, has_closure=has_closure)
        if self.updates.counts(optimizer):
            self._skipping.at_further_update(optimizer)
        return False

    def _end_unseen(self) -> None:
        """End the step whose update was in what torch.compile made, where no hook is called."""
        optimizer = self._recorder.parts.attempt("optimizer", self.updates.unseen)
        if optimizer is None:
            return
        if _COMPILED not in self._notes:
            self._notes.append(_COMPILED)
        if self._skipping is not None:
            self._skipping.refuse_compiled()
        self._recorder.before_update(optimizer, gradients_ready=False)
        self._recorder.after_update(has_gradients=False)

    def _after_update(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ended = self.updates.end(optimizer)
        if self._skipping is not None and self._skipping.updated(optimizer, ended=ended):
            return
        if ended:
            if self._called_parts is not None:
                self._called_parts.updated()
            self._recorder.after_update()
            self._stop_if_asked()

    def _stop_if_asked(self) -> None:
        """Raise in the user's own thread, between two steps, where the Plan asks for it from this step on."""
        if why := self._recorder.take_stop():
            raise TrainingStopped(f"Training was stopped before step {self._recorder.now}, as the Plan asks: {why}")

    def _before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """The framework says that it is about to update."""
        if self._recorder.has_no_pass and self._called_parts is None:
            self.follow_parts()
        self._recorder.before_update(optimizer, gradients_ready=True)

    def _after_step(self) -> None:
        self._recorder.after_update()
        self.updates.ended_any = True

    def _before_destroy(self, group: dist.ProcessGroup | None = None) -> None:
        # connections between ranks end with the world they were made from, not with one of its groups
        if group is None or group is dist.group.WORLD:
            self._recorder.stop_exchange()
            self._recorder.team.give_back()


_living = ObjectTable["Watch", None]()
"""Watches that are open, in the order in which they began. A Watch lives as long as its model, which holds its hooks:
where the user drops one, the other goes with it.
"""
_files: set[Sink] = set()
"""Their Sinks: where one is collected, its files would be closed before it has written what is left."""
_paths_ended: set[str] = set()
"""Runs of models that are gone. What is watched under the same path then is a further model."""
_unhooked: set[Watch] = set()
"""Open ones whose model takes no hook, and cannot hold them."""


def _note_living(watch: Watch) -> None:
    if not _closes_at_exit:
        _closes_at_exit.append(atexit.register(_close_all))
    _living.set(watch, None)
    _files.add(watch.records_to)


_closes_at_exit: list[Callable[[], None]] = []


def _close_all() -> None:
    """Close, knowing what the interpreter is ended by; at a prompt that is whatever was raised last."""
    raised = None if hasattr(sys, "ps1") else getattr(sys, "last_value", None)
    for watch in [*_living][::-1]:
        with contextlib.suppress(Exception):
            watch.close(raised=raised)


def watched_sink() -> Sink | None:
    """The Sink of the model that is watched in this process, of several the first; None where none is."""
    main_watches = [watch for watch in _living if f"{os.sep}models{os.sep}" not in watch.run_path]
    return main_watches[0].records_to if len(main_watches) == 1 else None


def is_watched(run_path: str) -> bool:
    """True if a Watch of this process writes the Run at ``run_path``."""
    path = os.path.abspath(run_path)
    return any(os.path.abspath(watch.run_path) == path for watch in _living)


def further_run(run_path: str, name: str) -> str:
    """Path of the Run of a further model of the Run at ``run_path``."""
    return os.path.join(run_path, "models", name)


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
    optimizers = optimizer if isinstance(optimizer, (list, tuple)) else (optimizer,)
    inner = [innermost(item) for item in optimizers]
    if all(isinstance(item, torch.optim.Optimizer) for item in inner):
        return tuple(weakref.ref(item) for item in inner)
    raise CaptureError(
        f"optimizer is a {type(optimizer).__name__}. Pass a torch.optim.Optimizer, a list of them, or leave it out."
    )


def innermost(optimizer: Any) -> Any:
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
