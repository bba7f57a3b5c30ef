"""Sample what forward passes of batch normalisation read and leave in its running statistics, of a few channels.

Letters: C channels that are looked at.
"""

from __future__ import annotations

import functools
import json
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from trueline.capture.adapters.base import Guard
from trueline.capture.model.layout import Layout
from trueline.capture.model.untraced import Hook, in_backward
from trueline.capture.probes.around_update.sampling import NowAndThen, Waiting
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts
from trueline.capture.record.hooks import eager_modules

NUM_MODULES, NUM_CHANNELS = 8, 4
"""Modules a sample, the first of the model and others in rotation, and neighbouring channels of each: equal ones on
all ranks, as SyncBatchNorm normalises over them."""

MAX_CALLS = 8
"""Passes of a module in one step that are looked at."""

_PLAIN = (Tensor, nn.Parameter)


@dataclass(eq=False)
class _NormPass:
    """One pass of the module of this number. ``numbers`` are float64: the count of batches, then of each channel
    the running mean, the running variance, the sum and the sum of squares of what the pass reads [1 + 4 C]; ``after``
    is what it leaves of the first three [1 + 2 C].
    """

    module: int
    facts: dict[str, Any]
    numbers: Tensor
    after: Tensor | None = None


@dataclass(eq=False)
class _NormSample:
    """The passes of one step. ``counts`` are of each module the passes that count a batch, ``num_again`` those of them
    that are made within a backward pass, by a checkpoint, which may break them off.
    """

    modules: Sequence[tuple[str, nn.Module]]
    counts: list[int]
    num_again: list[int]
    passes: list[_NormPass]


class BatchNormProbe:
    """Hooks modules of torch's own BatchNorm and SyncBatchNorm from the first forward pass of a sampled step to its
    update. Those inside of compiled parts, and classes with a ``forward`` of their own, are left alone.
    """

    name = "batch normalisation"
    moments = ("forward", "gradients")
    between = None

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._times = NowAndThen()
        self._waiting = Waiting[list[dict[str, Any]]]()
        self._norms: list[tuple[str, nn.Module]] = []
        self._layout: Layout | None = None
        self._handles: list[Any] = []
        self._forget()

    def detach(self) -> None:
        self._forget()

    def begin(self, step: Step) -> bool:
        self._forget()
        self._due = step.sampled and self._times.due(step)
        return self._due

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """``norm_values``, float64, once the gradients of the step are there."""
        if moment == "forward":
            if self._sample is None and step.module is not None and not in_backward():
                self._listen(step, step.module)
            return {}
        sample = self._sample
        self._forget()
        passes = [] if sample is None else [norm_pass for norm_pass in sample.passes if norm_pass.after is not None]
        if sample is None or not passes:
            return {}
        ends = [_count(module, step.layout.device) for _, module in sample.modules]
        facts = [_of_module(name, module) for name, module in sample.modules]
        for module, counted, num_again in zip(facts, sample.counts, sample.num_again, strict=True):
            module |= {"counted": counted, "again": num_again}
        self._waiting.add(step.number, [{"modules": facts, "passes": [norm_pass.facts for norm_pass in passes]}])
        numbers = [part for norm_pass in passes for part in (norm_pass.numbers, norm_pass.after) if part is not None]
        return {"norm_values": torch.cat([*ends, *(part.to(step.layout.device) for part in numbers)])}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        facts = self._waiting.take(step.number)
        if facts is None or "norm_values" not in host:
            return {}
        return {"norm_facts": json.dumps(facts[0]), "norm_values": host["norm_values"].tolist()}

    def _forget(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._sample: _NormSample | None = None
        self._open: dict[int, _NormPass] = {}

    def _listen(self, step: Step, root: nn.Module) -> None:
        """Hook the modules of this step."""
        if step.layout is not self._layout:
            self._norms = [pair for pair in eager_modules(root, []) if _is_torchs(pair[1])]
            self._layout = step.layout
        norms = self._norms[:NUM_MODULES]
        if len(self._norms) > NUM_MODULES:
            rest, num = len(self._norms) - 1, NUM_MODULES - 1
            first = step.number * num
            # the first one always: it is the nearest to the data
            norms = [self._norms[0], *(self._norms[1 + (first + number) % rest] for number in range(num))]
        self._sample = _NormSample(norms, [0] * len(norms), [0] * len(norms), [])
        chance = random.Random(step.number)
        for index, (_, module) in enumerate(norms):
            width = int(module.num_features)  # type: ignore[arg-type]
            first = chance.randrange(max(width - NUM_CHANNELS, 0) + 1)
            before = Hook(functools.partial(self._before, index, slice(first, first + NUM_CHANNELS)), num_args=3)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            after = Hook(functools.partial(self._after, index))
            self._handles.append(module.register_forward_hook(after, prepend=True))

    def _before(self, index: int, channels: slice, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        sample = self._sample
        if sample is None or vars(module).get("_is_replica", False):  # a thread of nn.DataParallel
            return
        with self._guard(self.name), torch.no_grad():
            # a pass that raised never returned
            self._open.pop(index, None)
            tracks = bool(module.training and module.track_running_stats)
            sample.counts[index] += tracks
            sample.num_again[index] += tracks and in_backward()
            x = args[0] if args else kwargs.get("input")
            num_passes = sum(norm_pass.module == index for norm_pass in sample.passes)
            if not _can_be_read(x, module) or num_passes >= MAX_CALLS:
                return
            part, dims = x.detach()[:, channels], [0, *range(2, x.dim())]
            sums = part.sum(dims, dtype=torch.float64)
            squares = torch.linalg.vector_norm(part, dim=dims, dtype=torch.float64).square()
            facts = {
                "of": index,
                "first": channels.start,
                "num": len(sums),
                "size": part.numel() // len(sums),
                "training": module.training,
                "tracks": tracks,
                "momentum": module.momentum,
                "dtype": _dtype(module.running_mean),
                "read": _dtype(x),
                "again": in_backward(),
            }
            self._open[index] = _NormPass(index, facts, torch.cat([_running(module, channels), sums, squares]))

    def _after(self, index: int, module: Any, args: Any, output: Any) -> None:
        norm_pass = self._open.pop(index, None)
        if norm_pass is None or self._sample is None or vars(module).get("_is_replica", False):
            return
        with self._guard(self.name), torch.no_grad():
            first = norm_pass.facts["first"]
            norm_pass.after = _running(module, slice(first, first + NUM_CHANNELS))
            self._sample.passes.append(norm_pass)


def _is_torchs(module: nn.Module) -> bool:
    """True if it has torch's own ``forward`` and running statistics."""
    forward = type(module).forward
    return (
        isinstance(module, _BatchNorm)
        and (forward is _BatchNorm.forward or forward is nn.SyncBatchNorm.forward)
        and type(module.running_mean) in _PLAIN
        and type(module.running_var) in _PLAIN
    )


def _can_be_read(x: Any, module: Any) -> bool:
    return (
        type(x) in _PLAIN
        and x.dim() > 1
        and x.is_floating_point()
        and x.layout is torch.strided
        and x.numel() > 0
        and type(module.running_mean) in _PLAIN
        and type(module.running_var) in _PLAIN
        and module.running_mean.device == x.device
    )


def _running(module: Any, channels: slice) -> Tensor:
    """Float64 [1 + 2 C]: the count of batches, running means and variances; a copy."""
    tensors = (_count(module, module.running_mean.device), module.running_mean[channels], module.running_var[channels])
    return torch.cat([tensor.to(torch.float64) for tensor in tensors])


def _count(module: Any, device: torch.device) -> Tensor:
    """Float64 [1]: how many batches the module has counted, NaN where it does not count."""
    count = module.num_batches_tracked
    if count is None:
        return torch.full((1,), math.nan, dtype=torch.float64, device=device)
    return count.detach().to(device, torch.float64, copy=True).reshape(1)


def _of_module(name: str, module: Any) -> dict[str, Any]:
    """Facts of the module for the judgement. ``ranks`` are those over which SyncBatchNorm normalises, None for one."""
    ranks = None
    if type(module).forward is nn.SyncBatchNorm.forward and dist.is_available() and dist.is_initialized():
        group = module.process_group or dist.group.WORLD
        ranks = dist.get_process_group_ranks(group) if dist.get_world_size(group) > 1 else None
    params = list(module.parameters(recurse=False))
    return {"name": name, "ranks": ranks, "frozen": bool(params) and not any(param.requires_grad for param in params)}


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def make_probe(parts: ProbeParts) -> BatchNormProbe:
    """The probe of this law for one watched model."""
    return BatchNormProbe(parts.guard)
