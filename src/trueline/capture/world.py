"""How many ranks there are, in a process that may not use ``torch.distributed`` at all."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch.distributed as dist


def is_initialised() -> bool:
    """Whether this process is one of several that can exchange tensors, or could be: a world of one counts."""
    return dist.is_available() and dist.is_initialized()


def world_size(process_group: dist.ProcessGroup | None = None) -> int:
    """Ranks of ``process_group`` (None: of the default group); 1 where none is initialised."""
    return dist.get_world_size(process_group) if is_initialised() else 1


def meeting(ranks: Sequence[int], *, purpose: str) -> dist.PrefixStore:
    """A place of its own in the store of the default group, the same on each of ``ranks`` that comes as often as they
    do for ``purpose``.
    """
    store = dist.distributed_c10d._get_default_store()
    name = f"trueline/{purpose}/{hashlib.sha1(repr(tuple(ranks)).encode(), usedforsecurity=False).hexdigest()}"
    others_before = store.add(f"{name}/came", 1) - 1
    return dist.PrefixStore(f"{name}/{others_before // len(ranks)}", store)
