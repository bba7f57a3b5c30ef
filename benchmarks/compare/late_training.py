"""A small causal LM with RMSNorm that trains in one way or another, with one of eight faults from a later step on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.compare.changes import UP, WIDTH, infinite, not_causal, scaled, tanh, wide_eps
from benchmarks.compare.threads import two_threads
from torch import nn

from trueline.testing.changed_kernel import ChangedKernel
from trueline.testing.problems import CausalLM

BATCH = 8
CALLS = 2
"""Attentions and GELUs of a forward pass: the second of each is the one that is wrong."""
ATTENTION = ("blocks.1.scaled_dot_product_attention#0",)
GELU = ("blocks.1.mlp.1.gelu#0", "blocks.1.mlp.1#0")
NORM = ("blocks.1.norm_attn.rms_norm#0", "blocks.1.norm_attn#0")
LINEAR = (f"{UP}.linear#0", f"{UP}#0", f"{UP}.weight")


@dataclass(frozen=True)
class Late:
    """A fault: ``begin`` changes the model before the step from which on it is wrong, ``inside`` is a context for the
    whole run that is told that step. ``calls`` are the names of what is wrong first. ``hidden``: below what a compiler
    sees; ``small``: in bfloat16 there is nothing wrong, for it is less than half of a last place.
    """

    name: str
    calls: tuple[str, ...]
    begin: Callable[[nn.Module], object] = lambda model: None
    inside: Callable[[int], AbstractContextManager[Any]] = lambda step: contextlib.nullcontext()
    hidden: bool = False
    small: bool = False

    def fits(self, way: Way) -> bool:
        """Whether it is a fault of a run that trains that way."""
        return not (self.hidden and way.compiled) and not (self.small and way.dtype == torch.bfloat16)


@dataclass(frozen=True)
class Way:
    """How a run trains: on how many ranks, in which dtype, and a context for the whole run."""

    name: str
    dtype: torch.dtype = torch.float32
    world_size: int = 1
    compiled: bool = False
    inside: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext


def _hidden_tanh(step: int) -> AbstractContextManager[Any]:
    return ChangedKernel("aten.gelu", first=CALLS * step, approximate="tanh")


def _hidden_scale(step: int) -> AbstractContextManager[Any]:
    return ChangedKernel("flash_attention", first=CALLS * step, scale=1.25 / (WIDTH / 2) ** 0.5)


FAULTS = (
    Late("tanh GELU by argument", GELU, begin=tanh),
    Late("tanh GELU hidden in the kernel", GELU, inside=_hidden_tanh, hidden=True),
    Late("attention scale x 1.25 hidden", ATTENTION, inside=_hidden_scale, hidden=True),
    Late("one weight x 1.001", LINEAR, begin=scaled(1.001), small=True),
    Late("one weight x 1.00001", LINEAR, begin=scaled(1.00001), small=True),
    Late("attention not causal", ATTENTION, begin=not_causal),
    Late("eps of an RMSNorm 1e-2", NORM, begin=wide_eps),
    Late("+inf in a weight", LINEAR, begin=infinite),
)


PLAIN = Way("again")
WAYS = (
    PLAIN,
    Way("bfloat16", dtype=torch.bfloat16),
    Way("bfloat16 autocast", inside=lambda: torch.autocast("cpu", torch.bfloat16, cache_enabled=False)),
    Way("two threads", inside=two_threads),
    Way("no oneDNN", inside=lambda: torch.backends.mkldnn.flags(enabled=False)),
    Way("DDP on 4", world_size=4),
    Way("torch.compile", compiled=True),
)


def build(seed: int) -> nn.Module:
    """A causal decoder of two layers with RMSNorm in place of LayerNorm, but for the last: how that one adds up depends
    on the number of threads.
    """
    model = CausalLM(width=WIDTH).model(seed=seed)
    for block in model.blocks:
        block.norm_attn, block.norm_mlp = nn.RMSNorm(WIDTH, eps=1e-5), nn.RMSNorm(WIDTH, eps=1e-5)
    return model


def train(
    rank: int,
    world_size: int,
    out: str,
    way: str,
    seed: int,
    steps: int,
    depth: str,
    fault: str = "",
    since: int = 0,
) -> None:
    """Train ``steps`` steps in the way of that name, recorded into ``out``; ``fault`` begins at step ``since``."""
    import trueline

    torch.set_num_threads(1)
    chosen = next(each for each in WAYS if each.name == way)
    wrong = next((each for each in FAULTS if each.name == fault), None)
    inner = build(seed).to(chosen.dtype)
    model = nn.parallel.DistributedDataParallel(inner) if world_size > 1 else inner
    if chosen.compiled:
        torch._dynamo.reset()
        model = torch.compile(inner)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    problem = CausalLM(width=WIDTH)
    batches = torch.utils.data.DataLoader(problem.dataset(BATCH * steps, seed=seed), batch_size=BATCH)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "depth": depth})
    with contextlib.nullcontext() if wrong is None else wrong.inside(since):
        for step, batch in enumerate(batches):
            if wrong is not None and step == since:
                wrong.begin(inner)
            own = {name: column.chunk(world_size)[rank] for name, column in batch.items()}
            with chosen.inside(), watch.step(own):
                problem.loss(model, own).backward()
                optimizer.step()
                optimizer.zero_grad()
    watch.close()
