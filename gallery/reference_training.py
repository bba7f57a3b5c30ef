"""The training of runs that are compared with a reference: every step recorded, equal global batches on any world size.

Letters: B batch, L sequence length, D model width, H heads.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from gallery.entry import Fault, Reference, Shows, variants
from gallery.entry_context import EntryContext
from gallery.problems import CausalLM
from gallery.training import fit
from gallery.witness import trains_differently

STEPS = 3
GLOBAL_BATCH = 8

Change = Callable[[Any], Any]


class Unmasked(CausalLM):
    """The language model, with a count of labels that needs no tensor: every label counts."""

    def tokens(self, batch: Any) -> float:
        """How many labels the mean is over."""
        return float(batch["labels"][:, 1:].numel())


def keep(thing: Any) -> Any:
    """Nothing is changed."""
    return thing


def language_model(
    ctx: EntryContext,
    *,
    change: Change = keep,
    inside: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
    parallel: Change = keep,
    batch: Change = keep,
    optimizer_of: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    share: bool = True,
    loss_of: Callable[[nn.Module, Any], Tensor] | None = None,
) -> nn.Module:
    """Train a causal LM of two layers for ``STEPS`` recorded steps.

    ``change`` is applied to the model before it is made ``parallel``, ``batch`` to every batch; all happens ``inside``
    a context. Each rank takes its ``share`` of the rows of a batch, or all of them.
    """
    problem = Unmasked()
    model = problem.model()
    change(model)
    model = parallel(model)
    optimizer = (optimizer_of or adamw)(model)
    watch = ctx.watch(model, optimizer, preset="mix")
    batches = map(batch, shares(ctx, problem) if share else shares(EntryContext(0, 1), problem))
    with inside():
        return fit(ctx, problem, model, optimizer=optimizer, batches=batches, steps=STEPS, watch=watch, loss_of=loss_of)


def shares(ctx: EntryContext, problem: CausalLM, *, steps: int = STEPS) -> Iterator[dict[str, Tensor]]:
    """This rank's rows of batches that are the same however many ranks share them."""
    columns = problem.dataset(GLOBAL_BATCH * steps).columns
    for step in range(steps):
        rows = slice(step * GLOBAL_BATCH, (step + 1) * GLOBAL_BATCH)
        yield {name: column[rows].chunk(ctx.world_size)[ctx.rank] for name, column in columns.items()}


def compared(
    id: str, must_find: tuple[str, ...], shows: Shows = trains_differently, **common: Any
) -> Callable[..., Fault]:
    """``variants`` on one process whose runs are compared with ``language_model`` on one process."""
    return variants(id, must_find, shows, **{"world_size": 1, "reference": Reference(language_model), **common})


def adamw(model: nn.Module, **settings: Any) -> torch.optim.Optimizer:
    """AdamW, one parameter at a time."""
    return torch.optim.AdamW(model.parameters(), **{"lr": 1e-3, "foreach": False, **settings})


def ddp(model: nn.Module) -> nn.Module:
    """``model`` in DDP."""
    return DistributedDataParallel(model)


def in_halves(model: nn.Module) -> None:
    """Each linear adds its products in two halves: another order of the same sums."""
    for module in model.modules():
        if isinstance(module, nn.Linear):
            module.forward = _halved(module)  # type: ignore[method-assign]


def _halved(module: nn.Linear) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        first = functional.linear(x[..., :half], module.weight[:, :half], module.bias)
        return first + functional.linear(x[..., half:], module.weight[:, half:])

    return forward
