"""The loops that the gallery's entries share: load, reduce, fit."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from gallery.entry_context import EntryContext, Watching
from gallery.problems import CausalLM, Problem
from trueline.demo.epochs import epochs

STEPS = 12
BATCH_SIZE = 4
SMALL_BUCKET_MB = 0.01
"""About ten kilobytes, so that even the small problems have several buckets."""

AtStep = Callable[[int], object]


def nothing(step: int) -> None:
    """The callback that does nothing."""


def sharded_loader(
    ctx: EntryContext,
    dataset: Dataset[Any],
    *,
    batch_size: int = BATCH_SIZE,
    seed: int = 0,
    shuffle: bool = True,
    drop_last: bool = False,
) -> DataLoader[Any]:
    """The usual loader: a DistributedSampler over all ranks."""
    sampler: DistributedSampler[Any] = DistributedSampler(
        dataset, num_replicas=ctx.world_size, rank=ctx.rank, shuffle=shuffle, seed=seed, drop_last=drop_last
    )
    return DataLoader(dataset, batch_size=batch_size, sampler=sampler, drop_last=drop_last)


def batches_of(
    ctx: EntryContext, problem: Problem, *, num_samples: int = 256, batch_size: int = BATCH_SIZE
) -> Iterator[Any]:
    """Batches of a healthy, sharded, shuffled dataset of ``problem``."""
    return epochs(sharded_loader(ctx, problem.dataset(num_samples), batch_size=batch_size))


def wrapped(model: nn.Module, **settings: Any) -> DistributedDataParallel:
    """``model`` in DDP with several buckets unless ``settings`` say otherwise."""
    return DistributedDataParallel(model, **{"bucket_cap_mb": SMALL_BUCKET_MB, **settings})


def adamw(model: nn.Module, *, lr: float = 3e-3, **settings: Any) -> Optimizer:
    """AdamW over the parameters that train."""
    return torch.optim.AdamW([param for param in model.parameters() if param.requires_grad], lr=lr, **settings)


def sgd(model: nn.Module, *, lr: float = 0.05, **settings: Any) -> Optimizer:
    """SGD with momentum over the parameters that train."""
    params = [param for param in model.parameters() if param.requires_grad]
    return torch.optim.SGD(params, **{"lr": lr, "momentum": 0.9, **settings})


def usual_optimizer(problem: Problem, model: nn.Module, lr: float | None = None) -> Optimizer:
    """AdamW for the language model, SGD with momentum for the other problems; at their usual rate, or at ``lr``."""
    make = adamw if isinstance(problem, CausalLM) else sgd
    return make(model) if lr is None else make(model, lr=lr)


def mean_gradients(params: Iterable[nn.Parameter], group: dist.ProcessGroup | None = None) -> None:
    """Average the gradients over the group in one all-reduce of a flat copy, as hand-written loops do."""
    grads = [param.grad for param in params if param.grad is not None]
    if not grads:
        return
    flat = torch.cat([grad.flatten() for grad in grads])
    dist.all_reduce(flat, group=group)
    flat.div_(dist.get_world_size(group))
    for grad, part in zip(grads, flat.split([grad.numel() for grad in grads]), strict=True):
        grad.copy_(part.view_as(grad))


def mean_each_gradient(params: Iterable[nn.Parameter]) -> None:
    """The same over all ranks and in place, one all-reduce a parameter; as each costs a wait, few entries do so."""
    for param in params:
        if param.grad is not None:
            dist.all_reduce(param.grad)
            param.grad.div_(dist.get_world_size())


def fit(
    ctx: EntryContext,
    problem: Problem,
    model: nn.Module | None = None,
    *,
    lr: float | None = None,
    optimizer: Optimizer | None = None,
    batches: Iterator[Any] | None = None,
    steps: int = STEPS,
    forward: nn.Module | None = None,
    loss_of: Callable[[nn.Module, Any], Tensor] | None = None,
    scaler: GradScaler | None = None,
    clip: float | None = None,
    after_backward: AtStep = nothing,
    after_step: AtStep = nothing,
    plan: Mapping[str, Any] | None = None,
    watch: Watching | None = None,
) -> nn.Module:
    """Train ``model`` under watch, one batch a step; returns it.

    What is not given is the usual: the problem's model in DDP, ``usual_optimizer`` with ``lr``, ``batches_of`` the
    problem, and a watch with the keys of ``plan``. ``forward`` is called with a batch where that is not ``model``
    itself. ``loss_of(model, batch)`` replaces the problem's loss. With ``scaler``, which may skip updates, the loss is
    scaled, and ``clip`` is the largest global norm of the unscaled gradient. The callbacks get the step number.
    """
    model = wrapped(problem.model()) if model is None else model
    optimizer = usual_optimizer(problem, model, lr) if optimizer is None else optimizer
    batches = batches_of(ctx, problem) if batches is None else batches
    watching = ctx.watch(model, optimizer, **plan or {}) if watch is None else watch
    objective = problem.loss if loss_of is None else loss_of
    for step, batch in enumerate(itertools.islice(batches, steps)):
        with watching.step(batch):
            loss = objective(model if forward is None else forward, batch)
            watching.loss(loss.detach(), problem.tokens(batch))
            (loss if scaler is None else scaler.scale(loss)).backward()
            after_backward(step)
            if scaler is None:
                optimizer.step()
            else:
                _scaled_update(scaler, optimizer, model, clip)
            optimizer.zero_grad()
        ctx.note([batch], loss.item())
        after_step(step)
    watching.close()
    return model


def _scaled_update(scaler: GradScaler, optimizer: Optimizer, model: nn.Module, clip: float | None) -> None:
    if clip is not None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    scaler.step(optimizer)
    scaler.update()


def under_autocast(problem: Problem, dtype: torch.dtype) -> Callable[[nn.Module, Any], Tensor]:
    """The loss of ``problem`` with its model under autocast to ``dtype``."""

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", dtype):
            return problem.loss(model, batch)

    return loss_of


def fit_accumulating(
    ctx: EntryContext,
    problem: Problem,
    model: nn.Module | None = None,
    *,
    optimizer: Optimizer | None = None,
    batches: Iterator[Any] | None = None,
    num_micro: int = 2,
    steps: int = STEPS,
    syncs: Callable[[int, int], bool] | None = None,
    loss_of: Callable[[nn.Module, Any, int], Tensor] | None = None,
    after_backward: AtStep = nothing,
) -> nn.Module:
    """Train a DDP ``model`` with ``num_micro`` batches a step; returns it. What is not given is as in ``fit``.

    ``syncs(step, micro)`` says whether that backward reduces (default: the last one of a step does).
    ``loss_of(model, batch, micro)`` replaces the problem's loss.
    """
    model = wrapped(problem.model()) if model is None else model
    optimizer = usual_optimizer(problem, model) if optimizer is None else optimizer
    batches = batches_of(ctx, problem) if batches is None else batches
    watching = ctx.watch(model, optimizer)
    for step in range(steps):
        micros = [next(batches) for _ in range(num_micro)]
        with watching.step(micros):
            total = 0.0
            for micro, batch in enumerate(micros):
                reduce_now = micro == num_micro - 1 if syncs is None else syncs(step, micro)
                with contextlib.nullcontext() if reduce_now else model.no_sync():  # type: ignore[operator]
                    loss = problem.loss(model, batch) if loss_of is None else loss_of(model, batch, micro)
                    watching.loss(loss.detach(), problem.tokens(batch))
                    (loss / num_micro).backward()
                total += loss.item() / num_micro
            after_backward(step)
            optimizer.step()
            optimizer.zero_grad()
        ctx.note(micros, total)
    watching.close()
    return model
