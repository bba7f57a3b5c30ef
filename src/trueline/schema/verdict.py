"""The verdict on a Run in one sentence: command line, report and documents have it alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["out", "suspect", "clear", "unknown"]
WORDS: dict[Status, str] = {
    "out": "Fault found",
    "suspect": "Probable fault",
    "clear": "No fault found",
    "unknown": "Cannot tell",
}
"""The gravest first."""
EXIT_CODES: dict[Status, int] = {"out": 1, "suspect": 1, "clear": 0, "unknown": 3}


@dataclass(frozen=True, slots=True)
class Verdict:
    """``where`` is which ranks since which step, "" where nothing was found; ``line`` is the whole sentence."""

    status: Status
    where: str
    rest: str

    @property
    def word(self) -> str:
        """The status as a reader sees it."""
        return WORDS[self.status]

    @property
    def line(self) -> str:
        """``Probable fault: rank 2, since step 32; 3 findings.``"""
        return f"{self.word}{': ' if self.where else ''}{self.where}{self.rest}."
