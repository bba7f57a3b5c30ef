"""Digests of tensors that one rank sends to another, as they are sent and as they have arrived."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from trueline.capture.adapters.base import Guard
from trueline.capture.model.patches import Patch, calling_of
from trueline.capture.model.world import is_initialised, ranks_of
from trueline.capture.probes.base import FactProbe, Moment, Step
from trueline.capture.probes.parts import ProbeParts
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
        self._counts: dict[str, Counter[int]] = {"sent": Counter(), "received": Counter()}
        self._places: dict[str, list[tuple[int, int]]] = {"sent": [], "received": []}
        self._digests: dict[str, list[Tensor]] = {"sent": [], "received": []}
        self._waiting: list[tuple[Any, int, int, Tensor]] = []
        self._wait: Patch | None = None
        self._patches: list[Patch] = []
        if is_initialised() and not any(ref() is not None for ref in _listening):
            _listening[:] = [weakref.ref(self)]
            group = dist.ProcessGroup
            self._patches = [
                Patch(group, "send", calling_of(self._at_send)),
                Patch(group, "recv", calling_of(self._at_receive)),
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
        for column, digests in self._digests.items():
            if digests:
                tensors[f"{column}_places"] = torch.tensor(self._places[column], dtype=torch.int64)
                tensors[f"{column}_digests"] = torch.cat([digest.to(step.layout.device) for digest in digests])
                self._digests[column], self._places[column] = [], []
        return tensors

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, list[int]]:
        columns: dict[str, list[int]] = {}
        for column in self._counts:
            if f"{column}_digests" in host:
                digests = map(unsigned, host[f"{column}_digests"].tolist())
                places = host[f"{column}_places"].tolist()
                rows = zip(places, digests, strict=True)
                columns[column] = [value for place, digest in rows for value in (*place, digest)]
        return columns

    def detach(self) -> None:
        for patch in [*self._patches, *([] if self._wait is None else [self._wait])]:
            patch.remove()
        self._waiting.clear()
        _listening[:] = [ref for ref in _listening if ref() not in (None, self)]

    def _at_send(self, original: Callable[..., Any], group: Any, tensors: Sequence[Tensor], *args: Any) -> Any:
        with self._guard(self.name):
            number = self._numbered("sent", group, tensors, args)
            if number is not None:
                self._digest("sent", *number, tensors[0])
        return original(group, tensors, *args)

    def _at_receive(self, original: Callable[..., Any], group: Any, tensors: Sequence[Tensor], *args: Any) -> Any:
        work = original(group, tensors, *args)
        with self._guard(self.name):
            number = self._numbered("received", group, tensors, args)
            if number is not None:
                self._waiting = [*self._waiting[1 - MAX_WAITING :], (work, *number, tensors[0])]
                self._see_wait(work)
        return work

    def _numbered(self, column: str, group: Any, tensors: Sequence[Tensor], args: Any) -> tuple[int, int] | None:
        """Rank of the other side and number of the transfer; None for one that is not digested."""
        rank = ranks_of(group)[args[0]]
        number = self._counts[column][rank]
        self._counts[column][rank] += 1
        plain = len(tensors) == 1 and tensors[0].is_contiguous()
        return (rank, number) if plain and (number < NUM_FIRST or number % EVERY == 0) else None

    def _digest(self, column: str, rank: int, number: int, tensor: Tensor) -> None:
        with torch.no_grad():
            self._digests[column].append(digest_each([tensor], tensor.device))
        self._places[column].append((rank, number))

    def _see_wait(self, work: Any) -> None:
        """Be called as ``work`` has been waited for, be it torch's or an object of a backend in Python."""
        if isinstance(work, dist.Work):
            if self._wait is None:
                self._wait = Patch(dist.Work, "wait", calling_of(self._waited))
                self._wait.install()
        elif hasattr(work, "__dict__"):
            wait = work.wait
            work.wait = lambda *args: self._waited(lambda _, *given: wait(*given), work, *args)

    def _waited(self, original: Callable[..., Any], work: Any, *args: Any) -> Any:
        done = original(work, *args)
        if self._waiting:
            with self._guard(self.name):
                for entry in [entry for entry in self._waiting if entry[0] is work]:
                    self._waiting.remove(entry)
                    self._digest("received", *entry[1:])
        return done


def make_probe(parts: ProbeParts) -> TransferProbe:
    """The probe of this law for one watched model."""
    return TransferProbe(parts.guard)
