"""A small causal LM with RMSNorm that trains in one way or another, with one of eight faults from a later step on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.compare.trainings.changes import FAULTS, WIDTH, Fault, language_model, two_threads
from gallery.problems import CausalLM
from torch import nn

BATCH = 8


@dataclass(frozen=True)
class Way:
    """How a run trains: on how many ranks, in which dtype, and a context for the whole run."""

    name: str
    dtype: torch.dtype = torch.float32
    world_size: int = 1
    compiled: bool = False
    inside: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext

    def has(self, fault: Fault) -> bool:
        """Whether it is a fault of a run that trains that way."""
        return not (fault.hidden and self.compiled) and not (fault.small and self.dtype == torch.bfloat16)


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


def train(
    rank: int, world_size: int, out: str, way: str, seed: int, steps: int, depth: str, fault: str = "", since: int = 0
) -> None:
    """Train ``steps`` steps in the way of that name, recorded into ``out``; ``fault`` begins at step ``since``."""
    import trueline

    torch.set_num_threads(1)
    chosen = next(each for each in WAYS if each.name == way)
    wrong = next((each for each in FAULTS if each.name == fault), None)
    inner = language_model(seed).to(chosen.dtype)
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
