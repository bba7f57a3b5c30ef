"""Virtual workers: N workers of synchronous data parallelism computed in one process, with what each would record.

Every worker runs forward and backward on its own batch with the shared weights; the gradients are kept apart, measured,
averaged, and one optimizer takes one step. That is what N processes and an all-reduce compute (``agreement`` shows it),
at the price of one. Gradients are measured as the recorder does, but cosines are exact where it sketches.

Letters: T steps, N workers, G groups, B samples, Q parts of a worker's batch, P weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from benchmarks.paper.together import train_as_one
from studies.judgement.faults import Fault
from studies.judgement.models import Drop
from studies.judgement.workloads import Rows, Workload
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DistributedSampler

Array = NDArray[Any]
Found = TypeVar("Found")
DROPPED = 0.1
NOTHING = Fault("nothing")


@dataclass(frozen=True)
class Recorded:
    """What N workers recorded in T steps; float32, as computed. ``parts`` [T, N, Q] is NaN where a part is absent.

    ``shard_frac`` [T, N]: 0, or the fraction of its fixed shard that a worker reads in the step, once it reads rows
    that it has read before and no one else has.
    """

    groups: tuple[str, ...]
    loss: Array
    log_norm: Array
    cosine: Array
    group_log_norm: Array
    group_cosine: Array
    tokens: Array
    samples: Array
    parts: Array
    shard_frac: Array
    weighted: bool

    def save(self, path: Path) -> None:
        """Write an npz file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez(path, **{field.name: np.asarray(getattr(self, field.name)) for field in fields(self)})

    @classmethod
    def load(cls, path: Path) -> Recorded:
        """Read what ``save`` wrote."""
        with np.load(path) as file:
            found = {name: file[name] for name in file.files}
        return cls(**found | {"groups": tuple(found["groups"].tolist()), "weighted": bool(found["weighted"])})


def train(
    workload: Workload,
    *,
    workers: int,
    seed: int,
    steps: int,
    fault: Fault = NOTHING,
    start: int = 0,
    seen: Callable[[Mapping[str, Tensor]], None] | None = None,
) -> Recorded:
    """Train ``steps`` steps from ``seed``; the fault acts from step ``start`` on. ``seen`` gets the gradients of all
    workers, name -> [N, ...], of each step.
    """
    rows = workload.rows(seed)
    draw = torch.Generator().manual_seed(1_000_003 * (seed + 1))
    weights = {name: value.requires_grad_() for name, value in workload.model.weights(seed).items()}
    optimizer = _optimizer(workload, list(weights.values()))
    drop = _dropout(workload, draw)
    batches = batches_of(workload, rows, workers=workers, seed=seed)

    def one_step(step: int) -> tuple[dict[str, Tensor], Iterable[Tensor]]:
        acting = fault if step >= start else NOTHING
        index_NB, repeated_N = next(batches)
        found, grads = worker_gradients(workload, weights, batch_of(rows, index_NB, acting, draw), acting, drop)
        acting.gradient(grads, draw)
        if seen is not None:
            seen(grads)
        for group in optimizer.param_groups:
            group["lr"] = workload.rate(step)
        return found | measure(grads) | {"shard_frac": repeated_N}, grads.values()

    kept = train_as_one(list(weights.values()), optimizer, steps, one_step)
    return _recorded(kept, workload, tuple(dict.fromkeys(name.split(".")[0] for name in weights)))


def batch_of(rows: Rows, index_NB: Tensor, fault: Fault, draw: torch.Generator) -> dict[str, Tensor]:
    """The columns at ``index_NB``, -1 meaning no sample there; ``mask`` has its terms at zero."""
    present_NB = index_NB >= 0
    index_NB = fault.chosen(index_NB.clamp(min=0), rows, draw)
    batch = {name: column[index_NB] for name, column in rows.columns.items()}
    mask = batch["mask"]
    batch["mask"] = mask * present_NB.view(*present_NB.shape, *[1] * (mask.dim() - 2))
    return fault.changed(batch, draw)


def worker_gradients(
    workload: Workload, weights: Mapping[str, Tensor], batch: dict[str, Tensor], fault: Fault, drop: Drop
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What each worker knows of its loss, and its gradient: name -> [N, ...]."""
    workers = next(iter(batch.values())).shape[0]
    leaves = {name: value.detach().expand(workers, *value.shape).clone() for name, value in weights.items()}
    for leaf in leaves.values():
        leaf.requires_grad_()
    sums_NB, count_NB = workload.model.terms(leaves, batch, drop)
    sums_NKb, count_NKb = (part.unflatten(1, (workload.micro, -1)) for part in (sums_NB, count_NB))
    micro_NK = sums_NKb.sum(-1) / count_NKb.sum(-1)
    loss_N, tokens_N = micro_NK.mean(1), count_NB.sum(1)
    share_N = tokens_N / tokens_N.mean() if workload.token_weighted else torch.ones(workers)
    grads = torch.autograd.grad((loss_N * share_N).sum(), list(leaves.values()))
    factor_N = torch.ones(workers)
    if fault.loss_factor != 1:
        factor_N[fault.ranks[0]] = fault.loss_factor
    parts_NQ = micro_NK if workload.micro > 1 else torch.where(count_NB > 0, sums_NB / count_NB, torch.nan)
    found = {
        "loss": (loss_N * factor_N).detach(),
        "parts": (parts_NQ * factor_N[:, None]).detach(),
        "tokens": tokens_N,
        "samples": (count_NB > 0).sum(1),
    }
    return found, dict(zip(leaves, grads, strict=True))


def measure(grads: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Norms and cosines to the mean of the other workers' gradients, over all weights and per group [N, G]."""
    groups: dict[str, list[Tensor]] = {}
    for name, grad in grads.items():
        groups.setdefault(name.split(".")[0], []).append(grad.flatten(1))
    square, along, total = [], [], []
    for parts in groups.values():
        rows_NP = torch.cat(parts, 1).double()
        sum_P = rows_NP.sum(0)
        square.append(rows_NP.square().sum(1))
        along.append(rows_NP @ sum_P)
        total.append(sum_P @ sum_P)
    square_NG, along_NG, total_G = torch.stack(square, 1), torch.stack(along, 1), torch.stack(total)
    return {
        "log_norm": square_NG.sum(1).log() / 2,
        "cosine": _cosine(square_NG.sum(1), along_NG.sum(1), total_G.sum()),
        "group_log_norm": square_NG.log() / 2,
        "group_cosine": _cosine(square_NG, along_NG, total_G),
    }


def batches_of(workload: Workload, rows: Rows, *, workers: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """[N, B] the rows of every worker, step by step (-1: no sample there), and ``shard_frac`` [N]."""
    epoch = 0
    size = workload.batch * workload.micro
    easy_first = rows.difficulty.argsort().tolist()
    repeated = torch.zeros(workers)
    if workload.order == "streams":
        at = torch.randint(len(rows), (workers, size), generator=torch.Generator().manual_seed(seed))
        while True:
            yield at, repeated
            at = (at + 1) % len(rows)
    while True:
        samplers = [
            DistributedSampler(
                range(len(rows)), num_replicas=workers, rank=rank, seed=seed, shuffle=workload.order != "curriculum"
            )
            for rank in range(workers)
        ]
        for sampler in samplers:
            sampler.set_epoch(0 if workload.order == "shards" else epoch)
        order = [torch.tensor(list(sampler)) for sampler in samplers]
        if workload.order == "curriculum":
            order = [torch.tensor(easy_first)[one] for one in order]
        if workload.order in ("shards", "curriculum"):
            block = 40 * size if workload.order == "curriculum" else len(rows)
            order = [_stirred(one, seed + 31 * epoch + rank, block) for rank, one in enumerate(order)]
            repeated = torch.tensor([size / len(one) if epoch else 0.0 for one in order])
        if workload.order == "uneven":
            order = [one[: len(one) - (rank + epoch) % workers * 3] for rank, one in enumerate(order)]
        yield from ((index, repeated) for index in _dealt(order, size, whole=workload.order != "uneven"))
        epoch += 1


def _dealt(order: list[Tensor], size: int, *, whole: bool) -> Iterator[Tensor]:
    longest = max(len(one) for one in order)
    steps = longest // size if whole else min(-(-len(one) // size) for one in order)
    for step in range(steps):
        index = torch.full((len(order), size), -1)
        for worker, one in enumerate(order):
            mine = one[step * size : (step + 1) * size]
            index[worker, : len(mine)] = mine
        yield index


def _stirred(order: Tensor, seed: int, block: int) -> Tensor:
    """Shuffled inside blocks of ``block`` rows."""
    draw = torch.Generator().manual_seed(seed)
    return torch.cat([part[torch.randperm(len(part), generator=draw)] for part in order.split(block)])


def _cosine(square: Tensor, along: Tensor, total: Tensor) -> Tensor:
    others = (total - 2 * along + square).clamp(min=0)
    return (along - square) / (square * others).sqrt()


def _dropout(workload: Workload, draw: torch.Generator) -> Drop:
    if workload.dropout == "none":
        return lambda x: x

    def drop(x: Tensor) -> Tensor:
        shape = x.shape if workload.dropout == "own" else (1, *x.shape[1:])
        return x * ((torch.rand(shape, generator=draw) >= DROPPED) / (1 - DROPPED))

    return drop


def _optimizer(workload: Workload, weights: list[Tensor]) -> torch.optim.Optimizer:
    if workload.sgd:
        return torch.optim.SGD(weights, lr=workload.lr, momentum=0.9)
    return torch.optim.AdamW(weights, lr=workload.lr, betas=(0.9, 0.95))


def _recorded(kept: list[dict[str, Tensor]], workload: Workload, groups: tuple[str, ...]) -> Recorded:
    columns = {name: torch.stack([row[name] for row in kept]).float().numpy() for name in kept[0]}
    return Recorded(groups=groups, weighted=workload.token_weighted, **columns)
