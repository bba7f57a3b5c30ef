"""How many ranks there are, in a process that may not use ``torch.distributed`` at all."""

from __future__ import annotations

import torch.distributed as dist


def is_initialised() -> bool:
    """Whether this process is one of several that can exchange tensors, or could be: a world of one counts."""
    return dist.is_available() and dist.is_initialized()


def world_size(process_group: dist.ProcessGroup | None = None) -> int:
    """Ranks of ``process_group`` (None: of the default group); 1 where none is initialised."""
    return dist.get_world_size(process_group) if is_initialised() else 1
