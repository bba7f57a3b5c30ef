"""S3. One rank trains under another configuration: learning rate, weight decay, betas, optimizer, precision.

Who had it: schedulers that a resumed rank steps once more, environment variables set on one node only, a fallback to
another optimizer or dtype where a package is missing. The reduction is right and the replicas still move apart.
Planted: each of these on rank 1, at the start or from step 6 on.
Twin: the same configuration everywhere, with a schedule that all ranks follow.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import PRECISION, SCHEDULES
from gallery.problems import CausalLM, Regression
from gallery.sharding import sharded
from gallery.training import adamw, fit, sgd, wrapped
from gallery.witness import config_differs, trains_differently

TRIGGER = 6
ODD_RANK = 1


def learning_rate(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Another learning rate from the start."""
    return _with_adamw(ctx, lr=4e-3 if _odd(ctx, faulty) else 3e-3)


def weight_decay(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Another weight decay."""
    return _with_adamw(ctx, weight_decay=0.1 if _odd(ctx, faulty) else 0.01)


def betas(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Another second beta."""
    return _with_adamw(ctx, betas=(0.9, 0.95 if _odd(ctx, faulty) else 0.999))


def other_optimizer(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A fallback to SGD on one rank."""
    problem = Regression()
    model = wrapped(problem.model())
    return fit(ctx, problem, model, optimizer=sgd(model, lr=3e-3) if _odd(ctx, faulty) else adamw(model))


def schedule(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The scheduler of one rank is stepped twice, once."""
    problem = Regression()
    model = wrapped(problem.model())
    optimizer = sgd(model)
    scheduler = LambdaLR(optimizer, lambda epoch: 0.9**epoch)

    def advance(step: int) -> None:
        scheduler.step()
        if _odd(ctx, faulty) and step == TRIGGER - 1:
            scheduler.step()

    return fit(ctx, problem, model, optimizer=optimizer, after_step=advance)


def one_group(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Only the second parameter group has another learning rate, from step 6 on, under FSDP2."""
    problem = CausalLM()
    model = sharded(problem.model())
    blocks = list(model.blocks.parameters())
    rest = [param for param in model.parameters() if all(param is not other for other in blocks)]
    optimizer = torch.optim.AdamW([{"params": blocks}, {"params": rest}], lr=3e-3)

    def meddle(step: int) -> None:
        if _odd(ctx, faulty) and step == TRIGGER - 1:
            optimizer.param_groups[1]["lr"] = 1e-3

    return fit(ctx, problem, model, optimizer=optimizer, after_step=meddle)


def autocast(ctx: EntryContext, faulty: bool) -> nn.Module:
    """One rank computes under bf16 autocast."""
    problem = CausalLM()

    def loss_of(called: nn.Module, batch: Any) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=_odd(ctx, faulty)):
            return problem.loss(called, batch)

    return fit(ctx, problem, loss_of=loss_of)


def dtype(ctx: EntryContext, faulty: bool) -> nn.Module:
    """One rank holds its weights in bf16; a hand-written loop reduces in fp32."""
    problem = CausalLM()
    model = problem.model()
    if _odd(ctx, faulty):
        model.bfloat16()
    return fit(ctx, problem, model, after_backward=lambda step: _mean_in_fp32(model, ctx.world_size))


def matmul_precision(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A numerics flag is set on one rank."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium" if _odd(ctx, faulty) else "highest")
    try:
        return _with_adamw(ctx)
    finally:
        torch.set_float32_matmul_precision(before)


def mode(ctx: EntryContext, faulty: bool) -> nn.Module:
    """After an evaluation on one rank the model stays in evaluation mode there; the twin's goes back. Nobody turned
    gradients off.
    """
    problem = CausalLM(dropout=0.1)
    model = wrapped(problem.model())
    held_out = problem.dataset(8, seed=5)

    def evaluate(step: int) -> None:
        if ctx.rank == ODD_RANK and step == TRIGGER - 1:
            model.eval()
            problem.loss(model.module, held_out[slice(None)])
            model.train(not faulty)

    return fit(ctx, problem, model, after_step=evaluate)


def _odd(ctx: EntryContext, faulty: bool) -> bool:
    return faulty and ctx.rank == ODD_RANK


def _with_adamw(ctx: EntryContext, **settings: Any) -> nn.Module:
    problem = Regression()
    model = wrapped(problem.model())
    return fit(ctx, problem, model, optimizer=adamw(model, **settings))


def _mean_in_fp32(model: nn.Module, world_size: int) -> None:
    for param in model.parameters():
        mean = param.grad.float()
        torch.distributed.all_reduce(mean)
        param.grad = (mean / world_size).to(param.dtype)


ALSO = ("replica-drift",)


def always(faulty: object, healthy: object) -> bool:
    """Nothing to see from outside: the flag changes no number on this machine."""
    return faulty is not healthy


_fault = variants(
    "S3",
    ("rank-config-differs",),
    config_differs,
    may_find=ALSO,
    ranks=(0, 1),
    family="settings of optimizers on ranks",
    causes=("optimizer-settings-differ",),
)

ENTRIES = (
    _fault("", "learning rate differs on one rank", learning_rate),
    _fault("weight-decay", "weight decay differs on one rank", weight_decay),
    _fault("betas", "betas differ on one rank", betas),
    _fault("optimizer", "optimizer class differs on one rank", other_optimizer),
    _fault("schedule", "scheduler one step ahead on one rank", schedule, step=TRIGGER, family=SCHEDULES),
    _fault(
        "group",
        "learning rate of one parameter group differs on one rank, FSDP2",
        one_group,
        shows=trains_differently,
        step=TRIGGER,
        variant_of="S3",
    ),
    _fault(
        "four",
        "learning rate differs on one rank of four",
        learning_rate,
        ranks=(ODD_RANK,),
        world_size=4,
        variant_of="S3",
    ),
    _fault("autocast", "autocast on one rank only", autocast, family=PRECISION, causes=("precision-differs-on-rank",)),
    _fault(
        "dtype",
        "bf16 weights on one rank only",
        dtype,
        may_find=(*ALSO, "reduction-mismatch", "gradient-not-reduced"),
        family=PRECISION,
        causes=("precision-differs-on-rank",),
    ),
    _fault(
        "mode",
        "one rank stays in evaluation mode",
        mode,
        step=TRIGGER,
        shows=trains_differently,
        world_size=3,
        ranks=(1,),
        family="modes of modules",
        causes=("evaluation-mode-on-rank",),
    ),
    _fault(
        "flags",
        "matmul precision differs on one rank",
        matmul_precision,
        shows=always,
        family=PRECISION,
        causes=("software-differs-on-rank",),
    ),
)
