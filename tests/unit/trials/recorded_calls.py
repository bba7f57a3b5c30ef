"""Runs of one step that a small model made with given functions, in this process."""

from __future__ import annotations

import itertools

import torch
from torch import nn

import trueline


class Calls(nn.Module):
    """A model that calls ``functions``, each with a tensor and its weight, and sums what they return."""

    def __init__(self, functions, *, rows, width, dtype):
        super().__init__()
        self.functions = functions
        self.weight = nn.Parameter(torch.randn(width, width, dtype=dtype) / width**0.5)
        self.x = torch.randn(rows, width, dtype=dtype)

    def forward(self):
        made = [function(self.x, self.weight) for function in self.functions]
        return sum((each.float().relu().square().mean() for each in made), self.weight.float().mean())


def recorded(out, *functions, rows=24, width=40, dtype=torch.float32, depth="tensor", make=torch.optim.SGD, **settings):
    """The path of a Run of a step in which a model calls ``functions`` (x [rows, width], weight [width, width])."""
    torch.manual_seed(0)
    model = Calls(functions, rows=rows, width=width, dtype=dtype)
    optimizer = make(model.parameters(), **({"lr": 0.1} | settings))
    with trueline.watch(model, optimizer, out=out, plan={"preset": "ops", "steps": [0, 1], "depth": depth}):
        for _ in itertools.repeat(None, 2):
            model().backward()
            optimizer.step()
            optimizer.zero_grad()
    return out


def sites(run, name):
    """The sites of the calls of the operation ``name`` that a Run has, without their slots."""
    rows = trueline.open_run(run).records(columns=["step", "rank", "micro", "phase", "name", "call", "kind", "slot"])
    found = [row for row in rows.to_pylist() if row["name"].split(".")[-1] == name and row["phase"] != "bwd"]
    return list(dict.fromkeys(f"{r['step']}.{r['micro']}/r0/{r['phase']}/{r['name']}#{r['call']}" for r in found))
