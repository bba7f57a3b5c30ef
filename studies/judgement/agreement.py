"""Virtual workers against real ones: two processes under DDP and gloo, watched by the recorder, on the same batches."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from studies.judgement.workers import NOTHING, Recorded, batch_of, batches_of, train
from studies.judgement.workloads import IMAGES, TEXT, Workload
from torch import Tensor, nn

from trueline.demo.ranks import Ranks

WORKLOADS = {"LM": TEXT, "conv net with BatchNorm": IMAGES}
WORKERS, SEED = 2, 11


class Replica(nn.Module):
    """One worker's model as an ordinary module: the same code with N = 1."""

    def __init__(self, workload: Workload, seed: int) -> None:
        super().__init__()
        self.model = workload.model
        self.groups = nn.ModuleDict()
        for name, value in workload.model.weights(seed).items():
            group, weight = name.split(".")
            if group not in self.groups:
                self.groups[group] = nn.ParameterDict()
            self.groups[group][weight] = nn.Parameter(value)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Mean over the worker's loss terms; every column has a leading axis of one worker."""
        weights = {
            f"{group}.{name}": value[None] for group, held in self.groups.items() for name, value in held.items()
        }
        sums, count = self.model.terms(weights, batch, lambda x: x)
        return sums.sum() / count.sum()


def measure(*, quick: bool) -> dict[str, Any]:
    """Largest relative difference of losses and norms, and of cosines in units of the sketch's standard error."""
    steps = 5 if quick else 40
    rows = []
    with Ranks(WORKERS, timeout_s=300) as pool, tempfile.TemporaryDirectory() as folder:
        for number, (name, workload) in enumerate(WORKLOADS.items()):
            out = str(Path(folder) / str(number))
            length = pool.run(train_replica, name, steps, out)[0]
            rows.append({"name": name, "steps": steps} | _compare(out, length, _virtual(workload, steps)))
    return {"rows": rows}


def train_replica(rank: int, world: int, name: str, steps: int, out: str) -> int:
    """Train one real worker under the recorder; returns the length of one group's sketch."""
    import trueline

    workload = WORKLOADS[name]
    rows = workload.rows(SEED)
    ddp = nn.parallel.DistributedDataParallel(Replica(workload, SEED))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=workload.lr, betas=(0.9, 0.95))
    watch = trueline.watch(ddp, optimizer, out=out, plan={"every": 1})
    batches = batches_of(workload, rows, workers=world, seed=SEED)
    for _ in range(steps):
        index_NB, _ = next(batches)
        batch = batch_of(rows, index_NB[rank : rank + 1], NOTHING, torch.Generator())
        with watch.step(batch):
            loss = ddp(batch)
            watch.loss(loss, tokens=float(batch["mask"].sum()))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    watch.close()
    torch.distributed.barrier()
    return int(trueline.open_run(out).env[rank].sketch_length)


def _virtual(workload: Workload, steps: int) -> Recorded:
    return train(workload, workers=WORKERS, seed=SEED, steps=steps)


def _compare(out: str, length: int, virtual: Recorded) -> dict[str, float]:
    import trueline

    run = trueline.open_run(out)
    found = {name: run.pivot(name)[0] for name in ("loss", "grad_norm", "cosine_others", "tokens")}
    norm = np.exp(virtual.log_norm)
    sketch_error = (1 - virtual.cosine**2) / np.sqrt(length)
    return {
        "loss": float(np.max(np.abs(found["loss"] / virtual.loss - 1))),
        "grad_norm": float(np.max(np.abs(found["grad_norm"] / norm - 1))),
        "cosine": float(np.sqrt(np.mean((found["cosine_others"] - virtual.cosine) ** 2))),
        "cosine_sketch": float(np.sqrt(np.mean(sketch_error**2))),
        "tokens": float(np.max(np.abs(found["tokens"] - virtual.tokens))),
    }
