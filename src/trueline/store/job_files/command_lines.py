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
        if (found := _OPTION.fullmatch(word)) and not _NUMBER.fullmatch(word):
            name = plain_name(found["name"])
            if found["value"] is not None:
                yield name, read_value(found["value"])
                continue
            begin = at
            while at < len(words) and _is_value(words[at]):
                at += 1
            values = [read_value(each) for each in words[begin:at]]
            yield name, True if not values else values[0] if len(values) == 1 else values
        elif found := _OVERRIDE.fullmatch(word):
            yield plain_name(found["name"]), read_value(found["value"])


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
    shown = text.strip().strip("'\"")
    if shown.lower() in _WORDS:
        return _WORDS[shown.lower()]
    if _NUMBER.fullmatch(shown):
        number = float(shown)
        return int(number) if number.is_integer() and re.fullmatch(r"[+-]?\d+", shown) else number
    if shown.startswith("[") and shown.endswith("]"):
        return [read_value(each) for each in shown[1:-1].split(",") if each.strip()]
    return shown
