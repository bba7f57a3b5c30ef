"""A plan as options of `trueline run`."""

from __future__ import annotations

import json
import shlex
from typing import Any, cast

from trueline.schema.plan import Plan

_ONCE = ("next_steps", "stop")
"""Keys that ask for something once."""


def options_of(plan: Plan) -> str:
    """The options of `trueline run`, as a shell takes them, that make ``plan``; its sinks are not known to a Run."""
    default = type(plan)(preset=plan.preset).kept()
    words = [] if plan.preset == type(plan)().preset else ["--plan", plan.preset]
    for key, value in plan.kept().items():
        if value != default[key] and key not in _ONCE:
            words += ["--set", f"{key}={_text(key, value)}"]
    return shlex.join(words)


def _text(key: str, value: Any) -> str:
    """``value`` as ``key_and_value`` reads it."""
    if key == "steps":
        first, end = value
        return f"{first}:" if end is None else f"{first}:{end}"
    if isinstance(value, list):
        items = cast(list[Any], value)
        texts = [str(item) for item in items]
        is_plain = all(isinstance(item, str | int) for item in items) and not any("," in text for text in texts)
        return ",".join(texts) if is_plain and texts and texts[0][:1] not in ("[", "{") else json.dumps(value)
    return "" if value is None else str(value)
