"""The slow truth: losses, gradients, tokens and samples of each rank, from kept weights and batches, by plain code in
float64, and how far what was watched is from it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.frameworks.job import LR, WORLD, loss_of, problem
from torch import Tensor, nn

TOLERANCES = {"each reduced": 3e-2, "fp32": 2e-5, "bf16": 3e-2, "fp16": 4e-3}
"""Relative: some units of rounding of the format in which the model computes (2**-24, 2**-8, 2**-11), times a few,
since the roundings of a backward pass add up. Where each micro-batch is reduced by itself, the norm of their sum is
that of a sketch: off by 1/sqrt(2k) = 1.1 % on average, with the k = 4096 numbers of two groups (docs/maths.md).
"""


def differences(run: Any, kept: Path, *, steps: int, mode: str, truth: Truth | None = None) -> list[str]:
    """What is not right, in words: nothing if all is. ``truth`` has the gradients of a framework's own model."""
    tolerance = TOLERANCES[next((dtype for dtype in TOLERANCES if dtype in mode), "fp32")]
    rows = {(row["step"], row["rank"]): row for row in run.table().to_pylist()}
    wrong: list[str] = []
    for step in range(steps):
        weights = torch.load(kept / f"weights-{step}.pt")
        gradients = []
        for rank in range(WORLD):
            batches = torch.load(kept / f"batches-{step}-{rank}.pt")
            expected, gradient = (truth or plain)(weights, batches)
            gradients.append(gradient)
            wrong += _wrong(rows.get((step, rank), {}), expected, tolerance, f"step {step}, rank {rank}")
        cosine = _cosine(gradients[0], gradients[1])
        seen = (rows.get((step, 0), {}).get("exact_cosines") or [np.nan, np.nan])[1]
        if not abs(seen - cosine) <= tolerance:
            wrong.append(f"step {step}: cosine of ranks 0 and 1 {seen}, expected {cosine:.6g}")
    return wrong


Truth = Callable[[dict[str, Tensor], list[dict[str, Tensor]]], tuple[dict[str, float], Tensor]]


def plain(weights: dict[str, Tensor], batches: list[dict[str, Tensor]]) -> tuple[dict[str, float], Tensor]:
    """Of one rank and step the expected columns, and the flat gradient, float64."""
    model = problem().model().double()
    model.load_state_dict({name: weight.double() for name, weight in weights.items()})
    return measured(model, [loss_of(model(batch["input_ids"]), batch) for batch in batches], batches)


def measured(
    model: nn.Module, losses: list[Tensor], batches: list[dict[str, Tensor]]
) -> tuple[dict[str, float], Tensor]:
    """The same of the losses of micro-batches, whose mean is trained."""
    loss = torch.stack(losses).mean()
    loss.backward()
    grads = [param.grad if param.grad is not None else torch.zeros_like(param) for param in model.parameters()]
    flat = torch.cat([grad.flatten() for grad in grads])
    samples = sum(len(batch["input_ids"]) for batch in batches)
    return {"loss": loss.item(), "grad_norm": flat.norm().item(), "samples": samples, "lr": LR}, flat


def _wrong(row: dict[str, Any], expected: dict[str, float], tolerance: float, where: str) -> list[str]:
    seen = {
        "loss": row.get("loss"),
        "grad_norm": row.get("grad_norm"),
        "samples": len(row.get("sample_digests") or []),
        "lr": (row.get("lr") or [None])[0],
    }
    return [
        f"{where}: {name} is {seen[name]}, expected {value:.6g}"
        for name, value in expected.items()
        if seen[name] is None or not abs(seen[name] - value) <= tolerance * abs(value)
    ]


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.dot(a, b) / (a.norm() * b.norm()))
