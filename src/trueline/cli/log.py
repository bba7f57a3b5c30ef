"""Print to a log, where no terminal is, so that no line is a command to what reads the log."""

from __future__ import annotations

import os
import re
from typing import Any, TextIO, cast

from trueline.render.wording import visible

_STYLE = re.compile(r"\x1b\[[\d;]*m")
_COMMAND = re.compile(r"(?m)^((?:\s|\x1b\[[\d;]*m)*):(?=:)|##(?=[a-z]*\[)")
"""Where a line is a command to what reads a log: ``::error`` of GitHub, ``##[error]``, ``##vso[``, ``##teamcity[``."""


class Log:
    """A stream that is no terminal: what is written to it holds no control characters, and no line is a command."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._begins = True
        self._styled = bool(os.environ.get("FORCE_COLOR"))

    def write(self, text: str) -> int:
        """Write ``text``, made harmless."""
        front = "" if self._begins else "\0"  # is no space, so that what follows does not begin a line
        defused = _COMMAND.sub(lambda match: f"{match[0]} ", front + text).removeprefix(front)
        last = text.rpartition("\n")[2]
        self._begins = not last.strip() and (self._begins or "\n" in text)
        styles = _STYLE.findall(defused) if self._styled else []
        parts = _STYLE.split(defused) if self._styled else [defused]
        harmless = [str(visible(part)) for part in parts]
        self.stream.write("".join(part + style for part, style in zip(harmless, [*styles, ""], strict=True)))
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def guarded(stream: TextIO) -> TextIO:
    """``stream``, or, where it is no terminal, a ``Log`` of it."""
    return stream if isinstance(stream, Log) or stream.isatty() else cast(TextIO, Log(stream))


def print_commands(text: str, stream: TextIO) -> None:
    """Print lines that are commands to what reads the log, each made by us, to the stream below ``stream``."""
    print(visible(text), file=stream.stream if isinstance(stream, Log) else stream)
