"""Data-parallel workers in one process: batches and a random stream for each, one model for all.

Each worker's gradient is kept as a row; the mean of the rows is what AdamW sees (``train_as_one``).

Letters: T steps, N workers, P parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trueline.demo.model import build_model
from trueline.demo.worker_training import LEARNING_RATE, Job, endless_batches

CHUNK = 4_096
"""Elements added up in float32 before the sum goes on in float64: norms are then right to about 2e-7."""

OWN_STREAM = 7_919
"""Between the dropout seeds of two ranks that have a stream of their own whatever the setting says."""

Floats = NDArray[np.float64]
OfStep = TypeVar("OfStep")


@dataclass(frozen=True, slots=True)
class Curves:
    """Per step, float64: loss and gradient norm of each worker [T, N], mean cosine over pairs of workers [T]."""

    losses_TN: Floats
    norms_TN: Floats
    cosine_T: Floats


def train_as_one(
    params: Sequence[Tensor],
    optimizer: torch.optim.Optimizer,
    steps: int,
    one_step: Callable[[int], tuple[OfStep, Iterable[Tensor]]],
) -> list[OfStep]:
    """What ``one_step`` measures at each step. It also returns the gradients [N, ...] of all workers, one for each of
    ``params``, whose mean is applied: replicas that start equal stay equal, so one copy stands for all of them.
    """
    steps_done: list[OfStep] = []
    for step in range(steps):
        of_step, grads = one_step(step)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad.mean(0)
        optimizer.step()
        optimizer.zero_grad()
        steps_done.append(of_step)
    return steps_done


@dataclass(slots=True)
class Worker:
    """One rank: its batches, and the state of its random stream while another rank is at work."""

    batches: Iterator[dict[str, Tensor]]
    stream: Tensor

    def backward(self, model: nn.Module, row_P: Tensor) -> float:
        """The loss of this worker's next batch; its gradient is left in ``row_P`` (float32)."""
        batch = next(self.batches)
        torch.set_rng_state(self.stream)
        loss: Tensor = model(**batch).loss
        loss.backward()
        self.stream = torch.get_rng_state()
        torch.cat([_taken_gradient(param) for param in model.parameters()], out=row_P)
        return loss.item()


def train_together(
    job: Job, num_workers: int, *, dropout: str = "on", weights: Mapping[str, Any] | None = None
) -> tuple[Curves, dict[str, Tensor]]:
    """The curves of ``job`` with ``num_workers`` workers, and the weights at the end.

    ``dropout`` is a key of ``cells.DROPOUT``; without it the model is in evaluation mode, which changes nothing else
    in a Llama. ``weights`` replace the random ones that ``job.seed`` gives. Workers that cannot differ, since they
    read the same batches under the same stream, are computed once.
    """
    torch.manual_seed(job.seed)
    model = build_model(job.model).train(dropout != "off")
    if weights is not None:
        model.load_state_dict(weights)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    workers = [_worker(job, rank, num_workers, own_stream=dropout == "own") for rank in range(num_workers)]
    first_alike = _first_alike(job, num_workers, own_stream=dropout == "own")
    params = list(model.parameters())
    sizes = [param.numel() for param in params]
    rows_NP = torch.empty(num_workers, sum(sizes))

    def one_step(step: int) -> tuple[tuple[list[float], Floats, float], Iterator[Tensor]]:
        losses_N: list[float] = []
        for rank, first in enumerate(first_alike):
            if rank == first:
                losses_N.append(workers[rank].backward(model, rows_NP[rank]))
            else:
                losses_N.append(losses_N[first])
                rows_NP[rank] = rows_NP[first]
        parts = zip(params, rows_NP.split(sizes, dim=1), strict=True)
        return (losses_N, *norms_and_cosine(rows_NP)), (part.unflatten(1, param.shape) for param, part in parts)

    found = train_as_one(params, optimizer, job.steps, one_step)
    losses_TN, norms_TN, cosine_T = (np.array(column) for column in zip(*found, strict=True))
    return Curves(losses_TN, norms_TN, cosine_T), model.state_dict()


def norms_and_cosine(rows_NP: Tensor) -> tuple[Floats, float]:
    """Norms float64 [N] of the gradients ``rows_NP`` (float32), and the mean cosine over all pairs i < j."""
    gram_NN = sum((chunk @ chunk.T).double() for chunk in rows_NP.split(CHUNK, dim=1)).numpy()  # type: ignore[union-attr]
    norms_N = np.sqrt(np.diag(gram_NN))
    cosines_NN = gram_NN / np.outer(norms_N, norms_N)
    return norms_N, float(cosines_NN[np.triu_indices(len(norms_N), 1)].mean())


def _first_alike(job: Job, num_workers: int, *, own_stream: bool) -> list[int]:
    """[N] for each rank the first that does just what it does: itself where it has batches or a stream of its own."""
    seeds = [job.setting.seed(rank, base=job.seed) for rank in range(num_workers)]
    if job.setting.distributed_sampler or own_stream:
        return list(range(num_workers))
    return [seeds.index(seed) for seed in seeds]


def _worker(job: Job, rank: int, num_workers: int, *, own_stream: bool) -> Worker:
    seed = job.setting.seed(rank, base=job.seed)
    batches = endless_batches(job, rank, num_workers, seed=seed)
    stream = seed + OWN_STREAM * (rank + 1) if own_stream else seed
    return Worker(batches, torch.Generator().manual_seed(stream).get_state())


def _taken_gradient(param: nn.Parameter) -> Tensor:
    """The flat gradient of ``param``, which has none after; raises ValueError where it had none before."""
    if param.grad is None:
        raise ValueError(f"A parameter of shape {tuple(param.shape)} has no gradient; expected one of each parameter.")
    taken, param.grad = param.grad.flatten(), None
    return taken
