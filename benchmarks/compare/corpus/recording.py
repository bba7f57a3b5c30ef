"""One run of the corpus: a training of a few steps, recorded by `trueline.watch`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.compare.corpus.kit import Batch, Family, Training
from torch import Tensor, nn

import trueline

STEPS = 3
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "autocast": torch.float32}


@dataclass(frozen=True)
class Setting:
    """How a pair is recorded."""

    depth: str
    plan: str
    dtype: str
    compiled: str = ""
    """A backend of torch.compile, '' for eager."""

    @property
    def name(self) -> str:
        """``stats-mix-fp32``."""
        return "-".join(filter(None, [self.depth, self.plan, self.dtype, self.compiled]))


def record(out: Path, family: Family, change: Callable[[Training], object], setting: Setting) -> Training:
    """A Run of a training of ``family`` that ``change`` was applied to, and what was trained."""
    t = make(family, change, setting)

    def watching(optimizer: torch.optim.Optimizer) -> Any:
        plan = {"preset": setting.plan, "depth": setting.depth}
        return trueline.watch(model, optimizer, out=out, plan=plan)

    model = torch.compile(t.model, backend=setting.compiled or "inductor") if t.compiled else t.model
    train(t, model, watching)
    return t


def make(family: Family, change: Callable[[Training], object], setting: Setting) -> Training:
    """The training, from one seed, of the dtype and compiler that ``setting`` has unless ``change`` chose others."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    t = family.build()
    t.dtype = DTYPES[setting.dtype]
    t.autocast = setting.dtype == "autocast"
    t.compiled = bool(setting.compiled)
    t.model.to(t.dtype)
    change(t)
    t.model.to(t.dtype).train()
    return t


def train(
    t: Training, model: nn.Module, watching: Callable[[torch.optim.Optimizer], Any], *, steps: int = STEPS
) -> None:
    """Train ``model``, which is that of ``t``, for a few steps; ``watching`` gives what has ``step`` and ``close``."""
    optimizer = t.optimizer([param for param in t.model.parameters() if param.requires_grad], **t.settings)
    schedule = None if t.schedule is None else t.schedule(optimizer)
    watch, draw = watching(optimizer), torch.Generator().manual_seed(1)
    torch.manual_seed(2)
    for step in range(steps):
        batch = _cast(t.batch(draw), t)
        # Entered anew in each step: autocast keeps weights that it cast until it is left, updates or not.
        with t.around(), watch.step(batch):
            for part in _parts(batch, t.num_micro):
                loss, share = _loss(t, model, part), t.loss_scale / t.num_micro
                (loss if share == 1 else loss * share).backward()
            if t.loss_scale != 1:
                _unscale(t.model, t.loss_scale)
            t.before_update(optimizer)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            optimizer.zero_grad()
        t.after_update(step)
    watch.close()


def _loss(t: Training, model: nn.Module, batch: Batch) -> Tensor:
    inside = torch.autocast("cpu", torch.bfloat16) if t.autocast else contextlib.nullcontext()
    with inside:
        return t.loss(model, t.prepare(batch))


def _unscale(model: nn.Module, scale: float) -> None:
    for param in model.parameters():
        if param.grad is not None:
            param.grad.mul_(1 / scale)


def _cast(batch: Batch, t: Training) -> Batch:
    return {name: value.to(t.dtype) if value.is_floating_point() else value for name, value in batch.items()}


def _parts(batch: Batch, num: int) -> list[Batch]:
    if num == 1:
        return [batch]
    return [dict(zip(batch, part, strict=True)) for part in zip(*(v.chunk(num) for v in batch.values()), strict=True)]
