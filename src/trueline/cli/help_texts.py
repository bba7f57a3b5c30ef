"""What `--help` shows: paragraphs that are wrapped once, values in capitals, and no types of Python."""

from __future__ import annotations

import inspect
import re
from typing import Any

_INNER_BREAK = re.compile(r"(?<!\n)\n(?!\n|Example)")


def readable(command: Any) -> Any:
    """The ``command`` of click, and all below it, with help that a person reads."""
    if command.help:
        command.help = _INNER_BREAK.sub(" ", inspect.cleandoc(command.help))
    for param in command.params:
        _name_value(param)
    made = command.get_help_option
    command.get_help_option = lambda ctx: _untyped(made(ctx))
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
