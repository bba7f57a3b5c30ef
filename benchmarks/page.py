"""What all benchmarks share: their arguments, Markdown tables, and the page of results with where and when it ran."""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import subprocess
from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


def arguments(doc: str | None, **defaults: str | float) -> argparse.ArgumentParser:
    """A parser whose help is the docstring of the benchmark, with an option of the type of each of ``defaults``."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in defaults.items():
        option = f"--{name.replace('_', '-')}"
        parser.add_argument(option, type=type(default), default=default, help=f"{default!r} if not given")
    return parser


def table(header: Sequence[str], rows: Iterable[Iterable[Any]], *, right: Container[int] = ()) -> str:
    """A Markdown table; the columns ``right`` are aligned to the right."""
    rules = "".join("---:|" if column in right else "---|" for column in range(len(header)))
    return "\n".join([line(header), f"|{rules}", *map(line, rows)])


def records(rows: Iterable[Mapping[str, Any]]) -> str:
    """A Markdown table of rows that are all {header: cell}; at least one."""
    found = list(rows)
    return table(list(found[0]), (row.values() for row in found))


def line(cells: Iterable[Any]) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def write(main: str, *parts: str, name: str = "README.md") -> None:
    """Print the page that consists of ``parts``, and write it as ``name`` beside the file ``main``."""
    text = "\n\n".join(parts) + "\n"
    print(text)
    Path(main).with_name(name).write_text(text, encoding="utf-8")


def head(title: str, *, command: str) -> str:
    """Title, command, machine, commit and date, as Markdown."""
    now = facts(command)
    lines = [f"command: `{now['command']}`", f"machine: {now['machine']}", f"commit {now['commit']}, {now['date']}"]
    return "\n".join([f"# {title}", "", *(f"- {line}" for line in lines)])


def facts(command: str) -> dict[str, str]:
    """Command, machine, commit and date: as they are now, so ask before the work begins."""
    import torch

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    machine = f"{os.cpu_count()} cores {platform.machine()} (load average {os.getloadavg()[0]:.0f})"
    return {
        "command": command,
        "machine": f"{machine}, CPU only, torch {torch.__version__}",
        "commit": commit.stdout.strip(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }
