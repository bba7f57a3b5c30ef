"""`trueline plugins`: which checks, adapters and sinks are installed."""

from __future__ import annotations

import importlib.metadata
import json
from typing import Annotated

import typer

from trueline.schema.law import DECLARED, GROUP, installed_laws
from trueline.schema.plugins import entry_points

GROUPS = ("trueline.checks", "trueline.adapters", "trueline.sinks")
"""What enters as single entry points; checks of laws stand in the folder of their law."""


def command(as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False) -> None:
    """List the installed checks, adapters and sinks, Trueline's own and other packages'."""
    from rich.table import Table

    from trueline.cli.lines import screen

    rows = sorted([*_checks_of_laws(), *_entries("trueline.checks")], key=lambda row: row["name"])
    rows += [row for group in GROUPS[1:] for row in _entries(group)]
    if as_json:
        print(json.dumps({"schema": 1, "plugins": rows}))
        return
    table = Table("role", "name", "module", "package")
    for row in rows:
        table.add_row(row["role"], row["name"], row["module"], row["package"])
    screen().print(table)


def _entries(group: str) -> list[dict[str, str]]:
    role = group.partition(".")[2]
    return [_row(role, entry.name, entry.value, entry.dist) for entry in entry_points(group=group)]


def _checks_of_laws() -> list[dict[str, str]]:
    dist_by_module = {entry.value: entry.dist for entry in entry_points(group=GROUP)}
    trueline = importlib.metadata.distribution("trueline")
    return [
        _row("checks", code, law.module_of(code), dist_by_module.get(f"{law.package}.{DECLARED}", trueline))
        for law in installed_laws()
        for code in law.checks
    ]


def _row(role: str, name: str, module: str, package: importlib.metadata.Distribution | None) -> dict[str, str]:
    return {
        "role": role,
        "name": name,
        "module": module,
        "package": f"{package.name} {package.version}" if package is not None else "",
    }
