"""One small asynchronous all-reduce a sampled step, in a gloo group of its own; its result is read a step later, and
training never waits for it.

Every rank fills its own row of a [N, m] block and leaves zeros elsewhere, so that one sum is an all-gather of the
scalars and an all-reduce of the sketches at once. gloo works on host memory: it never uses the accelerator or its
communicators. All sums of a job have one length, even when a rank's model changes: gloo aborts a process whose buffer
has another length than the others'.
"""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import hashlib
import pickle
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import nn

from trueline.capture.model import peers
from trueline.capture.model.layout import NOTHING_UNLIKE, UnlikeParams
from trueline.capture.model.mesh import Mesh, piece_of_sequence
from trueline.capture.model.world import Meeting, meet
from trueline.schema.errors import CaptureError
from trueline.schema.safe_logger import SafeLogger

_log = SafeLogger(__name__)

PATIENCE_S = 10.0
"""Longest wait for a late sum (at close): a rank that has stopped must not delay the others for longer."""

COMING_S = 10.0
"""Longest wait of ranks that start to train for the others: one that only evaluates, for example, never comes."""

leaves_alone: ContextVar[bool] = ContextVar("leaves_alone", default=False)
"""True if a model that one rank trains alone, while the others wait to train another, is not to be watched: where
nobody asked for this model. The rank then comes to the other with them.
"""

REDUCING_S = 300.0
"""Longest wait for the others where the framework's own backward pass would wait for them anyway."""

Array = NDArray[np.float64]


class TrainedAlone(CaptureError):
    """One rank trains a model of its own."""


@dataclass
class Team:
    """The N ranks that are watched together. ``group`` is Trueline's own connection between them, None for one rank and
    once it was given back; ``side`` is a second one, for what is not part of a sum, and ``votes`` a third, for what
    ranks agree on before an update. ``under_way`` are sums that were not done when last looked at; ``room`` is how many
    numbers a sum adds up besides the scalars, the same on all ranks.

    Neither group is in torch's list: the names that torch gives to the user's groups depend on how many are in it, and
    where one was destroyed, a later one of the same ranks may get its name and connect to its old addresses.

    ``unlike`` are the parameters that ranks do not hold alike, None where they are not compared; ``missing`` are the
    ranks that did not come in time; ``pieces`` are the ranks with the same piece of their sequences, by piece, () where
    all have the same.
    """

    ranks: tuple[int, ...]
    rank: int
    group: dist.ProcessGroupGloo | None
    store: dist.Store | None = None
    side: dist.ProcessGroupGloo | None = None
    votes: dist.ProcessGroupGloo | None = None
    room: int = 0
    unlike: UnlikeParams | None = NOTHING_UNLIKE
    missing: tuple[int, ...] = ()
    pieces: tuple[tuple[int, ...], ...] = ()
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
        """Release the group with its threads and sockets. Never waits for another rank: results that have arrived in
        full do not need the others any more.
        """
        group, self.group, self.side, self.votes = self.group, None, None, None
        unfinished = [work for work in self.under_way if not work.is_completed()]
        self.under_way = []
        if unfinished:  # gloo's destructor would wait for ranks that may have stopped, also at exit
            _keep(group, *unfinished)

    def abandon(self) -> None:
        """Release the group in a process that was forked, where gloo's destructor would wait for threads that do not
        exist.
        """
        _keep(self.group, self.side, self.votes, *self.under_way)
        self.group, self.side, self.votes, self.under_way = None, None, None, []

    def connect(self, *, side: bool, votes: bool = False) -> None:
        """Connect ``group``, and ``side`` and ``votes`` where asked for; all ranks of the team must call it."""
        if self.store is not None:
            self.group = _connected(self.store, self.index, self.size)
            self.side = _connected(dist.PrefixStore("side", self.store), self.index, self.size) if side else None
            self.votes = _connected(dist.PrefixStore("votes", self.store), self.index, self.size) if votes else None
            # A rank that closes at once would break the connections that the others are still making.
            if self.store.add("connected", 1) == self.size:
                self.store.set("all connected", "")
            with contextlib.suppress(RuntimeError):
                self.store.wait(["all connected"], datetime.timedelta(seconds=PATIENCE_S))

    def share(self, value: Any) -> Any:
        """The ``value`` of the first worker, on all of them (by pickle)."""
        if self.store is None:
            return value
        if self.index == 0:
            self.store.set("shared", pickle.dumps(value))
        return pickle.loads(self.store.get("shared"))


def _keep(*objects: object) -> None:
    """Keep the objects alive for ever, so that their destructors never run."""
    for owned in objects:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owned))


def make_team(mesh: Mesh, *, model: nn.Module, adapter: str = "", replicas: bool = False) -> Team:
    """The Team of those members of ``mesh`` that come to train ``model``, which they compare unless an ``adapter`` has
    no name.

    ``replicas`` are of a framework in whose backward pass ranks wait for each other anyway. All ranks must call it in
    the same order, and one that never does is waited for a while. They are not connected yet.
    """
    ranks, rank = mesh.members, mesh.rank
    if len(ranks) == 1:
        return Team(ranks=ranks, rank=rank, group=None)
    digest = hashlib.sha256(repr((adapter, peers.outline(model) if adapter else None)).encode()).digest()
    patience_s = REDUCING_S if replicas else COMING_S
    message = digest + repr(piece_of_sequence()).encode()
    purpose = f"team/{adapter if replicas else ''}"
    meeting = meet(ranks, purpose=purpose, message=message, patience_s=patience_s, stays=replicas)
    if meeting.elsewhere and not replicas and len(meeting.messages) == 1 and leaves_alone.get():
        raise TrainedAlone("the other ranks train another model")
    missing = tuple(sorted(set(ranks) - set(meeting.messages)))
    differ = len({answer[: len(digest)] for answer in meeting.messages.values()}) > 1
    pieces = _by_piece({rank: answer[len(digest) :] for rank, answer in meeting.messages.items()})
    unlike = _unlike_params(meeting, model, adapter, replicas=replicas) if differ else NOTHING_UNLIKE
    came = tuple(answer for answer in ranks if answer in meeting.messages)
    if len(came) == 1:
        return Team(ranks=came, rank=rank, group=None, missing=missing)
    return Team(ranks=came, rank=rank, group=None, store=meeting.store, unlike=unlike, missing=missing, pieces=pieces)


def _by_piece(piece_of: Mapping[int, bytes]) -> tuple[tuple[int, ...], ...]:
    """The ranks that hold equal pieces, ascending; () where all do."""
    alike = {
        piece: tuple(sorted(rank for rank, piece_there in piece_of.items() if piece_there == piece))
        for piece in piece_of.values()
    }
    return tuple(sorted(alike.values())) if len(alike) > 1 else ()


def _unlike_params(meeting: Meeting, model: nn.Module, adapter: str, *, replicas: bool) -> UnlikeParams | None:
    """The parameters that differ between ranks, None where ranks hold parts of one model or have other adapters."""
    messages = meeting.exchange("held", pickle.dumps((adapter, peers.holdings(model))))
    answers = {rank: pickle.loads(data) for rank, data in messages.items()}
    if len({name for name, _ in answers.values()}) > 1:
        return None
    return peers.unlike_params({rank: params for rank, (_, params) in answers.items()}, replicas=replicas)


def _connected(store: dist.Store, index: int, size: int) -> dist.ProcessGroupGloo:
    return dist.ProcessGroupGloo(store, index, size, timeout=datetime.timedelta(minutes=10))


@dataclass
class Pending:
    """A sum that was started. ``step`` is the optimizer step that it belongs to."""

    step: int
    buffer: torch.Tensor
    work: dist.Work | None
    block: tuple[int, int]

    def ready(self) -> bool:
        """True if the result has arrived; never blocks."""
        return self.work is None or self.work.is_completed()

    def wait(self, seconds: float) -> bool:
        """Wait at most ``seconds``; return whether the result has arrived."""
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
    """Begin the sum of one step: ``scalars`` (m float64) gathered, ``sums`` (float64, at most ``team.room``) added."""
    width = len(scalars)
    begin = team.size * width
    flat = np.zeros(begin + team.room, dtype=np.float64)
    flat[team.index * width : (team.index + 1) * width] = scalars
    flat[begin : begin + sums.size] = sums
    buffer = torch.from_numpy(flat)
    work = team.group.allreduce([buffer]) if team.group is not None else None
    if work is not None:
        team.under_way = [*(earlier for earlier in team.under_way if not earlier.is_completed()), work]
    return Pending(step=step, buffer=buffer, work=work, block=(team.size, width))


def _succeeded(work: dist.Work) -> bool:
    try:
        return bool(work.wait())
    except RuntimeError:
        return False
