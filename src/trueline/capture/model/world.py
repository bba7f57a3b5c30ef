"""Ranks of the job and their meetings, in a process that may not use ``torch.distributed`` at all."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, repeat

import torch.distributed as dist

LOOK_S = 0.5
"""Seconds between two looks of the first rank at where the others wait: a look reads a value of the store for each."""


def is_initialised() -> bool:
    """True where ``torch.distributed`` is initialised in this process, even in a world of one rank."""
    return dist.is_available() and dist.is_initialized()


def world_size(process_group: dist.ProcessGroup | None = None) -> int:
    """Ranks of ``process_group`` (None: of the default group); 1 where none is initialised."""
    return dist.get_world_size(process_group) if is_initialised() else 1


def own_rank() -> int:
    """The global rank of this process; 0 where no group is initialised."""
    return dist.get_rank() if is_initialised() else 0


def launched_rank() -> int:
    """The global rank of this process, also before ranks have met: as the launcher says, 0 where it says none."""
    text = os.environ.get("RANK", "")
    return dist.get_rank() if is_initialised() else int(text) if text.isdecimal() else 0


def as_first_rank_has(value: bool) -> bool:
    """``value`` of the first rank, for all: a collective of the default group, where that is initialised."""
    values = [value]
    if is_initialised():
        dist.broadcast_object_list(values, src=0)
    return values[0]


def ranks_of(process_group: dist.ProcessGroup | None = None) -> tuple[int, ...]:
    """Global ranks of ``process_group`` (None: of the default group); those of this process alone where none is
    initialised.
    """
    return tuple(dist.get_process_group_ranks(process_group or dist.group.WORLD)) if is_initialised() else (0,)


def collectives_started(ranks: Sequence[int] | None = None) -> int:
    """Number of collectives that this process has started in the groups of ``torch.distributed`` (of just these
    ``ranks``, if given), of backends that count.
    """
    started = 0
    for group in dist.distributed_c10d._world.pg_map if is_initialised() else ():
        with contextlib.suppress(RuntimeError):
            if ranks is None or tuple(dist.get_process_group_ranks(group)) == tuple(ranks):
                started += group._get_sequence_number_for_group()
    return started


def in_pipeline() -> bool:
    """True if this is called from a stage of ``torch.distributed.pipelining``: another rank may wait for its result."""
    stages = sys.modules.get("torch.distributed.pipelining.stage")
    frame = sys._getframe() if stages is not None else None
    while frame is not None and frame.f_code.co_filename != getattr(stages, "__file__", None):
        frame = frame.f_back
    return frame is not None


def start_id() -> str:
    """A text that all ranks of this start of the job have in common, and no other start has; '' for one process."""
    if world_size() == 1:
        return ""
    store = dist.distributed_c10d._get_default_store()
    return bytes(store.compare_set("trueline/start", "", uuid.uuid4().hex)).decode()


def seconds_left(deadline: float) -> float:
    """Seconds until ``deadline`` by ``time.perf_counter``, at least a millisecond: stores in memory or in a file, and
    gloo, take less than one for no limit at all, and would wait for ever.
    """
    return max(deadline - time.perf_counter(), 0.001)


@dataclass(frozen=True)
class Meeting:
    """A prefix of its own in the store of the default group, and the message of each rank that came there, by rank.
    ``elsewhere`` is True where every other rank that was waited for was seen to wait at another meeting.
    """

    store: dist.Store
    messages: dict[int, bytes]
    elsewhere: bool = False

    def exchange(self, key: str, message: bytes) -> dict[int, bytes]:
        """The message of every rank that came, under ``key``, by rank. All of them must call it."""
        self.store.set(f"{key}/{dist.get_rank()}", message)
        messages = self.store.multi_get([f"{key}/{rank}" for rank in self.messages])
        return dict(zip(self.messages, messages, strict=True))


def meet(
    ranks: Sequence[int], *, purpose: str, message: bytes, patience_s: float, stays: bool = False, again: bool = False
) -> Meeting:
    """Meeting of those of ``ranks`` that come for ``purpose``, as often as this one did, at most ``patience_s`` apart.

    Nobody waits for ranks that wait for something else, and will not come before that ends: where all that are missing
    do, the first to come ends the meeting. A rank that ``stays`` (its backward pass would wait for the others anyway)
    does not count those that may leave for here: all but ranks that wait ``again``, for a further model.

    All that go on together know the same ranks, since one alone decides who came: the last to come, or the first whose
    patience ends. It writes down what they all said, so that the others ask the store, which serves all ranks of the
    job, for one value, however many they are. A rank that comes after that is by itself.
    """
    store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
    name = f"trueline/{purpose}/{hashlib.sha1(repr(tuple(ranks)).encode(), usedforsecurity=False).hexdigest()}"
    number = store.add(f"{name}/came/{rank}", 1)
    while store.check([f"{name}/{number}/void"]):  # a rank was here alone, as the others waited for something else
        number = store.add(f"{name}/came/{rank}", 1)
    meeting_store = dist.PrefixStore(f"{name}/{number}", store)
    meeting_store.set(f"message/{rank}", message)
    elsewhere, num_here = False, meeting_store.add("came", 1)
    store.set(f"trueline/at/{rank}", json.dumps([f"{name}/{number}", again]))
    if num_here < len(ranks):
        looks = (
            (lambda: _are_elsewhere(store, meeting_store, f"{name}/{number}", ranks, stays=stays))
            if num_here == 1
            else None
        )
        elsewhere = _wait(meeting_store, patience_s, looks)
    # compare_set: of several ranks whose patience ends at once, the first decides for all.
    if not meeting_store.check(["who"]):
        meeting_store.compare_set("who", "", json.dumps(_pack_messages(meeting_store, ranks)))
    messages = _unpack_messages(json.loads(meeting_store.get("who")), ranks)
    if rank not in messages:
        return Meeting(dist.PrefixStore(f"late/{rank}", meeting_store), {rank: message})
    if elsewhere and len(messages) == 1:
        meeting_store.set("void", "")
    return Meeting(meeting_store, messages, elsewhere)


def _wait(meeting_store: dist.Store, patience_s: float, is_in_vain: Callable[[], bool] | None) -> bool:
    """Wait until it is known who came, or ``patience_s``; True once ``is_in_vain``, asked at times, says so."""
    deadline = time.perf_counter() + patience_s
    while time.perf_counter() < deadline:
        left_s = seconds_left(deadline)
        with contextlib.suppress(RuntimeError):
            meeting_store.wait(
                ["who"], datetime.timedelta(seconds=left_s if is_in_vain is None else min(left_s, LOOK_S))
            )
            return False
        if is_in_vain is not None and is_in_vain():
            return True
    return False


def _are_elsewhere(
    store: dist.Store, meeting_store: dist.Store, own_key: str, ranks: Sequence[int], *, stays: bool
) -> bool:
    """True if each of ``ranks`` that has not come waits at another meeting, of which it is not known yet who came."""
    for rank in (rank for rank in ranks if not meeting_store.check([f"message/{rank}"])):
        if not store.check([f"trueline/at/{rank}"]):
            return False
        key, again = json.loads(store.get(f"trueline/at/{rank}"))
        if key == own_key or store.check([f"{key}/who"]) or (stays and not again):
            return False
    return True


def _pack_messages(meeting_store: dist.Store, ranks: Sequence[int]) -> list[tuple[str | None, int]]:
    """Messages of ``ranks`` in hexadecimal, None for a rank that did not come, run-length encoded as (message, count):
    ranks mostly send equal ones.
    """
    keys = [f"message/{rank}" for rank in ranks]
    present = keys if meeting_store.check(keys) else [key for key in keys if meeting_store.check([key])]
    text_of = dict(zip(present, meeting_store.multi_get(present), strict=True))
    return [
        (text, len(list(alike)))
        for text, alike in groupby(text_of[key].hex() if key in text_of else None for key in keys)
    ]


def _unpack_messages(packed: Sequence[tuple[str | None, int]], ranks: Sequence[int]) -> dict[int, bytes]:
    """Message of each of ``ranks`` that came, from what ``_pack_messages`` returned."""
    texts = chain.from_iterable(repeat(text, count) for text, count in packed)
    return {rank: bytes.fromhex(text) for rank, text in zip(ranks, texts, strict=True) if text is not None}


def all_come(*, purpose: str, patience_s: float = 10.0) -> bool:
    """True if every rank comes here for ``purpose``; all that come get the same answer (see ``meet``)."""
    met = meet(range(world_size()), purpose=purpose, message=b"", patience_s=patience_s, again=True)
    return len(met.messages) == world_size()
