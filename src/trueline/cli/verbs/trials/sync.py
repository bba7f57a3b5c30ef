"""`trueline trial sync`: whether a finding is a race, of memory, or neither."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trueline.cli.trial_options import verb

_MEANS = {
    "confirmed": "the finding depends on order in time or on memory, as told below",
    "excluded": "it is neither a race between streams or threads nor memory that is read too early or too late",
    "undecided": "whether it is a race or of memory cannot be told",
}


@verb("sync", _MEANS)
def command() -> Mapping[str, Any]:
    """Run a training command with every operation waited for, slowed down, and with memory filled by a pattern, and say
    whether a finding is a race, memory that is read before it is written or after it is freed, or neither.

    confirmed: one of these; excluded: neither. Exit code 0: one of these; 3: undecided.

    Example: trueline trial sync runs/bad -- torchrun --nproc-per-node 2 train.py
    """
    return {}
