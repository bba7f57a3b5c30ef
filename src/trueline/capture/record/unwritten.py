"""A recorded step between its end and the arrival of its numbers on the host."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trueline.capture.model.host_copy import HostCopy
from trueline.schema.records import StackRecord, StepRecords, TensorRecord
from trueline.schema.roles import Record


@dataclass(eq=False)
class Unwritten:
    """What ``StepRecords`` are made of, and what is still on its way."""

    step: int
    columns: dict[str, tuple[Any, ...]]
    measured_M: np.ndarray
    stats_MS: np.ndarray | None
    fingerprint_M: np.ndarray | None
    exponents_ME: np.ndarray | None
    arrivals: list[Arrival]
    tensors: list[tuple[HostCopy, TensorRecord]]
    stacks: list[StackRecord]

    def ready(self) -> bool:
        """Whether everything is on the host; never blocks."""
        return all(copy.ready() for copy in self._copies())

    def wait(self) -> None:
        """Block until everything is on the host."""
        for copy in self._copies():
            copy.wait()

    def records(self) -> list[Record]:
        """What is to be written, in the order that a Sink wants."""
        for arrival in self.arrivals:
            arrival.fill("stats", self.stats_MS)
            arrival.fill("fingerprint", self.fingerprint_M)
            arrival.fill("exponents", self.exponents_ME)
        step = StepRecords(
            step=self.step,
            columns=self.columns,
            measured_M=self.measured_M,
            stats_MS=self.stats_MS,
            fingerprint_M=self.fingerprint_M,
            exponents_ME=self.exponents_ME,
        )
        return [*(record for _, record in self.tensors), *self.stacks, step]

    def _copies(self) -> list[HostCopy]:
        return [arrival.copy for arrival in self.arrivals] + [copy for copy, _ in self.tensors]


Queue = tuple[torch.device, torch.cuda.Stream | None]
"""Where a value was measured: a device, and its stream where it is a CUDA device."""


def queue_of(x: Tensor) -> Queue:
    """Where work on ``x`` is queued now."""
    return x.device, torch.cuda.current_stream(x.device) if x.is_cuda else None


class Arrival:
    """Numbers of one queue on their way to the host, and the measured rows that they belong to. They stay on the stream
    that made them (FSDP2 reduces on a stream of its own), which is neither waited for nor read too early by another.
    """

    def __init__(self, found: list[tuple[int, dict[str, Tensor]]], queue: Queue) -> None:
        self._indices = np.array([index for index, _ in found], dtype=np.int64)
        names = found[0][1]
        _, stream = queue
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            self.copy = HostCopy({name: torch.stack([tensors[name] for _, tensors in found]) for name in names})

    def fill(self, name: str, target: np.ndarray | None) -> None:
        """Put what was measured under ``name`` into its place."""
        if target is not None:
            arrived = self.copy.host[name].numpy()
            target[self._indices] = arrived.view(np.uint64) if target.dtype == np.uint64 else arrived
