"""A small model that trains in milliseconds, watched, for tests of what is sampled of its updates."""

from __future__ import annotations

import contextlib
from unittest.mock import patch

import torch
from torch import nn

import trueline

STEPS = 12


def mlp():
    """Linear, LayerNorm, Linear: matrices, biases, and weights near 1."""
    return nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))


def adamw(model, **settings):
    """AdamW of a model, or of groups, in its for-loop form, whose function tests replace."""
    return torch.optim.AdamW(
        model.parameters() if isinstance(model, nn.Module) else model, **{"lr": 1e-3, "foreach": False, **settings}
    )


def trained(out, make=adamw, *, dtype=torch.float32, model=mlp, steps=STEPS, before=None, none=True, step=None):
    """The weights after ``steps`` updates of the optimizer that ``make`` makes of the model; watched into ``out``
    unless that is None. ``before(step, model, optimizer)`` is called at the start of each, ``step(optimizer)`` updates.
    """
    torch.manual_seed(0)
    made = model().to(dtype)
    optimizer = make(made)
    watch = contextlib.nullcontext() if out is None else trueline.watch(made, optimizer, out=out, plan={"every": 1})
    with watch:
        for number in range(steps):
            if before is not None:
                before(number, made, optimizer)
            made(torch.randn(8, 16).to(dtype)).float().square().mean().backward()
            optimizer.step() if step is None else step(optimizer)
            optimizer.zero_grad(set_to_none=none)
    return [param.detach().clone() for param in made.parameters()]


def kernel(change):
    """The for-loop of Adam with ``change`` around it, which gets it and what it is called with."""
    import torch.optim.adam as adam

    original = adam._single_tensor_adam
    return patch.object(adam, "_single_tensor_adam", lambda *args, **kwargs: change(original, *args, **kwargs))


def from_step(first, change):
    """``change`` from the update ``first`` on (from 0), and the kernel as it is before."""
    calls = iter(range(1_000_000))

    def sometimes(original, *args, **kwargs):
        return (change if next(calls) >= first else _plainly)(original, *args, **kwargs)

    return sometimes


def _plainly(original, *args, **kwargs):
    return original(*args, **kwargs)
