"""Digests of tensors that one rank sends to another, as they are sent and as they have arrived."""

from __future__ import annotations

import contextlib
import weakref
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trueline.capture.adapters.base import Guard
from trueline.capture.model.patches import Patch, calling_of
from trueline.capture.model.world import is_initialised, ranks_of
from trueline.capture.probes.base import FactProbe, Moment, Step
from trueline.capture.probes.parts import ProbeParts
from trueline.laws.transfers.declared import COUNT_BITS
from trueline.tensor.digest import digest_each, unsigned

NUM_FIRST, EVERY = 128, 64
"""Of the transfers to or from one rank the first so many are digested, then each of this number: both sides count them
alike, and need not agree on steps."""
MAX_WAITING = 64
"""Transfers that nobody has waited for yet; of more the oldest are forgotten."""

_listening: list[weakref.ref[TransferProbe]] = []
"""The probe of the model that was watched first: transfers are the process's, and no model's."""


class TransferProbe(FactProbe):
    """The columns ``sent`` and ``received``, in steps before whose update a transfer was digested: of ``send``,
    ``isend``, ``recv`` and ``irecv``, also in a batch, through whichever process group. What arrives is digested as
    ``wait`` returns, in the stream that has waited.
    """

    name = "transfers"
    moments = ("update",)

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._counts: dict[str, Counter[tuple[int, int]]] = {"sent": Counter(), "received": Counter()}
        self._from_any: set[int] = set()
        self._places: dict[str, list[tuple[int, int]]] = {"sent": [], "received": []}
        self._digests: dict[str, list[Tensor]] = {"sent": [], "received": []}
        # many wait for the whole batch, and for no single work: a tensor is kept as long as somebody else has its work
        self._waiting: list[tuple[weakref.ref[Any], int, int, Tensor]] = []
        self._waits: dict[type[Any], Patch] = {}
        self._patches: list[Patch] = []
        if is_initialised() and not any(ref() is not None for ref in _listening):
            _listening[:] = [weakref.ref(self)]
            group = dist.ProcessGroup
            self._patches = [
                Patch(group, "send", calling_of(self._at_send)),
                Patch(group, "recv", calling_of(self._at_receive)),
                Patch(group, "recv_anysource", calling_of(self._at_receive_any)),
            ]
            for patch in self._patches:
                patch.install()

    @property
    def between(self) -> tuple[Moment, ...]:
        """All, where ranks send each other anything."""
        return self.moments if self._counts["sent"] or self._counts["received"] else ()

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """For each column int64 [N, 2] ranks and numbers, and int64 [N] digests."""
        tensors: dict[str, Tensor] = {}
        self._let_go()
        for column, digests in self._digests.items():
            if digests:
                tensors[f"{column}_places"] = torch.tensor(self._places[column], dtype=torch.int64)
                # those of a host's tensors stay there: to copy them to a device would wait
                device = next((digest.device for digest in digests if digest.device.type != "cpu"), digests[0].device)
                moved = [digest.to(device, non_blocking=True) for digest in digests]
                tensors[f"{column}_digests"] = torch.cat(moved)
                self._digests[column], self._places[column] = [], []
        return tensors

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, list[int]]:
        columns: dict[str, list[int]] = {}
        for column in self._counts:
            if f"{column}_digests" in host:
                digests = map(unsigned, host[f"{column}_digests"].tolist())
                places = host[f"{column}_places"].tolist()
                rows = zip(places, digests, strict=True)
                columns[column] = [value for key, digest in rows for value in (*key, digest)]
        return columns

    def detach(self) -> None:
        for patch in [*self._patches, *self._waits.values()]:
            patch.remove()
        self._waiting.clear()
        _listening[:] = [ref for ref in _listening if ref() not in (None, self)]

    def _at_send(self, original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
        with self._guard(self.name):
            tensors, rank, tag = _arguments("dstRank", args, kwargs)
            key = self._place("sent", group, tensors, rank, tag)
            if key is not None:
                self._digest("sent", *key, tensors[0])
        return original(group, *args, **kwargs)

    def _at_receive(self, original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
        work = original(group, *args, **kwargs)
        with self._guard(self.name):
            tensors, rank, tag = _arguments("srcRank", args, kwargs)
            key = self._place("received", group, tensors, rank, tag)
            # an object of a backend in Python may have no weak references
            with contextlib.suppress(TypeError):
                if key is not None:
                    self._let_go()
                    self._waiting = [*self._waiting[1 - MAX_WAITING :], (weakref.ref(work), *key, tensors[0])]
                    self._see_wait(work)
        return work

    def _at_receive_any(self, original: Callable[..., Any], group: Any, *args: Any, **kwargs: Any) -> Any:
        """Whose transfer it takes shows nowhere: from now on those with its tag have no number."""
        with self._guard(self.name):
            self._from_any.add(_stream(group, args[1]))
        return original(group, *args, **kwargs)

    def _place(self, column: str, group: Any, tensors: Any, rank: int, tag: int) -> tuple[int, int] | None:
        """Rank of the other side and number of the transfer; None for one that is not digested."""
        stream, peer = _stream(group, tag), ranks_of(group)[rank]
        count = self._counts[column][peer, stream]
        self._counts[column][peer, stream] += 1
        if column == "received" and stream in self._from_any:
            return None
        plain = len(tensors) == 1 and tensors[0].is_contiguous()
        is_digested = plain and (count < NUM_FIRST or count % EVERY == 0)
        return (peer, (stream << COUNT_BITS) + count) if is_digested else None

    def _digest(self, column: str, rank: int, number: int, tensor: Tensor) -> None:
        with torch.no_grad():
            self._digests[column].append(digest_each([tensor], tensor.device))
        self._places[column].append((rank, number))

    def _see_wait(self, work: Any) -> None:
        """Be called as ``work`` has been waited for, be it torch's or an object of a backend in Python."""
        owner = next(kind for kind in type(work).__mro__ if "wait" in vars(kind))
        if owner not in self._waits:
            self._waits[owner] = Patch(owner, "wait", calling_of(self._waited))
            self._waits[owner].install()

    def _waited(self, original: Callable[..., Any], work: Any, *args: Any, **kwargs: Any) -> Any:
        done = original(work, *args, **kwargs)
        if self._waiting:
            with self._guard(self.name):
                entries = [entry for entry in self._waiting if entry[0]() is work]
                for _, *key, tensor in entries:
                    self._digest("received", *key, tensor)
                self._let_go(work)
        return done

    def _let_go(self, waited: Any = None) -> None:
        """Of what was ``waited`` for, and of what nobody can wait for any more."""
        self._waiting = [entry for entry in self._waiting if (work := entry[0]()) is not None and work is not waited]


def _arguments(rank: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    """Tensors, rank in the group and tag of a call of a process group."""
    first, second, third = (*args, *(kwargs[name] for name in ("tensors", rank, "tag")[len(args) :]))
    return first, second, third


def _stream(group: Any, tag: int) -> int:
    """Of a group and a tag, 31 bits that are the same on both sides."""
    return zlib.crc32(f"{group.group_name} {tag}".encode()) >> 1


def make_probe(parts: ProbeParts) -> TransferProbe:
    """The probe of this law for one watched model."""
    return TransferProbe(parts.guard)
