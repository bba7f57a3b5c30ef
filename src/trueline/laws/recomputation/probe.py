"""Compare what activation checkpointing computes again in the backward pass with the forward pass, at a few
elements of the inputs and outputs of some modules.
"""

from __future__ import annotations

import functools
import random
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from trueline.capture.adapters.base import Guard
from trueline.capture.model.contents import Walk, is_tensor
from trueline.capture.model.layout import Layout
from trueline.capture.model.untraced import Hook, in_backward
from trueline.capture.probes.around_update.sampling import EARLY, NowAndThen, Waiting
from trueline.capture.probes.around_update.update_slices import FIRST, Gathered
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts
from trueline.capture.record.hooks import eager_modules
from trueline.capture.step.passes import Contributions
from trueline.laws.recomputation.columns import UNITS, Apart, Recomputed, rounding_explains
from trueline.tensor.memory import is_readable

NUM_MODULES, LENGTH, LEAST = 16, 64, 8
"""Modules a sample, in rotation over those that are recomputed; neighbouring elements of each value, and the least."""

FEWER_MODULES = 4
"""Modules of each sample after the first ones, of those that are taken step after step."""

MAX_VALUES = 256
"""Values of the forward passes of one step that are kept, and twice as many of recomputation."""

MAX_DIFFERENCES = 8
"""Differences that a row holds."""

MAX_ITERATING = 100
"""Modules with a power iteration that a row names."""

RARELY = 8
"""One in so many samples looks again where nothing was recomputed."""

_FORMATS = frozenset(getattr(torch, name) for name in UNITS)


class _ValueKey(NamedTuple):
    """Facts of a value, the input or output of the module of this number: equal ones may have been computed again."""

    module: int
    is_output: bool
    dtype: str
    shape: tuple[int, ...]
    contiguous: bool


@dataclass(frozen=True)
class _RecomputedSample:
    """``complete`` are modules that were not computed again more often than they ran, so that all these runs were seen:
    none where the last forward pass had no backward pass in its step, and an older one may have had it. ``iterating``
    are the names of those that change a state of theirs in each pass.
    """

    names: Sequence[str]
    gathered: Gathered
    forward: Sequence[_ValueKey]
    again: Sequence[Sequence[_ValueKey]]
    complete: frozenset[int]
    iterating: tuple[str, ...]


class RecomputationProbe:
    """Hooks modules from the first forward pass of a sampled step to its update: once all of them, then some of those
    that are computed again. Compiled parts and modules in evaluation mode are left alone.

    Whoever recomputes, a module then runs while autograd does. What was copied (never kept) is compared on the host.
    """

    name = "recomputation"
    moments = ("forward", "gradients")
    between = None

    def __init__(self, guard: Guard, passes: Contributions) -> None:
        self._guard, self._passes = guard, passes
        self._times = NowAndThen()
        self._waiting = Waiting[_RecomputedSample]()
        self._layout: Layout | None = None
        self._again: dict[str, nn.Module] = {}
        self._iterating: tuple[str, ...] = ()
        self._next = 0
        self._num_samples = 0
        self._handles: list[Any] = []
        self._forget()

    def detach(self) -> None:
        self._forget()

    def begin(self, step: Step) -> bool:
        """In the first steps, then now and then; less often where nothing is computed again."""
        self._forget()
        due = step.sampled and self._times.due(step)
        self._num_samples += due
        return due and (bool(self._again) or self._num_samples % RARELY == 1)

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """Copies of the elements, once the gradients of the step are there."""
        if moment == "forward":
            if not self._modules and step.module is not None and not in_backward():
                self._listen(step, step.module)
            return {}
        modules, values, counts, learns = self._modules, self._values, self._counts, self._learns
        names = list(modules)
        self._forget()
        if learns:
            self._again = {name: modules[name] for module, name in enumerate(names) if counts[module, True]}
        if not any(thread for thread, _, _ in values):
            return {}
        gathered = Gathered()
        threads: dict[int, list[_ValueKey]] = {0: []}
        for thread, _, _ in values:
            threads.setdefault(thread, [])
        for thread, thread_keys in threads.items():
            for value_thread, key, elements in values:
                if value_thread == thread:
                    thread_keys.append(key)
                    gathered.add(elements)
        gathered.copy()
        latest = self._passes.latest
        # the backward pass of this forward pass has not come: what was recomputed may belong to one of an earlier step
        is_late = latest is not None and step.counted.hooked and not latest.reached
        num_modules = 0 if is_late else len(names)
        complete = frozenset(module for module in range(num_modules) if counts[module, True] <= counts[module, False])
        forward = threads.pop(0)
        sample = _RecomputedSample(names, gathered, forward, list(threads.values()), complete, self._iterating)
        self._waiting.add(step.number, sample)
        return gathered.hand_over("recomputed")

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        sample = self._waiting.take(step.number)
        if sample is None or not any(name.startswith("recomputed_") for name in host):
            return {}
        return {"recomputed": _compared(sample, sample.gathered.values(host)).to_json()}

    def _forget(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._modules: dict[str, nn.Module] = {}
        self._values: list[tuple[int, _ValueKey, Tensor]] = []
        self._counts: Counter[tuple[int, bool]] = Counter()
        self._learns = False

    def _listen(self, step: Step, root: nn.Module) -> None:
        """Hook the modules of this step."""
        # other modules, or wrapped ones: which of them are recomputed has to be learnt anew
        if step.layout is not self._layout:
            self._layout, self._again = step.layout, {}
        self._learns = not self._again
        modules = list(self._again.items()) or eager_modules(root, [])
        if self._learns:
            self._iterating = tuple(name for name, module in modules if _iterates(module))[:MAX_ITERATING]
        num = FEWER_MODULES if FIRST <= step.age < EARLY else NUM_MODULES
        if not self._learns and len(modules) > num:
            modules = [modules[(self._next + number) % len(modules)] for number in range(num)]
            self._next += num
        self._modules = {name: module for name, module in modules if module.training}
        for index, module in enumerate(self._modules.values()):
            fraction = random.Random(f"{step.number} {index}").random()
            before = Hook(functools.partial(self._before, index, fraction), num_args=3)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            after = Hook(functools.partial(self._after, index, fraction))
            self._handles.append(module.register_forward_hook(after))

    def _before(self, index: int, fraction: float, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        is_again = in_backward()
        if torch.is_grad_enabled() or not is_again:  # else a checkpoint in another, which is to be computed once more
            self._counts[index, is_again] += 1
        self._see(index, False, fraction, module, (args, kwargs))

    def _after(self, index: int, fraction: float, module: Any, args: Any, output: Any) -> None:
        self._see(index, True, fraction, module, output)

    def _see(self, index: int, is_output: bool, fraction: float, module: Any, value: Any) -> None:
        thread = threading.get_ident() if in_backward() else 0
        is_replica = vars(module).get("_is_replica", False)  # a thread of nn.DataParallel
        if is_replica or len(self._values) >= MAX_VALUES * (3 if thread else 1):
            return
        with self._guard(self.name):
            x = _first_tensor(value)
            elements = None if x is None or not x.numel() else _copy_elements(x, fraction)
            if x is not None and elements is not None and len(elements) >= LEAST:
                dtype = str(x.dtype).removeprefix("torch.")
                key = _ValueKey(index, is_output, dtype, tuple(x.shape), x.is_contiguous())
                self._values.append((thread, key, elements))


def _iterates(module: nn.Module) -> bool:
    """True if it makes a step of a power iteration in each pass (``spectral_norm`` of torch in either form)."""
    hooks = module._forward_pre_hooks.values()
    return isinstance(module, _SpectralNorm) or any(isinstance(hook, SpectralNorm) for hook in hooks)


def _first_tensor(value: Any) -> Tensor | None:
    """The first plain tensor of numbers in what a module takes or returns."""
    if is_tensor(value):
        x = getattr(value, "_local_tensor", value)
        is_plain = type(x) in (Tensor, nn.Parameter) and x.dtype in _FORMATS
        return x.detach() if is_plain and is_readable(x) else None
    return next((x for _, tensor in Walk().tensors("", value) if (x := _first_tensor(tensor)) is not None), None)


def _copy_elements(x: Tensor, fraction: float) -> Tensor:
    """A copy of ``LENGTH`` neighbouring elements, or all, at ``fraction`` of them: 0 is the start, 1 the end."""
    if x.is_contiguous():
        x = x.view(-1)
    while x.dim() > 1:
        x = x[int(fraction * x.shape[0])]
    num = min(LENGTH, x.shape[0])
    start = int(fraction * (x.shape[0] - num + 1))
    return x[start : start + num].clone()


def _compared(sample: _RecomputedSample, values: Sequence[Tensor]) -> Recomputed:
    """Compare each value that was computed again with those of its place in the forward passes.

    A module may run several times a step, and recomputation goes through them backwards, so a value is right if one of
    the forward passes has it. If none has, it is compared with the one that came, there, after the value before, unless
    it may be of a forward pass that was not seen.
    """
    with_value: dict[tuple[_ValueKey, bytes], list[int]] = {}
    for position, key in enumerate(sample.forward):
        with_value.setdefault((key, _bits(values[position])), []).append(position)
    allowed = rounding_explains([key.dtype for keys in (sample.forward, *sample.again) for key in keys])
    equal = rounded = unmatched = wrong = 0
    differences: list[Apart] = []
    number = len(sample.forward)
    for keys in sample.again:
        last_positions: list[int] = []
        differs = False
        for key in keys:
            value_again, number = values[number], number + 1
            equal_positions = with_value.get((key, _bits(value_again)))
            if equal_positions:
                equal, last_positions, differs = equal + 1, equal_positions, False
                continue
            next_positions = [at + 1 for at in last_positions if _fits(sample.forward, at + 1, key)]
            if not next_positions or key.module not in sample.complete:
                unmatched, last_positions, differs = unmatched + 1, [], False
                continue
            candidates = [
                _difference(sample, position, key, values[position], value_again) for position in next_positions
            ]
            closest = min(candidates, key=lambda candidate: candidate.relative)
            last_positions = [
                position for position, candidate in zip(next_positions, candidates, strict=True) if candidate is closest
            ]
            if sample.forward[last_positions[0]] == key and closest.relative <= allowed:
                rounded += 1
            else:
                wrong += 1
                if not differs and len(differences) < MAX_DIFFERENCES:
                    differences.append(closest)
                differs = True
    return Recomputed(
        equal + rounded + wrong, equal, rounded, unmatched, tuple(differences), sample.iterating if differences else ()
    )


def _fits(forward: Sequence[_ValueKey], position: int, key: _ValueKey) -> bool:
    """True if the forward pass has a value of this module at ``position``, in the same order of memory."""
    if position >= len(forward):
        return False
    forward_key = forward[position]
    return (forward_key.module, forward_key.is_output, forward_key.contiguous) == (
        key.module,
        key.is_output,
        key.contiguous,
    )


def _bits(value: Tensor) -> bytes:
    return value.numpy().tobytes()


def _difference(sample: _RecomputedSample, position: int, key: _ValueKey, value: Tensor, value_again: Tensor) -> Apart:
    first, before = sample.forward[position], sample.forward[position - 1]
    relative, zeros = 2.0, 0
    if first.shape == key.shape:
        length = max(float(value.norm()), float(value_again.norm()))
        distance = float((value - value_again).norm())
        relative = distance / length if distance < float("inf") and 0 < length < float("inf") else 2.0
        # other zeros and equal values elsewhere are the mark of dropout with another mask
        masked = (value == 0) != (value_again == 0)
        zeros = int(masked.sum()) if bool((masked | (value == value_again)).all()) else 0
    return Apart(
        sample.names[key.module],
        key.is_output,
        sample.names[before.module],
        before.is_output,
        first.dtype,
        key.dtype,
        first.shape,
        key.shape,
        relative,
        zeros,
        len(value_again),
    )


def make_probe(parts: ProbeParts) -> RecomputationProbe:
    """The probe of this law for one watched model."""
    return RecomputationProbe(parts.guard, parts.contributions)
