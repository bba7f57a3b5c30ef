"""Consoles of verbs: wrapped to a terminal, and neither wrapped nor padded where a program or a file reads."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import IO, TYPE_CHECKING, Any

from trueline.judge.actions import split_at_command

if TYPE_CHECKING:
    from rich.text import Text

    from trueline.cli.screen import Console
    from trueline.judge.check_run import CheckReport
    from trueline.judge.facts.training_facts import TrainingFacts

ENDLESS = 1 << 15
"""Columns of what is no terminal: more than a line has."""
_PADDING = re.compile(r"[ \t]+(?=\n)")


class _Unpadded:
    """A stream without the spaces with which lines are filled up."""

    def __init__(self, stream: IO[str]) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(_PADDING.sub("", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def screen(*, stderr: bool = False) -> Console:
    """Prints to a terminal as wide as it is; elsewhere a sentence is a line, unless ``COLUMNS`` says how wide."""
    from trueline.cli.screen import Console

    on_terminal = Console(stderr=stderr)
    if on_terminal.is_terminal:
        return on_terminal
    stream: Any = _Unpadded(sys.stderr if stderr else sys.stdout)
    return Console(file=stream, width=None if os.environ.get("COLUMNS", "").isdecimal() else ENDLESS)


def print_verdict(console: Console, report: CheckReport, *, brief: bool = False, advise: bool = True) -> None:
    """Print the verdict on a Run, ``brief`` where what is to confirm stands below, and with ``advise`` what to do where
    nothing was found.
    """
    line = report.verdict.brief if brief else report.verdict.line
    console.print(line, style="bold", markup=False, highlight=False, soft_wrap=True)
    if advise and report.next:
        print_next(console, report)
    else:
        console.print()


def print_next(console: Console, report: CheckReport) -> None:
    """Print where nobody has looked yet, and how to, where nothing was found."""
    from rich.text import Text

    for line in report.next:
        print_advice(console, Text(line), indent=0)
    if report.next:
        console.print()


def print_facts(console: Console, facts: TrainingFacts) -> None:
    """Print what a training did, a line a fact, and what its Run does not tell."""
    for heading, lines in facts.by_area():
        print_section(console, heading, lines)
    if facts.unknown:
        console.print(facts.unknown_line, markup=False, highlight=False)


def print_section(console: Console, heading: str, lines: Sequence[str]) -> None:
    """Print a heading, and a line each below it."""
    from rich.padding import Padding
    from rich.text import Text

    console.print(f"{heading}:", style="bold", markup=False, highlight=False)
    for line in lines:
        console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))


def print_advice(console: Console, line: Text, *, indent: int = 2) -> None:
    """Print ``line``; a command in it that starts a job stands whole on a line of its own, so that it can be copied."""
    from rich.padding import Padding
    from rich.text import Text

    before, command, behind = split_at_command(line.plain)
    if not command:
        console.print(Padding(line, (0, 0, 0, indent), expand=False))
        return
    console.print(Padding(line[: len(before)], (0, 0, 0, indent), expand=False))
    console.print(Text(" " * (indent + 2) + command), soft_wrap=True)
    if behind:
        console.print(Padding(Text(behind), (0, 0, 0, indent), expand=False))
