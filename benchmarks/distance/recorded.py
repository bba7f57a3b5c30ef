"""Runs of a small causal LM that a sound change tells apart: the same job, its weights nudged by a rounding."""

from __future__ import annotations

from pathlib import Path

import torch
from gallery.problems import CausalLM
from torch.utils.data import DataLoader

import trueline

STEPS = 2


def record(out: Path, *, nudge_seed: int | None, dtype: torch.dtype = torch.float32, depth: str = "tensor") -> Path:
    """A Run of two recorded steps. Each weight is multiplied by 1 ± 2u at random (None: left alone), u the unit
    roundoff, so that each is a step of its grid away.
    """
    problem = CausalLM()
    model = problem.model(seed=0).to(dtype)
    if nudge_seed is not None:
        draw = torch.Generator().manual_seed(nudge_seed)
        with torch.no_grad():
            for param in model.parameters():
                sign = torch.randint(0, 2, param.shape, generator=draw) * 2 - 1
                param.copy_((param.double() * (1 + sign * torch.finfo(dtype).eps)).to(dtype))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    batches = DataLoader(problem.dataset(16, seed=0), batch_size=8)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "depth": depth})
    for _, batch in zip(range(STEPS), batches, strict=False):
        with watch.step(batch):
            problem.loss(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    watch.close()
    return out
