"""One small asynchronous all-reduce a sampled step, on a gloo group of its own, read a step late and never waited for.

Every rank fills its own row of a [N, m] block and leaves zeros elsewhere, so that one sum is an all-gather of the
scalars and an all-reduce of the sketches at once. gloo on host memory: it never touches the accelerator or its
communicators.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from trueline.capture.world import is_initialised

_log = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""How long a late sum is waited for where it must be (at close); a rank that is gone must not hold up the others."""

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Team:
    """The N workers whose gradients are averaged together; ``group`` is Trueline's own gloo group, None for one
    worker.
    """

    ranks: tuple[int, ...]
    rank: int
    group: dist.ProcessGroup | None

    @property
    def size(self) -> int:
        """N."""
        return len(self.ranks)

    @property
    def index(self) -> int:
        """This worker's position among the N."""
        return self.ranks.index(self.rank)


def make_team(process_group: dist.ProcessGroup | None) -> Team:
    """The Team of ``process_group`` (None: the default group; a single worker where none is initialised).

    A collective among the group's members: all of them must call it at the same point.
    """
    if not is_initialised():
        return Team(ranks=(0,), rank=0, group=None)
    ranks = tuple(dist.get_process_group_ranks(process_group or dist.group.WORLD))
    rank = dist.get_rank()
    if len(ranks) == 1:
        return Team(ranks=ranks, rank=rank, group=None)
    group = dist.new_group(
        list(ranks),
        backend="gloo",
        timeout=datetime.timedelta(minutes=10),
        use_local_synchronization=len(ranks) != dist.get_world_size(),
        group_desc="trueline",
    )
    return Team(ranks=ranks, rank=rank, group=group)


@dataclass
class Pending:
    """A sum under way. ``step`` is the optimizer step that it belongs to."""

    step: int
    buffer: torch.Tensor
    work: dist.Work | None
    block: tuple[int, int]

    def ready(self) -> bool:
        """Whether the result is there; never blocks."""
        return self.work is None or self.work.is_completed()

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds``; whether the result is there."""
        if self.work is None or self.work.is_completed():
            return True
        try:
            return bool(self.work.wait(datetime.timedelta(seconds=seconds)))
        except RuntimeError as error:
            _log.debug("the sum of step %s did not arrive: %s", self.step, error)
            return False

    def result(self) -> tuple[Array, Array] | None:
        """(scalars [N, m], sums), or None where the collective failed."""
        if self.work is not None and self.work.is_completed() and not _succeeded(self.work):
            return None
        flat = self.buffer.numpy()
        rows, width = self.block
        return flat[: rows * width].reshape(rows, width), flat[rows * width :]


def start(team: Team, *, step: int, scalars: Sequence[float], sums: Array) -> Pending:
    """Begin the sum of one step: ``scalars`` (m float64) gathered, ``sums`` (float64, same length on all ranks)
    added.
    """
    width = len(scalars)
    flat = np.zeros(team.size * width + sums.size, dtype=np.float64)
    flat[team.index * width : (team.index + 1) * width] = scalars
    flat[team.size * width :] = sums
    buffer = torch.from_numpy(flat)
    work = dist.all_reduce(buffer, group=team.group, async_op=True) if team.group is not None else None
    return Pending(step=step, buffer=buffer, work=work, block=(team.size, width))


def _succeeded(work: dist.Work) -> bool:
    try:
        return bool(work.wait())
    except RuntimeError:
        return False
