"""The numbers of faults themselves, without any check: that each of them changes what is recorded.

python -m benchmarks.rl.causes.raw [--faults FILE] [--model small|large|all] [--seeds 3]
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from benchmarks.page import arguments
from benchmarks.rl.causes.faults import OPEN, Fault
from benchmarks.rl.causes.models import MODELS
from benchmarks.rl.causes.part import faults_in
from benchmarks.rl.causes.training import Training, rectangle

STEPS = 3


def main() -> None:
    """A line for each fault, model and seed; raises for one that changes nothing."""
    chosen = arguments(__doc__, faults="", model="all", seeds=3, name="").parse_args()
    torch.set_num_threads(1)
    faults = faults_in(chosen.faults) if chosen.faults else OPEN
    models = tuple(MODELS) if chosen.model == "all" else (chosen.model,)
    for fault, model, seed in product(faults, models, range(chosen.seeds)):
        if model in fault.models and chosen.name in fault.name:
            print(f"{fault.name:28} {model:5} {seed}", *raw(fault, model, seed), flush=True)


def raw(fault: Fault, model: str, seed: int) -> list[str]:
    """Of each step the mean |d|, the share of tokens and of sequences with |d| above what rounding leaves, and what is
    not finite. Raises ``AssertionError`` where all that is recorded is as without the fault.
    """
    batches = batches_of(fault.training, model, seed)
    assert differs(batches, batches_of(Training, model, seed)), f"{fault.name} changes nothing"
    said: list[str] = []
    for batch in batches:
        d = rectangle(batch["logp_rollout"]) - rectangle(batch["logp_train"])
        mask = rectangle(batch["mask"]) > 0
        apart = ((d.abs() > 1e-4) | ~d.isfinite()) & mask
        finite = d[mask & d.isfinite()]
        rows = apart.any(-1).float().mean()
        strange = int((mask & ~d.isfinite()).sum())
        said.append(
            f"|d| {finite.abs().mean():.1e} tokens {apart.sum() / mask.sum():.2f} rows {rows:.2f} -inf {strange}"
        )
    return said


def batches_of(training: type[Training], model: str, seed: int) -> list[dict[str, Any]]:
    """What is handed over at each step."""
    own = training(model, seed)
    own.run(STEPS, None)
    return own.batches


def differs(batches: list[dict[str, Any]], others: list[dict[str, Any]]) -> bool:
    """Whether anything of it that is a tensor or a list is another."""
    return any(
        name not in other or not torch.equal(rectangle(value), rectangle(other[name]))
        for batch, other in zip(batches, others, strict=True)
        for name, value in batch.items()
        if name in ("response_ids", "mask", "logp_rollout", "logp_train", "reward_again", "advantage")
    )


if __name__ == "__main__":
    main()
