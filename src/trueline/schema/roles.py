"""The roles that parts play for each other. None has more than three methods."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from trueline.schema.columns.records import StackRecord, StepRecords, TensorRecord
from trueline.schema.columns.rollouts import TableRows
from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.schema.finding import Finding

Record = Mapping[str, Any] | Finding | StepRecords | TensorRecord | StackRecord | TableRows
"""What a Sink takes. A mapping is a piece of a workers row, with keys of ``schema.workers``, ``step`` among them."""


@runtime_checkable
class Sink(Protocol):
    """Where measurements of one rank go. A Sink may be slow or fail; the recorder then leaves it and training goes
    on.
    """

    def describe(self, manifest: Manifest | None, env: RankEnv) -> None:
        """Take what the Run and this rank are; ``manifest`` is None on every rank but the first. May come again."""
        ...

    def write(self, record: Record) -> None:
        """Take one Record. Of a recorded step, tensors and stacks come before the rows that refer to them."""
        ...

    def close(self) -> None:
        """Make everything taken so far durable. Called once, also after an exception."""
        ...


class Guard(Protocol):
    """Says of an update that is about to be made whether it is to be left out. It is asked on all ranks with the same
    numbers, and must answer alike.
    """

    def why_not(self, norm: float, *, rate: float, passes: int) -> str:
        """Why an update with a gradient of this ``norm``, finite, is not to be made, '' where nothing speaks against
        it; ``rate`` is the largest learning rate, ``passes`` the number of training forward passes behind it.
        """
        ...
