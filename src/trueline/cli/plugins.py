"""`trueline plugins`: which checks, adapters and sinks are installed."""

from __future__ import annotations

import importlib.metadata
import json
from typing import Annotated

import typer

GROUPS = ("trueline.checks", "trueline.adapters", "trueline.sinks")


def command(as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False) -> None:
    """List the installed checks, adapters and sinks, Trueline's own and other packages'."""
    from rich.table import Table

    from trueline.cli.lines import screen

    rows = [
        {"role": group.partition(".")[2], "name": entry.name, "module": entry.value, "package": _package(entry)}
        for group in GROUPS
        for entry in sorted(importlib.metadata.entry_points(group=group), key=lambda entry: entry.name)
    ]
    if as_json:
        print(json.dumps({"schema": 1, "plugins": rows}))
        return
    table = Table("role", "name", "module", "package")
    for row in rows:
        table.add_row(row["role"], row["name"], row["module"], row["package"])
    screen().print(table)


def _package(entry: importlib.metadata.EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
