"""The options of a command line, as argparse, Hydra, simple flags and launchers take them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from trueline.schema.text.secrets import redacted_words

_OPTION = re.compile(r"--?(?P<name>[A-Za-z][\w.\-/]*)(?:=(?P<value>.*))?", re.DOTALL)
_OVERRIDE = re.compile(r"[+~]{0,2}(?P<name>[A-Za-z_][\w/\-]*(?:\.[\w\-]+)*)=(?P<value>.*)", re.DOTALL)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "none": None, "null": None}


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """What a command sets, by option: numbers and truth values as such, several words as a list, a flag as True. An
    override of Hydra (``a.b=1``) is the option ``a.b``. Values that look secret are hidden.
    """
    return dict(_options(redacted_words(words)))


def _options(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    at = 0
    while at < len(words):
        word, at = words[at], at + 1
        if (match := _OPTION.fullmatch(word)) and not _NUMBER.fullmatch(word):
            name = plain_name(match["name"])
            if match["value"] is not None:
                yield name, read_value(match["value"])
                continue
            begin = at
            while at < len(words) and _is_value(words[at]):
                at += 1
            values = [read_value(value_word) for value_word in words[begin:at]]
            yield name, True if not values else values[0] if len(values) == 1 else values
        elif match := _OVERRIDE.fullmatch(word):
            yield plain_name(match["name"]), read_value(match["value"])


def _is_value(word: str) -> bool:
    if _NUMBER.fullmatch(word):
        return True
    return not word.startswith("-") and not _OVERRIDE.fullmatch(word) and not word.endswith((".py", ".pyz"))


def plain_name(name: str) -> str:
    """``tensor-model-parallel-size`` as argparse names its attribute."""
    return name.replace("-", "_").replace("/", ".")


def read_value(text: Any) -> Any:
    """A text as the number, truth value or list that it writes; else as it is."""
    if not isinstance(text, str):
        return text
    stripped = text.strip().strip("'\"")
    if stripped.lower() in _WORDS:
        return _WORDS[stripped.lower()]
    if _NUMBER.fullmatch(stripped):
        number = float(stripped)
        return int(number) if number.is_integer() and re.fullmatch(r"[+-]?\d+", stripped) else number
    if stripped.startswith("[") and stripped.endswith("]"):
        return [read_value(part) for part in stripped[1:-1].split(",") if part.strip()]
    return stripped
