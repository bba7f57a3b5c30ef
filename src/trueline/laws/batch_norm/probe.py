"""What forward passes of batch normalisation read, and what they leave in its running statistics, of sampled channels.

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
"""Modules a sample, the first of the model and others in rotation, and neighbouring channels of each: the same ones on
all ranks, as SyncBatchNorm normalises over them."""

MAX_CALLS = 8
"""Passes of a module in one step that are looked at."""

_PLAIN = (Tensor, nn.Parameter)


@dataclass(eq=False)
class _Looked:
    """One pass of the module at position ``of``. ``numbers`` are float64: the count of batches, then of each channel
    the running mean, the running variance, the sum and the sum of squares of what the pass reads [1 + 4 C]; ``after``
    is what it leaves of the first three [1 + 2 C].
    """

    of: int
    facts: dict[str, Any]
    numbers: Tensor
    after: Tensor | None = None


@dataclass(eq=False)
class _Sample:
    """The passes of one step. ``counts`` are of each module how many of its passes count a batch, ``again`` how many of
    these are made within a backward pass, by a checkpoint, which may break them off.
    """

    modules: Sequence[tuple[str, nn.Module]]
    counts: list[int]
    again: list[int]
    passes: list[_Looked]


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
        self._known: list[tuple[str, nn.Module]] = []
        self._of: Layout | None = None
        self._handles: list[Any] = []
        self._forget()

    def detach(self) -> None:
        """Take the hooks off."""
        self._forget()

    def begin(self, step: Step) -> bool:
        """In the first steps, then now and then."""
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
        done = [] if sample is None else [one for one in sample.passes if one.after is not None]
        if sample is None or not done:
            return {}
        ends = [_count(module, step.layout.device) for _, module in sample.modules]
        facts = [_of_module(name, module) for name, module in sample.modules]
        for module, counted, again in zip(facts, sample.counts, sample.again, strict=True):
            module |= {"counted": counted, "again": again}
        self._waiting.put(step.number, [{"modules": facts, "passes": [one.facts for one in done]}])
        every = [part for one in done for part in (one.numbers, one.after) if part is not None]
        return {"norm_values": torch.cat([*ends, *(part.to(step.layout.device) for part in every)])}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        """``norm_facts`` and ``norm_values``."""
        facts = self._waiting.take(step.number)
        if facts is None or "norm_values" not in host:
            return {}
        return {"norm_facts": json.dumps(facts[0]), "norm_values": host["norm_values"].tolist()}

    def _forget(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._sample: _Sample | None = None
        self._open: dict[int, _Looked] = {}

    def _listen(self, step: Step, root: nn.Module) -> None:
        """Hook the modules of this step."""
        if step.layout is not self._of:
            known = eager_modules(root, [])
            self._known = [each for each in known if _is_torchs(each[1])]
            self._of = step.layout
        some = self._known[:NUM_MODULES]
        if len(self._known) > NUM_MODULES:
            rest, num = len(self._known) - 1, NUM_MODULES - 1
            first = step.number * num
            some = [self._known[0], *(self._known[1 + (first + place) % rest] for place in range(num))]
        self._sample = _Sample(some, [0] * len(some), [0] * len(some), [])
        chance = random.Random(step.number)
        for of, (_, module) in enumerate(some):
            width = int(module.num_features)  # type: ignore[arg-type]
            first = chance.randrange(max(width - NUM_CHANNELS, 0) + 1)
            before = Hook(functools.partial(self._before, of, slice(first, first + NUM_CHANNELS)), num_args=3)
            self._handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            after = Hook(functools.partial(self._after, of))
            self._handles.append(module.register_forward_hook(after, prepend=True))

    def _before(self, of: int, channels: slice, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        sample = self._sample
        if sample is None or vars(module).get("_is_replica", False):  # a thread of nn.DataParallel
            return
        with self._guard(self.name), torch.no_grad():
            self._open.pop(of, None)
            tracks = bool(module.training and module.track_running_stats)
            sample.counts[of] += tracks
            sample.again[of] += tracks and in_backward()
            x = args[0] if args else kwargs.get("input")
            seen = sum(one.of == of for one in sample.passes)
            if not _can_be_read(x, module) or seen >= MAX_CALLS:
                return
            part, dims = x.detach()[:, channels], [0, *range(2, x.dim())]
            sums = part.sum(dims, dtype=torch.float64)
            squares = torch.linalg.vector_norm(part, dim=dims, dtype=torch.float64).square()
            facts = {
                "of": of,
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
            self._open[of] = _Looked(of, facts, torch.cat([_running(module, channels), sums, squares]))

    def _after(self, of: int, module: Any, args: Any, output: Any) -> None:
        looked = self._open.pop(of, None)
        if looked is None or self._sample is None or vars(module).get("_is_replica", False):
            return
        with self._guard(self.name), torch.no_grad():
            first = looked.facts["first"]
            looked.after = _running(module, slice(first, first + NUM_CHANNELS))
            self._sample.passes.append(looked)


def _is_torchs(module: nn.Module) -> bool:
    """Whether it has torch's own ``forward`` and running statistics."""
    own = type(module).forward
    return (
        isinstance(module, _BatchNorm)
        and (own is _BatchNorm.forward or own is nn.SyncBatchNorm.forward)
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
    held = (_count(module, module.running_mean.device), module.running_mean[channels], module.running_var[channels])
    return torch.cat([each.to(torch.float64) for each in held])


def _count(module: Any, device: torch.device) -> Tensor:
    """Float64 [1]: how many batches the module has counted, NaN where it does not count."""
    count = module.num_batches_tracked
    if count is None:
        return torch.full((1,), math.nan, dtype=torch.float64, device=device)
    return count.detach().to(device, torch.float64, copy=True).reshape(1)


def _of_module(name: str, module: Any) -> dict[str, Any]:
    """What a reader needs to know of it. ``ranks`` are those over which SyncBatchNorm normalises, None for one."""
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
