"""Counts what the interpreter does in Trueline's own functions: the same on every machine, whatever else runs there."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import trueline
from trueline.capture.model.patches import UNSEEN

_SOURCES = str(Path(trueline.__file__).parent)


@dataclass
class Work:
    """Instructions of the interpreter in frames of Trueline's, and calls of C functions from there (each a number that
    torch or Arrow computes, or a step of a container), of one thread. ``by_function`` has the instructions of each.
    """

    instructions: int = 0
    c_calls: int = 0
    by_function: Counter[str] = field(default_factory=Counter[str])

    def __str__(self) -> str:
        most = ", ".join(f"{name} {number}" for name, number in self.by_function.most_common(12))
        return f"{self.instructions} instructions and {self.c_calls} calls of C; most in {most}"


@contextmanager
def counted() -> Iterator[Work]:
    """What this thread does until the end."""
    work = Work()
    is_ours: dict[str, bool] = {UNSEEN: True}

    def ours(frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        if name not in is_ours:
            is_ours[name] = name.startswith(_SOURCES)
        return is_ours[name]

    def at_instruction(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "opcode":
            work.instructions += 1
            work.by_function[frame.f_code.co_qualname] += 1
        return at_instruction

    def at_frame(frame: FrameType, event: str, arg: Any) -> Any:
        if not ours(frame):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return at_instruction

    def at_call(frame: FrameType, event: str, arg: Any) -> None:
        work.c_calls += event == "c_call" and ours(frame)

    sys.setprofile(at_call)
    sys.settrace(at_frame)
    try:
        yield work
    finally:
        sys.settrace(None)
        sys.setprofile(None)
