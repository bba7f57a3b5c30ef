"""Whether what activation checkpointing computes again in the backward pass is what the forward pass computed, at a few
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
from trueline.schema.columns.recomputation import UNITS, Apart, Recomputed, rounding_explains
from trueline.tensor.memory import is_readable

NUM_MODULES, LENGTH, LEAST = 16, 64, 8
"""Modules a sample, in rotation over those that are recomputed; neighbouring elements of each value, and the least."""

FEWER = 4
"""Modules of each sample after the first ones, of those that are taken step after step."""

MAX_VALUES = 256
"""Values of the forward passes of one step that are kept, and twice as many of recomputation."""

MAX_APART = 8
"""Differences that a row holds."""

MAX_ITERATING = 100
"""Modules with a power iteration that a row names."""

RARELY = 8
"""Where nothing was recomputed, one in so many samples looks whether something is by now."""

_FORMATS = frozenset(getattr(torch, name) for name in UNITS)


class _Seen(NamedTuple):
    """A value: the input or output of module ``of``."""

    of: int
    is_output: bool
    dtype: str
    shape: tuple[int, ...]
    contiguous: bool


@dataclass(frozen=True)
class _Sample:
    """``complete`` are modules that were not computed again more often than they ran, so that all these runs were seen:
    none where the last forward pass had no backward pass in its step, and an older one may have had it. ``iterating``
    are the names of those that change a state of theirs in each pass.
    """

    names: Sequence[str]
    gathered: Gathered
    forward: Sequence[_Seen]
    again: Sequence[Sequence[_Seen]]
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
        self._waiting = Waiting[_Sample]()
        self._of: Layout | None = None
        self._again: dict[str, nn.Module] = {}
        self._iterating: tuple[str, ...] = ()
        self._next = 0
        self._num_samples = 0
        self._handles: list[Any] = []
        self._forget()

    def detach(self) -> None:
        """Take the hooks off."""
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
            self._again = {name: modules[name] for of, name in enumerate(names) if counts[of, True]}
        if not any(thread for thread, _, _ in values):
            return {}
        gathered = Gathered()
        threads: dict[int, list[_Seen]] = {0: []}
        for thread, _, _ in values:
            threads.setdefault(thread, [])
        for thread, into in threads.items():
            for of_thread, seen, elements in values:
                if of_thread == thread:
                    into.append(seen)
                    gathered.add(elements)
        gathered.copy()
        latest = self._passes.latest
        late = latest is not None and step.counted.hooked and not latest.reached
        seen_all = (of for of in range(len(names)) if not late and counts[of, True] <= counts[of, False])
        complete = frozenset(seen_all)
        forward = threads.pop(0)
        sample = _Sample(names, gathered, forward, list(threads.values()), complete, self._iterating)
        self._waiting.put(step.number, sample)
        return gathered.hand_over("recomputed")

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        """``recomputed``."""
        sample = self._waiting.take(step.number)
        if sample is None or not any(name.startswith("recomputed_") for name in host):
            return {}
        return {"recomputed": _compared(sample, sample.gathered.values(host)).to_json()}

    def _forget(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._modules: dict[str, nn.Module] = {}
        self._values: list[tuple[int, _Seen, Tensor]] = []
        self._counts: Counter[tuple[int, bool]] = Counter()
        self._learns = False

    def _listen(self, step: Step, root: nn.Module) -> None:
        """Hook the modules of this step."""
        if step.layout is not self._of:
            self._of, self._again = step.layout, {}
        self._learns = not self._again
        some = list(self._again.items()) or eager_modules(root, [])
        if self._learns:
            self._iterating = tuple(name for name, module in some if _iterates(module))[:MAX_ITERATING]
        num = FEWER if FIRST <= step.age < EARLY else NUM_MODULES
        if not self._learns and len(some) > num:
            some = [some[(self._next + place) % len(some)] for place in range(num)]
            self._next += num
        self._modules = {name: module for name, module in some if module.training}
        for of, module in enumerate(self._modules.values()):
            at = random.Random(f"{step.number} {of}").random()
            before = Hook(functools.partial(self._before, of, at), num_args=3)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            after = Hook(functools.partial(self._after, of, at))
            self._handles.append(module.register_forward_hook(after))

    def _before(self, of: int, at: float, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        again = in_backward()
        if torch.is_grad_enabled() or not again:  # else a checkpoint in another, which is to be computed once more
            self._counts[of, again] += 1
        self._see(of, False, at, module, (args, kwargs))

    def _after(self, of: int, at: float, module: Any, args: Any, output: Any) -> None:
        self._see(of, True, at, module, output)

    def _see(self, of: int, is_output: bool, at: float, module: Any, held: Any) -> None:
        thread = threading.get_ident() if in_backward() else 0
        is_replica = vars(module).get("_is_replica", False)  # a thread of nn.DataParallel
        if is_replica or len(self._values) >= MAX_VALUES * (3 if thread else 1):
            return
        with self._guard(self.name):
            x = _first_of(held)
            elements = None if x is None or not x.numel() else _some(x, at)
            if x is not None and elements is not None and len(elements) >= LEAST:
                form = str(x.dtype).removeprefix("torch.")
                seen = _Seen(of, is_output, form, tuple(x.shape), x.is_contiguous())
                self._values.append((thread, seen, elements))


def _iterates(module: nn.Module) -> bool:
    """Whether it makes a step of a power iteration in each pass (``spectral_norm`` of torch in either form)."""
    hooks = module._forward_pre_hooks.values()
    return isinstance(module, _SpectralNorm) or any(isinstance(hook, SpectralNorm) for hook in hooks)


def _first_of(held: Any) -> Tensor | None:
    """The first plain tensor of numbers in what a module takes or returns."""
    if is_tensor(held):
        x = getattr(held, "_local_tensor", held)
        plain = type(x) in (Tensor, nn.Parameter) and x.dtype in _FORMATS
        return x.detach() if plain and is_readable(x) else None
    return next((x for _, each in Walk().tensors("", held) if (x := _first_of(each)) is not None), None)


def _some(x: Tensor, at: float) -> Tensor:
    """A copy of ``LENGTH`` neighbouring elements, or all; ``at`` is between 0, the first ones, and 1, the last ones."""
    if x.is_contiguous():
        x = x.view(-1)
    while x.dim() > 1:
        x = x[int(at * x.shape[0])]
    num = min(LENGTH, x.shape[0])
    start = int(at * (x.shape[0] - num + 1))
    return x[start : start + num].clone()


def _compared(sample: _Sample, values: Sequence[Tensor]) -> Recomputed:
    """Each value that was computed again beside those of its place in the forward passes.

    A module may run several times a step, and recomputation goes through them backwards, so a value is right if one of
    the forward passes has it. If none has, it is compared with the one that came, there, after the value before, unless
    it may be of a forward pass that was not seen.
    """
    with_value: dict[tuple[_Seen, bytes], list[int]] = {}
    for position, seen in enumerate(sample.forward):
        with_value.setdefault((seen, _bits(values[position])), []).append(position)
    allowed = rounding_explains([seen.dtype for run in (sample.forward, *sample.again) for seen in run])
    equal = rounded = alone = wrong = 0
    apart: list[Apart] = []
    number = len(sample.forward)
    for run in sample.again:
        after: list[int] = []
        differs = False
        for seen in run:
            mine, number = values[number], number + 1
            same = with_value.get((seen, _bits(mine)))
            if same:
                equal, after, differs = equal + 1, same, False
                continue
            places = [position + 1 for position in after if _goes_on(sample.forward, position + 1, seen)]
            if not places or seen.of not in sample.complete:
                alone, after, differs = alone + 1, [], False
                continue
            found = [_apart(sample, place, seen, values[place], mine) for place in places]
            least = min(found, key=lambda one: one.relative)
            after = [place for place, one in zip(places, found, strict=True) if one is least]
            if sample.forward[after[0]] == seen and least.relative <= allowed:
                rounded += 1
            else:
                wrong += 1
                if not differs and len(apart) < MAX_APART:
                    apart.append(least)
                differs = True
    return Recomputed(equal + rounded + wrong, equal, rounded, alone, tuple(apart), sample.iterating if apart else ())


def _goes_on(forward: Sequence[_Seen], position: int, seen: _Seen) -> bool:
    """Whether the forward pass has a value of the same module there, in the same order of memory."""
    if position >= len(forward):
        return False
    there = forward[position]
    return (there.of, there.is_output, there.contiguous) == (seen.of, seen.is_output, seen.contiguous)


def _bits(value: Tensor) -> bytes:
    return value.numpy().tobytes()


def _apart(sample: _Sample, position: int, seen: _Seen, value: Tensor, again: Tensor) -> Apart:
    first, before = sample.forward[position], sample.forward[position - 1]
    relative, zeros = 2.0, 0
    if first.shape == seen.shape:
        length = max(float(value.norm()), float(again.norm()))
        off = float((value - again).norm())
        relative = off / length if off < float("inf") and 0 < length < float("inf") else 2.0
        masked = (value == 0) != (again == 0)
        zeros = int(masked.sum()) if bool((masked | (value == again)).all()) else 0
    return Apart(
        sample.names[seen.of],
        seen.is_output,
        sample.names[before.of],
        before.is_output,
        first.dtype,
        seen.dtype,
        first.shape,
        seen.shape,
        relative,
        zeros,
        len(again),
    )


def make_probe(parts: ProbeParts) -> RecomputationProbe:
    """The probe of this law for one watched model."""
    return RecomputationProbe(parts.guard, parts.contributions)
