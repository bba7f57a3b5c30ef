"""Eight data-parallel workers, played one after the other by one copy of a model that is too large for eight.

A worker's gradient is measured as the recorder does it (``Layout.sketcher``), added to the sum in bfloat16, as an
all-reduce of such gradients adds it, and forgotten. What is left of it is a norm and a sketch for each group.

Letters: T steps, N workers, G groups, k sketch length.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from benchmarks.paper_size.sizes import Size, build
from torch import Tensor, nn

from trueline.capture.model.layout import Layout, make_layout
from trueline.capture.step import own_columns, shared_columns
from trueline.capture.step.shared_columns import Array, Measurement
from trueline.demo.worker_training import Job, endless_batches
from trueline.schema.plan import Plan

PARTS = ("forward", "backward", "norm and sketch", "norm by torch", "sum", "update")


@dataclass(slots=True)
class Spent:
    """Seconds on the clock and of CPU of each of ``PARTS``, each time that it was done."""

    seconds: dict[str, list[tuple[float, float]]] = field(default_factory=dict)

    def add(self, name: str, begun: tuple[float, float]) -> None:
        """It was begun then (``now``), and has ended."""
        self.seconds.setdefault(name, []).append((time.perf_counter() - begun[0], time.process_time() - begun[1]))


def now() -> tuple[float, float]:
    """Clock and CPU time of this process, s."""
    return time.perf_counter(), time.process_time()


class Played:
    """One model, its optimizer and the N workers that take turns."""

    def __init__(self, job: Job, size: Size) -> None:
        self.spent = Spent()
        self._model = build(size, seed=job.seed)
        self._optimizer = torch.optim.Adafactor(self._model.parameters())  # AdamW's states: 4.4 GB
        self.layout = make_layout(self._model, patterns=("*",), max_groups=Plan().max_groups)
        self._sums: dict[nn.Parameter, Tensor] = {}
        self._batches = [
            endless_batches(job, rank, size.workers, seed=job.setting.seed(rank, base=job.seed))
            for rank in range(size.workers)
        ]

    def steps(self, count: int) -> Iterator[dict[str, Any]]:
        """What the workers of each step measured (``step_facts``)."""
        for _ in range(count):
            turns = [self._turn(next(batches)) for batches in self._batches]
            reduced = self._reduced(len(turns))
            yield step_facts([loss for loss, _ in turns], [own for _, own in turns], reduced)

    def _turn(self, batch: dict[str, Tensor]) -> tuple[float, Measurement]:
        begun = now()
        loss = self._model(**batch).loss
        self.spent.add("forward", begun)
        begun = now()
        loss.backward()
        self.spent.add("backward", begun)
        begun = now()
        own = measured(self.layout, [param.grad for param in self.layout.params])
        self.spent.add("norm and sketch", begun)
        begun = now()
        nn.utils.get_total_norm([param.grad for param in self.layout.params])
        self.spent.add("norm by torch", begun)
        begun = now()
        self._add_up()
        self.spent.add("sum", begun)
        return loss.item(), own

    def _add_up(self) -> None:
        """Move each gradient into the sum."""
        for param in self.layout.params:
            total = self._sums.get(param)
            if total is None:
                self._sums[param] = param.grad
            else:
                total += param.grad
            param.grad = None

    def _reduced(self, workers: int) -> Array:
        """Update by the mean of the gradients, whose squared norm per group, float64 [G], is returned."""
        for param, total in self._sums.items():
            param.grad = total.div_(workers)
        self._sums.clear()
        norms2 = measured(self.layout, [param.grad for param in self.layout.params]).local_norm ** 2
        begun = now()
        self._optimizer.step()
        self.spent.add("update", begun)
        self._optimizer.zero_grad()
        return norms2


def measured(layout: Layout, gradients: Sequence[Tensor | None]) -> Measurement:
    """Norms and sketches of one worker's gradients, as its row has them."""
    found = layout.sketcher.measure([(at, grad) for at, grad in enumerate(gradients) if grad is not None])
    norm2_P = np.zeros(len(layout.params))
    norm2_P[list(found.indices)] = found.norm2.numpy()
    sketch_Gk = np.zeros((len(layout.groups), layout.k))
    sketch_Gk[found.groups.numpy()] = found.sketch.numpy()
    return Measurement(np.sqrt(own_columns.by_group(norm2_P, layout)), sketch_Gk, reduced=None, used=None)


def step_facts(losses_N: Sequence[float], owns_N: Sequence[Measurement], reduced2_G: Array) -> dict[str, Any]:
    """Losses and norms of the workers; their mean pairwise cosine and its standard error as the recorder would record
    them; and their norm-weighted mean cosine twice, from the sketches alone and from the sum of the whole gradients.
    """
    packed = [shared_columns.pack(own, reduced_norm2=None, sharded=False, replicas=1) for own in owns_N]
    scalars = np.array([shared_columns.scalars(own) for own in owns_N])
    groups, k = owns_N[0].local.shape
    sums = shared_columns.unpack(scalars, np.sum(packed, axis=0), groups=groups, k=k)
    reduced = float(np.sqrt(reduced2_G.sum()))
    columns = shared_columns.cosines(owns_N[0], sums, reduced_norm=reduced)
    norms_N = [float(np.linalg.norm(own.local_norm)) for own in owns_N]
    sketched_N = [float(np.linalg.norm(own.local)) for own in owns_N]
    return {
        "loss": list(losses_N),
        "norm": norms_N,
        "cosine": columns["cosine_mean"],
        "se": shared_columns.cosines(owns_N[0], sums, reduced_norm=None)["cosine_se"],
        "weighted": weighted(len(norms_N) * reduced, norms_N),
        "weighted_sketched": weighted(float(np.linalg.norm(sums.local)), sketched_N),
    }


def weighted(total: float, norms_N: Sequence[float]) -> float:
    """The mean cosine over pairs, each weighted by the product of its norms, from the norm of the sum."""
    own = sum(norm**2 for norm in norms_N)
    return (total**2 - own) / (sum(norms_N) ** 2 - own)


def peak_bytes() -> int:
    """The most memory that this process has had, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
