"""A session of recording: selects steps, puts hooks on for each of them, and writes their rows.

A step is opened after the update before it and closed after its own, on all ranks alike. While no step is open there
are no hooks.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from trueline.capture.model.layout import clean_name, holds_padding, unwrap
from trueline.capture.model.untraced import in_backward
from trueline.capture.model.world import is_initialised
from trueline.capture.record import arguments
from trueline.capture.record.buffer import UNFILLED, StepBuffer, Unwritten
from trueline.capture.record.calls import Call, Calls, Selection
from trueline.capture.record.collectives import Collectives
from trueline.capture.record.compiled import CompiledCalls, name_of, owner_of, path_of
from trueline.capture.record.functions import BackwardCalls, Function, FunctionCalls, foreign_note
from trueline.capture.record.guard import Guard, counted, guarded
from trueline.capture.record.hooks import CallSlots, GradientHooks, ModuleCalls
from trueline.capture.record.outside import OutsideCalls
from trueline.capture.record.preparation import TOO_MANY, TOO_MANY_KEPT, Preparation, is_aside
from trueline.capture.record.stacks import Stacks, frame_of_update
from trueline.capture.record.updates import ParamUpdates
from trueline.capture.record.values import split_complete
from trueline.schema.columns.records import StepRecords
from trueline.schema.files.run_manifest import note_of_compiled
from trueline.schema.plan import Plan
from trueline.schema.roles import Record
from trueline.schema.safe_logger import SafeLogger

_log = SafeLogger()

COMPILED_BACKWARD = (
    "autograd compiles backward passes: their gradients are not recorded, as hooks would be compiled too."
)


class _Running(NamedTuple):
    """A module whose forward pass has begun, and whether our mode was put on for it."""

    name: str
    call: Call | None
    pushed: bool


class Session:
    """Records the steps of ``model`` that ``plan`` asks for, and hands them to ``write``.

    ``failed(error)`` is called once with an exception of Trueline's; recording then stops and training goes on. Lines
    on what cannot be recorded are added to ``notes``. ``spend(seconds)`` is told the CPU time of a monitor.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        plan: Plan,
        write: Callable[[Record], None],
        failed: Callable[[Exception], None],
        notes: list[str] | None = None,
        spend: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.notes = notes if notes is not None else []
        self._spend, self._spending = spend, False
        self._ring: deque[Record] | None = None
        self._model = model
        self._write = write
        self._failed = failed
        self._broken = False
        self._buffer = StepBuffer(plan, write=write)
        self.follow(plan)
        self._stacks = Stacks()
        self._described = arguments.Described()
        self._calls = Calls()
        self._preparation = Preparation(self._buffer.address_of, keeps_all=plan.bits_alone)
        self._mode = FunctionCalls(self._function)
        self._mode.sees_all = plan.bits_alone
        self._from_outside = OutsideCalls(self._function)
        self._follow_model(model)
        self._backward = BackwardCalls(self._mode, ended=self._after_backward, compiles=self._before_compiled)
        self._compiled = CompiledCalls(enter=self._enter_compiled, leave=self._leave_compiled, session=self)
        self._gradients = GradientHooks(self._gradient)
        self._updates = ParamUpdates()
        self._unwritten: deque[Unwritten] = deque()
        self._running: list[_Running] = []
        self._update: tuple[FrameType, int] | None = None
        self._quiet = self._taken_off = 0
        self._trains = self._updated = self._open = self._pads = self._is_early = False
        self._error: Exception | None = None

    def _follow_model(self, model: nn.Module) -> None:
        self._modules = ModuleCalls(model, enter=self._enter, leave=self._leave)
        self._collectives = Collectives(model, begin=self._begin_collective, end=self._see_sent, session=self)

    def begin_early(self) -> None:
        """Record calls from now on, before the model that trains is known; see ``take``."""
        self.open_step(0)
        self._is_early = self._open

    def take(
        self,
        model: nn.Module,
        *,
        write: Callable[[Record], None],
        failed: Callable[[Exception], None],
        notes: list[str],
        spend: Callable[[float], None],
    ) -> None:
        """Go on with ``model``, which is about to run; what was recorded since ``begin_early`` is of its first step."""
        notes += self.notes
        self.notes, self._write, self._failed, self._spend = notes, write, failed, spend
        self._buffer.write_to(write)
        self._model = model
        self._collectives.detach()
        self._follow_model(model)
        if self._error is not None:
            failed(self._error)

    def follow(self, plan: Plan | None) -> None:
        """Record by ``plan`` from the next step on, or with None nothing; between two steps only."""
        self._asleep = plan is None
        if plan is None:
            return
        self._plan = plan
        self._monitors = plan.preset == "monitor"
        self._modules_too = plan.preset in ("modules", "mix", "monitor")
        self._functions_too = plan.preset in ("ops", "mix", "bits")
        self._selection = Selection(plan)
        self._buffer.follow(plan)
        self._follow_ring(plan.ring)

    def _follow_ring(self, length: int | None) -> None:
        """Keep so many steps in memory from now on, of those that are there the latest; with None write these."""
        records = self._ring or ()
        self._ring = None if length is None else deque(records, maxlen=length)
        if self._ring is None:
            for record in records:
                self._write(record)

    # -- steps -----------------------------------------------------------------------------------------------------

    def wants(self, step: int, *, sampled: bool = True) -> bool:
        """True if the Plan asks for ``step``; a monitor takes those that are ``sampled``, or all of a stretch."""
        left_out = self._monitors and not sampled and self._plan.next_steps is None
        if self._broken or self._asleep or left_out:
            return False
        return self._selection.wants_step(step)

    @counted
    def open_step(self, step: int, *, sampled: bool = True) -> None:
        """Begin to record ``step``, if the Plan asks for it."""
        self.drain()
        if self._is_early:
            self._is_early = False
            with Guard(self):
                self._join_step(step)
            return
        if self._open or not self.wants(step, sampled=sampled):
            return
        self._open = True
        self._phase, self._scope = "fwd", ""
        self._running = []
        self._root = unwrap(self._model)
        self._calls.begin()
        self._preparation.begin()
        self._selection.begin()
        self._buffer.begin(step)
        self._gradients = GradientHooks(self._gradient)
        with Guard(self):
            self._modules.attach(wants=self._selection.wants_module if self._monitors else None)
            self._backward.attach(sees_functions=self._functions_too)
            if "comm" in self._selection.phases:
                self._collectives.attach()
            if "bwd" in self._selection.phases:
                self._watch_parameters()
            self._compiled.attach()
            if self._plan.bits_alone:
                self._from_outside.attach()
            for name in self._modules.compiled:
                self._note(note_of_compiled(name))
            if not foreign_note():
                self._push()

    def _join_step(self, step: int) -> None:
        """Put on the hooks of the model that are missing: ``step`` has begun before it was known."""
        self._buffer.step = step
        self._root = unwrap(self._model)
        self._modules.attach()
        if "comm" in self._selection.phases:
            self._collectives.attach()
        if "bwd" in self._selection.phases:
            self._watch_parameters()
        for name in self._modules.compiled:
            self._note(note_of_compiled(name))

    @counted
    def begin_update(self, optimizer: Optimizer | None = None, *, gradients_ready: bool = True) -> None:
        """The optimizer is about to change the parameters: record them and the gradients that it receives. With a
        closure the step has not been computed yet, and neither is recorded.
        """
        if not self._open or not gradients_ready:
            return
        with Guard(self):
            frame = frame_of_update(sys._getframe(1))  # below it the stacks of all calls of the update are the same
            stack = None if frame is None else self._stack(frame)
            self._update = None if frame is None or stack is None else (frame, stack)
            if is_initialised() or not self._functions_too:
                # A reduction in C++, or a scaler that undoes its scale, does not change the version of a gradient.
                self._buffer.forget()
            if self._monitors and optimizer is not None:
                self._updates.begin(optimizer)
            for name, param in unwrap(self._model).named_parameters():
                name = clean_name(name)
                if self._selection.enters("param", name):
                    self._buffer.see(self._calls.next("param", name, "param"), [("value", param)])
                if self._selection.enters("opt", name):
                    self._updates.take(name, param)  # while what was just measured is in the processor's cache
                if param.grad is not None and self._selection.enters("grad", name):
                    self._buffer.see(self._calls.next("grad", name, "param"), [("grad", param.grad)])
            self._pads = self._functions_too and holds_padding(self._root)
        self._phase, self._scope = "opt", type(optimizer).__name__ if optimizer is not None else ""

    @counted
    def close_step(self) -> None:
        """The step is over: write it as soon as its numbers are on the host."""
        self._mode.remove()  # first: what follows is Trueline's own
        self._updated = True
        if not self._open:
            return
        self._collectives.finish()
        updates = self._updates  # `_unhook` begins new ones
        self._unhook()
        with Guard(self):
            for name, slots in updates.end():
                self._buffer.see(self._calls.next("opt", name, "param"), slots)
            self._settle()
            if not self._buffer.num_rows:
                self._note(self._selection.nothing_of(self._buffer.step))
                return
            stacks, self._stacks.new = self._stacks.new, []
            self._unwritten.append(self._buffer.finish(stacks))
        self.drain()

    def drain(self, *, wait: bool = False) -> None:
        """Write the steps that have reached the host, or with ``wait`` all."""
        with Guard(self):
            while self._unwritten and (wait or self._unwritten[0].ready()):
                step = self._unwritten.popleft()
                step.wait()
                for record in step.records():
                    if self._ring is not None and isinstance(record, StepRecords):
                        self._ring.append(record)
                    else:
                        self._write(record)

    def detach(self, *, raised: bool = False) -> None:
        """Write what is left, also of a step that no update has ended: an evaluation, or the one that ``raised``. What
        is kept in a ring is written in the latter case.
        """
        if self._open:
            if self._updated and not self._preparation.has_passes:  # what followed the last update is no step
                self._buffer.begin(self._buffer.step)
            if self._buffer.num_rows:
                self.close_step()
        self._unhook()
        self.drain(wait=True)
        if raised:
            self._follow_ring(None)

    def abandon(self) -> None:
        """Remove all hooks and write nothing, in a process that was forked: its parent goes on recording."""
        self._unwritten.clear()
        self._unhook()

    def save(self, name: str, value: Tensor) -> None:
        """Record ``value`` under ``name`` with its gradient, where a step is being recorded."""
        if not self._open or not self._selection.enters("save", name):
            return
        with Guard(self):
            call = self._calls.next("save", name, "value", stack=self._stack(sys._getframe(2)))
            self._preparation.takes(call, [("value", value)])
            self._see(call, [("value", value)])

    def pause(self) -> None:
        """Record nothing until ``resume``: the calls are Trueline's own."""
        self._quiet += 1
        self._taken_off += self._open and self._mode.take_off()

    def resume(self) -> None:
        """See ``pause``."""
        self._quiet -= 1
        if self._taken_off and not self._quiet:
            self._taken_off = 0
            self._push()

    # -- what the hooks call ---------------------------------------------------------------------------------------

    @counted
    def _enter(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._open:
            return
        compiled = name in self._modules.compiled  # asking the module itself costs an exception
        inner = unwrap(module) if compiled else module
        self._begin_pass(inner)
        pushed = not self._running and self._push()
        call = None
        stack = self._stack(sys._getframe(3))  # that of nn.Module, which also calls forward
        if self._modules_too and not self._is_unseen() and self._selection.enters("fwd", name):
            call = self._begin_module(name, inner, stack, "compiled" if compiled else "", args, kwargs)
        self._running.append(_Running(name, call, pushed))

    @counted
    def _leave(self, name: str, module: nn.Module, args: Any, output: Any) -> None:
        if not self._open or not self._running:
            return
        while (ended := self._running.pop()).name != name and self._running:
            pass
        call = ended.call
        if call is not None and output is not None:
            self._end_call(call, output)
        self._selection.leaves(name)
        if ended.pushed and in_backward():
            self._mode.remove()
            return
        if not self._running and (note := foreign_note(below=self._mode)):
            self._mode.remove()  # else it stays on outside of the model, for the loss and the update
            self._note(note)

    @guarded
    def _begin_module(self, name: str, module: nn.Module, stack: int | None, flag: str, args: Any, kwargs: Any) -> Call:
        path = f"{type(module).__module__}.{type(module).__qualname__}"
        parent = self._running[-1].name if self._running else ""
        call = self._calls.next("fwd", name, "module", path, parent, stack, flag)
        self._preparation.add(call, loose=False)
        slots, call.args = self._described(args, kwargs)
        self._preparation.takes(call, slots)
        self._see(call, slots)
        return call

    def _begin_pass(self, module: nn.Module) -> None:
        if in_backward():
            return
        trains = self._root.training and torch.is_grad_enabled()
        if module is self._root:
            self._calls.micro += trains
            self._phase = "fwd"
            self._collectives.begin_pass()
        if (trains and module is self._root) or (
            self._preparation.is_under_way and (trains or (torch.is_grad_enabled() and not self._trains))
        ):
            self._phase = "fwd"
            self._preparation.pass_begins(max(self._calls.micro, 0))
            self._trains = self._trains or trains

    def _is_unseen(self) -> bool:
        """True if nothing that runs now is recorded: what is Trueline's own; an update of parts that end with memory
        that nothing has filled; before the first pass, an evaluation too, and what comes after too many calls.
        """
        if self._quiet or not self._preparation.is_first:
            return bool(self._quiet) or (self._pads and self._phase == "opt")
        if self._plan.bits_alone:
            return self._preparation.gives_up
        return self._preparation.gives_up or (self._trains and not self._root.training)

    def _enter_compiled(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
    ) -> tuple[int | None, Call | None]:
        """Number of other modes below which to put ours on again later, None where it was not on; and the call, None
        where it is recorded as a module's already.
        """
        module = self._running[-1].name if self._running else self._scope
        above, owner = self._mode.remove(), owner_of(func)
        if self._running and module in self._modules.compiled:
            return above, None
        if owner is not None:
            self._begin_pass(owner)
            above = 0 if above is None and owner is self._root else above
        name = self._modules.name_of(owner) if owner is not None else f"{module}.{name_of(func)}".removeprefix(".")
        is_recorded, phase = self._functions_too if owner is None else self._modules_too, self._phase_now()
        if not is_recorded or self._is_unseen() or not self._selection.enters(phase, name):
            return above, None
        self._note(note_of_compiled(path_of(func) if owner is None else name))
        kind = "op" if owner is None else "module"
        call = self._next(phase, name, kind, path_of(func), module, self._stack(frame), "compiled")
        slots, call.args = self._described(args, kwargs)
        self._preparation.takes(call, slots)
        self._see(call, slots)
        return above, call

    def _leave_compiled(self, entered: tuple[int | None, Call | None], result: Any) -> None:
        above, call = entered
        if call is not None and self._open:
            self._end_call(call, result)
            self._selection.leaves(call.name)
        if above is not None and self._open:
            self._push(above=above)

    def _function(
        self,
        function: Function,
        run: Callable[[], Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: FrameType,
    ) -> Any:
        if (
            not self._open
            or self._is_unseen()
            or (started := self._begin_function(function, args, kwargs, frame)) is None
        ):
            return run()
        result = run()
        call, waits, written, parts = started
        if self._open:
            outputs = written if result is None else result
            unfilled = function.uninitialised or (function.cuts and self._are_unfilled(outputs))
            self._end_call(call, outputs, waits, UNFILLED if unfilled else None)
            if parts:
                self._buffer.fills(parts)
        self._selection.leaves(call.name)
        return result

    @guarded
    def _begin_function(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any], frame: FrameType
    ) -> tuple[Call, arguments.Slots, list[Tensor], list[Tensor]] | None:
        """The call, its arguments that wait for a collective first, those that it writes to, and of these the ones that
        nothing had written to; None where it is not recorded.
        """
        module, phase = self._running[-1].name if self._running else self._scope, self._phase_now()
        name = f"{module}.{function.name}" if module else function.name
        is_ahead = self._preparation.is_first and not self._running and not self._plan.bits_alone
        if is_ahead and (phase == "bwd" or is_aside(frame)):
            return None
        if not self._selection.enters(phase, name):
            return None
        call = self._next(phase, name, "op", function.api, module, self._stack(frame), function.flags)
        slots, call.args = self._described(args, kwargs)
        self._preparation.takes(call, slots)
        complete, waits = split_complete(slots)
        written = arguments.written(slots, in_place="inplace" in function.flags)
        unread = complete if function.cuts else written
        unfilled = [(slot, x) for slot, x in unread if self._buffer.is_unfilled(x)]
        parts = [x for slot, x in unfilled if slot in dict(written)]
        if unfilled:
            self._see(call, unfilled, UNFILLED)
            complete = [entry for entry in complete if entry[0] not in dict(unfilled)]
        self._see(call, complete)
        if written:
            self._buffer.changed(written)  # an alias through .data has a version of its own
            self._preparation.gives(call, written)
        return call, waits, [x for _, x in written], parts

    def _are_unfilled(self, output: Any) -> bool:
        slots = arguments.outputs(output)
        return bool(slots) and all(self._buffer.is_unfilled(x) for _, x in slots)

    @guarded
    def _end_call(self, call: Call, output: Any, waits: arguments.Slots = (), note: str | None = None) -> None:
        if waits:
            self._see(call, waits)
        slots = arguments.outputs(output)
        self._preparation.gives(call, slots)
        self._see(call, slots, note)

    def _next(self, phase: str, name: str, kind: str, api: str, module: str, stack: int | None, flag: str) -> Call:
        """The next call; one outside of all modules gets its number when the step ends."""
        loose = not module and phase in ("fwd", "grad")
        if loose:
            if dropped := self._preparation.overflow():
                self._buffer.settle(dropped)
                if self._preparation.gives_up:
                    self._note(TOO_MANY)
            call = self._calls.loose(phase, name, api, stack, flag)
        else:
            call = self._calls.next(phase, name, kind, api, module, stack, flag)
        self._preparation.add(call, loose=loose)
        if loose and self._plan.bits_alone and self._preparation.gives_up:
            self._note(TOO_MANY_KEPT)
        return call

    def _see(self, call: Call, slots: arguments.Slots, note: str | None = None) -> None:
        phases = self._selection.phases
        if call.phase in phases:
            self._buffer.see(call, slots, note=note)
        if "bwd" in phases and torch.is_grad_enabled() and not self._is_early:
            for slot, x in slots:
                if x.requires_grad:
                    self._gradients.watch(x, call, slot)

    @counted
    @guarded
    def _gradient(self, call_slots: CallSlots, gradient: Tensor | None) -> None:
        self._phase = "grad"
        if gradient is None:  # autograd calls hooks also where a backward returned None
            return
        flat = iter(call_slots)
        for call, slot in zip(flat, flat, strict=True):
            self._buffer.see(call, ((slot, gradient),), phase="bwd")

    @counted
    def _begin_collective(self, op: str, args: str, slots: arguments.Slots, frame: FrameType | None) -> Call | None:
        module = self._running[-1].name if self._running else ""
        name = f"{module}.{op}" if module else op
        if not self._open or self._quiet or not self._selection.enters("comm", name):
            return None
        call = self._calls.next("comm", name, "collective", f"torch.distributed.{op}", module, self._stack(frame))
        call.args = args
        self._see_sent(call, slots)
        return call

    @counted
    def _see_sent(self, call: Call, slots: arguments.Slots, note: str | None = None) -> None:
        if self._open:
            self._buffer.changed(slots)
            self._buffer.see(call, slots, note=note)

    def _before_compiled(self) -> None:
        with Guard(self):
            self._gradients.detach()  # a detached one stays silent: the graph may have its hooks for longer
            self._gradients = GradientHooks(self._gradient)
            self._note(COMPILED_BACKWARD)

    def _after_backward(self) -> None:
        self._collectives.after_backward()
        self._preparation.backward_ended()

    # -- helpers of these --------------------------------------------------------------------------------------------

    def _push(self, *, above: int = 0) -> bool:
        """Put the mode on the stack, below others, unless it is there or not needed; return whether it was put on."""
        if not self._functions_too or self._mode.is_on():
            return False
        self._mode.install(above=above)
        return True

    def _phase_now(self) -> str:
        if not in_backward():
            return self._phase
        return "fwd" if self._running else "bwd"

    def _stack(self, frame: FrameType | None) -> int | None:
        if frame is None or not self._plan.stacks or self._monitors:
            return None
        return self._stacks.take(frame, None if self._running else self._update)

    def _watch_parameters(self) -> None:
        for name, param in unwrap(self._model).named_parameters():
            name = clean_name(name)
            if type(param) is nn.Parameter and self._selection.wants(name):
                self._gradients.watch(param, self._calls.next("bwd", name, "param"), "grad")

    def _settle(self) -> None:
        """Drop what prepared no pass, and number the calls outside of all modules."""
        final = self._preparation.settled(self._calls)
        self._buffer.settle(final)

    def _note(self, note: str) -> None:
        if note not in self.notes:
            self.notes.append(note)
            _log.warning("trueline: %s", note)

    def _unhook(self) -> None:
        self._open = False
        self._running = []
        self._update = None
        self._updates = ParamUpdates()
        self._mode.remove()
        self._backward.detach()
        self._modules.detach()
        self._collectives.detach()
        self._compiled.detach()
        self._from_outside.detach()
        self._gradients.detach()

    def fail(self, error: Exception) -> None:
        """Stop recording after an exception of Trueline's."""
        # kept until a model is known to which it can be said; its frames would keep the job's objects
        self._error = error.with_traceback(None) if self._is_early else None
        self._broken, self._is_early = True, False
        self._unhook()
        self._buffer.begin(self._buffer.step)
        self._failed(error)
