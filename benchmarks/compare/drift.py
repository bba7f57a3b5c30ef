"""Losses of runs that only round otherwise, and of runs that compute otherwise from a step on: who is told to drift.

    python -m benchmarks.compare.drift [--seeds 20] [--steps 150] [--since 50]

A small causal LM, AdamW, on one stream of batches a seed. Runs that should agree, the reference and the healthy run
start from weights of which each is nudged by at most one rounding, at random.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
from benchmarks.page import arguments, table
from gallery.changed_kernel import ChangedKernel
from gallery.problems import CausalLM

from trueline.comparison.judgement.history.loss_gap import LossGap, loss_gap_of

WIDTH = 32
CALLS = 2
CALIBRATED = (3, 9)


def _scaled(key: str, factor: float) -> Callable[[torch.optim.Optimizer], None]:
    def change(optimizer: torch.optim.Optimizer) -> None:
        for group in optimizer.param_groups:
            group[key] *= factor

    return change


@dataclass(frozen=True)
class Change:
    """What is otherwise from a step on."""

    name: str
    change: Callable[[torch.optim.Optimizer], None] = lambda optimizer: None
    hidden: bool = False


CHANGES = (
    Change("nothing but rounding"),
    Change("learning rate x 1.001", _scaled("lr", 1.001)),
    Change("learning rate x 1.01", _scaled("lr", 1.01)),
    Change("weight decay x 10", _scaled("weight_decay", 10)),
    Change("Adam's eps x 100", _scaled("eps", 100)),
    Change("attention scale x 1.25 hidden", hidden=True),
)


def main() -> None:
    chosen = arguments(__doc__, seeds=20, steps=150, first_step=50).parse_args()
    torch.set_num_threads(1)
    drifts: dict[tuple[str, int], list[LossGap]] = {}
    for seed in range(chosen.seeds):
        healthy = [losses(seed, nudge, CHANGES[0], chosen) for nudge in range(1 + max(CALIBRATED))]
        for change in CHANGES:
            run = losses(seed, 1 + max(CALIBRATED), change, chosen)
            for num in CALIBRATED:
                drift = loss_gap_of(run, healthy[0], healthy[1 : 1 + num])
                assert drift is not None
                drifts.setdefault((change.name, num), []).append(drift)
    head = [f"from step {chosen.first_step} on", "runs"]
    for num in CALIBRATED:
        head += [f"reported with {num} calibrated", "step, median", f"furthest of {num + 2} by rank"]
    rows = [
        [change.name, chosen.seeds, *(cell for num in CALIBRATED for cell in _cells(drifts[change.name, num]))]
        for change in CHANGES
    ]
    print(table(head, rows))


def _cells(drifts: list[LossGap]) -> list[str]:
    since = [drift.first_step for drift in drifts if drift.first_step is not None]
    furthest = sum(drift.excess > drift.usual for drift in drifts)
    return [str(len(since)), f"{statistics.median(since):.0f}" if since else "–", str(furthest)]


def losses(seed: int, nudge: int, change: Change, chosen: argparse.Namespace) -> dict[int, float]:
    """The loss by step of one run."""
    problem = CausalLM(width=WIDTH)
    model = problem.model(seed=seed)
    draw = torch.Generator().manual_seed(1000 * seed + nudge)
    with torch.no_grad():
        for param in model.parameters():
            param.mul_(1 + (torch.rand(param.shape, generator=draw) - 0.5) * 2.0**-23)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    batches = torch.utils.data.DataLoader(problem.dataset(8 * chosen.steps, seed=seed), batch_size=8)
    first = CALLS * chosen.first_step if change.hidden else 10**9
    curve: dict[int, float] = {}
    with ChangedKernel("flash_attention", first=first, scale=1.25 / (WIDTH / 2) ** 0.5):
        for step, batch in enumerate(batches):
            if step == chosen.first_step:
                change.change(optimizer)
            loss = problem.loss(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            curve[step] = float(loss.detach())
    return curve


if __name__ == "__main__":
    main()
