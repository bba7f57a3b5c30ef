"""Ranks that meet: all know alike who came and what was said, and none asks the store more often for being many."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
import torch.distributed as dist

from trueline.capture.model import world

LATE_S = 1.0
REAL = dist.PrefixStore


class Asked:
    """The stores of several ranks, each a thread, and how often each asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counts: dict[int, int] = {}
        self._store = dist.HashStore()
        self._here = threading.local()
        asked = self

        class Counting:
            def __init__(self, prefix: str, store: object) -> None:
                self._inner = REAL(prefix, getattr(store, "_inner", store))

            def __getattr__(self, name: str) -> Callable[..., object]:
                rank = asked._here.rank
                asked.counts[rank] = asked.counts.get(rank, 0) + 1
                return getattr(self._inner, name)

        monkeypatch.setattr(world.dist, "PrefixStore", Counting)
        monkeypatch.setattr(world.dist, "get_rank", lambda: self._here.rank)
        monkeypatch.setattr(world.dist.distributed_c10d, "_get_default_store", lambda: self._store)

    def met(self, ranks: Sequence[int], came: Sequence[int], *, patience_s: float) -> dict[int, dict[int, bytes]]:
        """What each of those that ``came`` heard; rank r says ``r // 4``."""
        heard: dict[int, dict[int, bytes]] = {}

        def one(rank: int) -> None:
            self._here.rank = rank
            said = str(rank // 4).encode()
            heard[rank] = world.meet(ranks, purpose="test", message=said, patience_s=patience_s).messages

        threads = [threading.Thread(target=one, args=(rank,)) for rank in came]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        return heard


def said(ranks: Sequence[int]) -> dict[int, bytes]:
    return {rank: str(rank // 4).encode() for rank in ranks}


@pytest.mark.parametrize("missing", [(), (0,), (3, 6)])
def test_all_hear_what_those_said_that_came(monkeypatch, missing):
    came = [rank for rank in range(8) if rank not in missing]
    heard = Asked(monkeypatch).met(range(8), came, patience_s=LATE_S if missing else 60)
    assert heard == {rank: said(came) for rank in came}


def test_a_rank_that_comes_late_is_by_itself(monkeypatch):
    stores = Asked(monkeypatch)
    assert stores.met(range(3), [0, 1], patience_s=LATE_S) == {0: said([0, 1]), 1: said([0, 1])}
    assert stores.met(range(3), [2], patience_s=LATE_S) == {2: said([2])}


def test_what_a_rank_asks_of_the_store_does_not_grow_with_the_ranks(monkeypatch):
    counts = []
    for num_ranks in (4, 64):
        stores = Asked(monkeypatch)
        stores.met(range(num_ranks), range(num_ranks), patience_s=60)
        counts.append(max(stores.counts.values()))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("patience_s", [0.0004, 0.0104])
def test_less_than_a_millisecond_is_waited_for_no_longer(tmp_path, patience_s):
    """For a store in a file, as for one in memory, a time limit of no whole millisecond is none at all."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    waiting = threading.Thread(target=world._wait, args=(store, patience_s, None), daemon=True)
    waiting.start()
    waiting.join(30)
    assert not waiting.is_alive()
