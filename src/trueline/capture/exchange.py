"""One small asynchronous all-reduce a sampled step, on a gloo group of its own, read a step late and never waited for.

Every rank fills its own row of a [N, m] block and leaves zeros elsewhere, so that one sum is an all-gather of the
scalars and an all-reduce of the sketches at once. gloo on host memory: it never touches the accelerator or its
communicators.
"""

from __future__ import annotations

import ctypes
import datetime
import logging
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from trueline.capture.world import is_initialised, meeting

_log = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""How long a late sum is waited for where it must be (at close); a rank that is gone must not hold up the others."""

Array = NDArray[np.float64]


@dataclass
class Team:
    """The N workers whose gradients are averaged together; ``group`` is Trueline's own, None for one worker and once it
    was given back. ``under_way`` are sums that were not done when last looked at.
    """

    ranks: tuple[int, ...]
    rank: int
    group: dist.ProcessGroupGloo | None
    under_way: list[dist.Work] = field(default_factory=list)

    @property
    def size(self) -> int:
        """N."""
        return len(self.ranks)

    @property
    def index(self) -> int:
        """This worker's position among the N."""
        return self.ranks.index(self.rank)

    def give_back(self) -> None:
        """Let go of the group, and so of its threads and sockets. Never waits for another rank: what this one has
        received in full does not need the others any more.
        """
        group, self.group = self.group, None
        left = [work for work in self.under_way if not work.is_completed()]
        self.under_way = []
        if left:  # gloo's destructor would wait for ranks that may be gone, also at exit
            _keep(group, *left)

    def abandon(self) -> None:
        """Let go of the group in a process that was forked, where gloo's destructor would wait for threads that are not
        there.
        """
        _keep(self.group, *self.under_way)
        self.group, self.under_way = None, []

    def share(self, told: Any) -> Any:
        """What the first worker is given here, on all of them (by pickle)."""
        if self.group is None:
            return told
        data = pickle.dumps(told) if self.index == 0 else b""
        size = torch.tensor([len(data)])
        self.group.broadcast(size, root=0).wait()
        content = torch.zeros(int(size), dtype=torch.uint8)
        if self.index == 0:
            content = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        self.group.broadcast(content, root=0).wait()
        return pickle.loads(content.numpy().tobytes())


def _keep(*objects: object) -> None:
    """See to it that destructors never run."""
    for owned in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owned))


def make_team(process_group: dist.ProcessGroup | None) -> Team:
    """The Team of ``process_group`` (None: the default group; a single worker where none is initialised).

    A collective among the group's members: all of them must call it at the same point.
    """
    if not is_initialised():
        return Team(ranks=(0,), rank=0, group=None)
    ranks = tuple(dist.get_process_group_ranks(process_group or dist.group.WORLD))
    rank = dist.get_rank()
    return Team(ranks=ranks, rank=rank, group=_connected(ranks, rank) if len(ranks) > 1 else None)


def _connected(ranks: tuple[int, ...], rank: int) -> dist.ProcessGroupGloo:
    """A gloo group of ``ranks``, met through the store of the default group.

    It is none of torch's list: the names that torch gives to the groups of the user depend on how many are in there,
    and where one was destroyed, a later one of the same ranks may get its name and meet at its old addresses.
    """
    store = meeting(ranks, purpose="team")
    return dist.ProcessGroupGloo(store, ranks.index(rank), len(ranks), timeout=datetime.timedelta(minutes=10))


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
    work = team.group.allreduce([buffer]) if team.group is not None else None
    if work is not None:
        team.under_way = [*(other for other in team.under_way if not other.is_completed()), work]
    return Pending(step=step, buffer=buffer, work=work, block=(team.size, width))


def _succeeded(work: dist.Work) -> bool:
    try:
        return bool(work.wait())
    except RuntimeError:
        return False
