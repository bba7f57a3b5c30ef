"""One step between being measured and being written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trueline.capture.derive import Array, Own
from trueline.capture.exchange import Pending
from trueline.capture.host_copy import HostCopy


@dataclass
class StepRecord:
    """What was measured at a step, on its way to the host, and the sum over workers where it is ``sampled``. A ``beat``
    has no row: its sum only tells whether the Plan has changed.
    """

    row: dict[str, Any]
    copy: HostCopy
    interval: int
    passes: int
    sampled: bool
    keeps_sketch: bool = False
    beat: bool = False
    looked_at: bool = False
    own: Own | None = None
    pending: Pending | None = None
    reduced_norm2: Array | None = None

    @property
    def step(self) -> int:
        """The optimizer step."""
        return int(self.row["step"])

    @property
    def known(self) -> int:
        """The first step that may depend on what its sum says: two samples later every rank has it."""
        return self.step + 2 * self.interval


def any_decides(records: Iterable[StepRecord], step: int) -> bool:
    """Whether the sum of one of these has a say in what happens at ``step``."""
    return any(record.sampled and record.known <= step for record in records)
