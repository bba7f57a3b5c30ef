"""TensorBoard: ``tensorboard:DIRECTORY`` writes scalars under ``trueline/`` and each finding as a text."""

from __future__ import annotations

import os
from collections.abc import Sequence

from trueline.schema.finding import Finding
from trueline.schema.live import Numbers, headline

LIBRARY = "tensorboard"


def open_sink(target: str, run: str) -> TensorBoard:
    """Writes event files into the directory ``target``. Raises ``OSError``."""
    from torch.utils.tensorboard import SummaryWriter

    os.makedirs(target, exist_ok=True)
    return TensorBoard(SummaryWriter(target, filename_suffix=".trueline"))


class TensorBoard:
    """Writes through torch's ``SummaryWriter``; what it takes is on disk when a call returns."""

    def __init__(self, writer: object) -> None:
        self._writer = writer
        self._num_findings = 0

    def numbers(self, rows: Sequence[Numbers]) -> None:
        for step_numbers in rows:
            for name, value in step_numbers.values.items():
                self._writer.add_scalar(f"trueline/{name}", value, step_numbers.step)
        self._writer.flush()

    def finding(self, finding: Finding) -> None:
        """The finding in words, and how many there are so far, at the step where its evidence starts."""
        step = finding.step_first or 0
        lines = [headline(finding), *finding.next]
        self._writer.add_text(f"trueline/{finding.code}", "\n\n".join(lines), step)
        if finding.is_grave:
            self._num_findings += 1
            self._writer.add_scalar("trueline/findings", self._num_findings, step)
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
