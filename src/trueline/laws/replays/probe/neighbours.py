"""Batches that ranks hand to each other, so that two devices do the same work."""

from __future__ import annotations

import contextlib
import datetime
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from trueline.capture.model.random_streams import RandomStreams
from trueline.capture.step.exchange import PATIENCE_S, Team

MAX_BYTES = 2**26
"""Of a batch with its streams: a store of torch holds it in the memory of one process."""


@dataclass(frozen=True)
class Batch:
    """What a forward pass was called with, and the ``digests`` of its outputs, by ``names``, on the rank that it is
    of.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    streams: RandomStreams
    precision: tuple[bool, torch.dtype, bool]
    names: list[str]
    digests: list[int]

    def packed(self) -> bytes:
        """By pickle, tensors in host memory; empty where it is too large, or holds what cannot be pickled."""
        host = torch.device("cpu")
        batch = Batch(
            moved(self.args, host), moved(self.kwargs, host), self.streams, self.precision, self.names, self.digests
        )
        try:
            packed = pickle.dumps(batch)
        except Exception:
            return b""
        return packed if len(packed) <= MAX_BYTES else b""


class Neighbours:
    """The rank whose batch this one runs too: that of the same place on the next host, or the next one on the only
    host. Nobody waits for long for one that does not come, and then no more.
    """

    def __init__(self, team: Team) -> None:
        self._team, self._store = team, team.store
        on_host = os.environ.get("LOCAL_WORLD_SIZE", "")
        several = int(on_host) if on_host.isdecimal() else 0
        shift = several if 0 < several < team.size and team.size % several == 0 else 1
        self.rank = team.ranks[(team.index + shift) % team.size]

    def exchange(self, step: int, message: bytes) -> Batch | None:
        """The batch of the neighbour at ``step``, which all ranks ask for; None without, and for an empty
        ``message``.
        """
        if self._store is None or self.rank == self._team.rank:
            return None
        key = f"replay/{step}/{self.rank}"
        self._store.set(f"replay/{step}/{self._team.rank}", message)
        if not message:
            return None
        try:
            self._store.wait([key], datetime.timedelta(seconds=PATIENCE_S))
            answer = self._store.get(key)
        except RuntimeError:  # the other rank has stopped
            self._store = None
            return None
        with contextlib.suppress(RuntimeError, NotImplementedError):
            self._store.delete_key(key)
        return pickle.loads(answer) if answer else None

    def all_agree(self, step: int, *, is_able: bool) -> bool:
        """True on all ranks if all of them call this at ``step`` and are able, else False on all."""
        store, team = self._store, self._team
        if store is None:
            return False
        verdict = f"replay/{step}/verdict"
        if not is_able:
            return store.compare_set(verdict, "", "no") == b"yes"
        if store.add(f"replay/{step}/able", 1) == team.size:
            store.compare_set(verdict, "", "yes")
        try:
            store.wait([verdict], datetime.timedelta(seconds=PATIENCE_S))
        except RuntimeError:  # a rank that does not come; whoever sets the verdict first decides for all
            store.compare_set(verdict, "", "no")
        return store.get(verdict) == b"yes"


def moved(value: Any, device: torch.device) -> Any:
    """``value`` with its tensors on ``device``."""
    return pytree.tree_map_only(Tensor, lambda x: x.detach().to(device).requires_grad_(x.requires_grad), value)
