"""What `--help` shows: paragraphs that are wrapped once, values in capitals, no types of Python, verbs in groups; and
where a program or a file reads, lines without boxes that are neither wrapped nor padded.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Sequence
from types import MethodType
from typing import Any

from typer.core import TyperGroup

from trueline.cli.lines import ENDLESS

GROUPS: Sequence[str] = (
    "Watch a job",
    "Read a Run",
    "Compare jobs",
    "Prove a cause",
    "Other tools' files",
    "For developers",
)
"""The groups of verbs, in the order of `--help`."""
_INNER_BREAK = re.compile(r"(?<!\n)\n(?!\n|Example)")


class Verbs(TyperGroup):
    """Commands in the order of their groups."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names, group by group."""
        return sorted(super().list_commands(ctx), key=lambda name: GROUPS.index(_group_of(self.commands[name])))


def _group_of(command: Any) -> str:
    panel = getattr(command, "rich_help_panel", None)
    return panel if panel in GROUPS else GROUPS[0]


def unboxed(command: Any) -> Any:
    """The ``command`` of click, and all below it, with help in plain lines; ``COLUMNS`` may say how wide."""
    columns = os.environ.get("COLUMNS", "")
    command.rich_markup_mode = None
    command.context_settings["terminal_width"] = int(columns) if columns.isdecimal() else ENDLESS
    command.help = (command.help or "").replace("\nExample", "\n\nExample")
    if isinstance(command, TyperGroup):
        command.format_commands = MethodType(_format_commands, command)
    for inner in getattr(command, "commands", {}).values():
        unboxed(inner)
    return command


def _format_commands(group: Any, ctx: Any, formatter: Any) -> None:
    """Write the commands, those of each group below its name."""
    by_group: dict[str, list[tuple[str, str]]] = {}
    for name in group.list_commands(ctx):
        inner = group.commands[name]
        panel = getattr(inner, "rich_help_panel", None)
        row = (name, inner.get_short_help_str(formatter.width))
        by_group.setdefault(panel if isinstance(panel, str) else "Commands", []).append(row)
    for title, rows in by_group.items():
        with formatter.section(title):
            formatter.write_dl(rows)


def readable(command: Any) -> Any:
    """The ``command`` of click, and all below it, with help that a person reads."""
    if command.help:
        command.help = _INNER_BREAK.sub(" ", inspect.cleandoc(command.help))
    for param in command.params:
        _name_value(param)
    help_option = command.get_help_option
    command.get_help_option = lambda ctx: _untyped(help_option(ctx))
    for inner in getattr(command, "commands", {}).values():
        readable(inner)
    return command


def _untyped(option: Any) -> Any:
    if option is not None:
        option.metavar = ""
    return option


def _name_value(param: Any) -> None:
    if param.param_type_name == "argument":
        param.metavar = param.metavar or param.name.upper()
        param.display_type_rich = lambda ctx: None
    elif getattr(param, "is_flag", False) or param.metavar is not None:
        param.metavar = param.metavar or ""
    else:
        choices = param.type_descriptor.choices if param.type_descriptor.is_choice else ()
        param.metavar = "|".join(map(str, choices)) if choices else param.name.upper().replace("_", "-")


def verbs_of(command: Any, path: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    """What `--help` says of the ``command`` of click, and of all below it, for a program."""
    if inner := getattr(command, "commands", None):
        return [verb for name, below in inner.items() for verb in verbs_of(below, (*path, name))]
    says, _, rest = (command.help or "").partition("\n")
    return [
        {
            "verb": " ".join(path),
            "says": says,
            "help": rest.strip(),
            "options": [
                {"names": [*param.opts], "help": getattr(param, "help", None) or "", "required": param.required}
                for param in command.params
            ],
        }
    ]
