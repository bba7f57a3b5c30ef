"""Switches that frameworks have, from ``catalogues/*.toml``: where each is, how it is off, and which a job has on."""

from __future__ import annotations

import copy
import json
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from trueline.schema.errors import InputError

IN_PROCESS = ("setting", "function", "optimizer", "keyword", "bypass")
"""Kinds of switch that ``capture.trial.changes`` holds."""
HOWS = (*IN_PROCESS, "variable", "argument", "json")

_OF_DEEPSPEED = ("--deepspeed", "--deepspeed_config", "--ds_config")
_BOOLEAN = {"true", "false", "1", "0", "yes", "no"}


@dataclass(frozen=True)
class Switch:
    """One switch: what ``how``, ``where`` and ``off`` mean is told in the catalogues; ``prior`` is a relative weight;
    ``neutral``: it changes nothing in exact arithmetic; ``about`` what a job uses that it acts on.
    """

    name: str
    how: str
    where: str
    off: Any = None
    prior: float = 1.0
    neutral: bool = True
    source: str = ""
    about: str = ""
    more: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_process(self) -> dict[str, Any]:
        """As ``capture.trial.changes`` takes it."""
        return {"name": self.name, "how": self.how, "where": self.where, "off": self.off, **self.more}


def catalogue() -> list[Switch]:
    """All switches of all catalogues."""
    switches: list[Switch] = []
    for path in sorted((Path(__file__).parent / "catalogues").glob("*.toml")):
        table = tomllib.loads(path.read_text(encoding="utf-8"))
        switches += [_switch(name, entry) for name, entry in table.items()]
    return switches


def own_switch(text: str) -> Switch:
    """``NAME=VALUE`` is a variable of the environment and its off value, ``--flag`` a word that is left out, and
    ``--option=VALUE`` one that gets another value. Raises ``InputError`` for anything else.
    """
    name, equals, value = text.partition("=")
    if name.startswith("-"):
        return Switch(name, "argument", name, value if equals else None, prior=2.0)
    if not equals or not name.replace("_", "").isalnum():
        raise InputError(
            f"--knob is '{text}'; give NAME=VALUE (a variable of the environment and the value that counts as off), "
            "--flag (left out), or --option=VALUE (off)."
        )
    return Switch(name, "variable", name, value, prior=2.0, about="torch")


def switch_named(text: str) -> Switch:
    """The switch of this name, or else that of ``own_switch``."""
    return next((switch for switch in catalogue() if switch.name == text), None) or own_switch(text)


def in_use(
    switches: Iterable[Switch], words: Sequence[str], environ: Mapping[str, str], met: Collection[str]
) -> list[Switch]:
    """The switches that a job has on which runs ``words``, and whose processes ``met`` these
    (``capture.trial.changes``).
    """
    asks: dict[str, Callable[[Switch], bool]] = {
        "variable": lambda each: f"job:{each.about}" in met and environ.get(each.where) != each.off,
        "argument": partial(_is_in_words, words=words),
        "json": partial(_is_in_json, words=words),
    }
    return [switch for switch in switches if asks.get(switch.how, lambda switch: switch.name in met)(switch)]


def with_off(words: Sequence[str], switches_off: Iterable[Switch], folder: Path) -> tuple[list[str], dict[str, str]]:
    """The command line and what is added to the environment with these switched off; files that it needs go to
    ``folder``.
    """
    changed, environ = list(words), dict[str, str]()
    switches_off = list(switches_off)
    for switch in switches_off:
        if switch.how == "variable":
            environ[switch.where] = switch.off
        elif switch.how == "argument":
            changed = _without(changed, switch)
    keys = [switch for switch in switches_off if switch.how == "json"]
    return (_with_json(changed, keys, folder) if keys else changed), environ


def _switch(name: str, entry: Mapping[str, Any]) -> Switch:
    fields = ("how", "where", "off", "prior", "neutral", "source", "about")
    if entry["how"] not in HOWS:
        raise ValueError(f"Switch '{name}' is of no known kind: '{entry['how']}'.")
    return Switch(name, **{key: entry[key] for key in fields if key in entry}, more={
        key: _with_null(value) for key, value in entry.items() if key not in fields
    })  # fmt: skip


def _with_null(value: Any) -> Any:
    """TOML has no null."""
    if isinstance(value, dict):
        return {key: _with_null(inner) for key, inner in value.items()}
    return None if value == "none" else value


def _is_in_words(switch: Switch, words: Sequence[str]) -> bool:
    position = _position(words, switch.where)
    # on where its word is missing and what it acts on is there: adding the word switches it off
    if switch.more.get("adds"):
        return position is None and _position(words, switch.more["needs"]) is not None
    if position is None:
        return False
    if switch.more.get("boolean"):
        return _value(words, position).lower() not in ("false", "0", "no")
    return switch.off is None or _value(words, position) != switch.off


def _position(words: Sequence[str], option: str) -> int | None:
    return next((at for at, word in enumerate(words) if word == option or word.startswith(f"{option}=")), None)


def _value(words: Sequence[str], position: int) -> str:
    _, equals, value = words[position].partition("=")
    return value if equals else words[position + 1] if position + 1 < len(words) else ""


def _without(words: list[str], switch: Switch) -> list[str]:
    if switch.more.get("adds"):
        return [*words, switch.where]
    position = _position(words, switch.where)
    if position is None:
        return words
    joined = "=" in words[position]
    if switch.off is not None:
        new = [f"{switch.where}={switch.off}"] if joined else [switch.where, str(switch.off)]
        return [*words[:position], *new, *words[position + (1 if joined else 2) :]]
    # of ``--flag true`` the word behind goes too
    has_word = switch.more.get("boolean") and not joined and _value(words, position).lower() in _BOOLEAN
    return [*words[:position], *words[position + (2 if has_word else 1) :]]


def _json_of(words: Sequence[str]) -> tuple[int, dict[str, Any]] | None:
    """The word that names the file, and what is in it."""
    for option in _OF_DEEPSPEED:
        position = _position(words, option)
        if position is None:
            continue
        # --deepspeed may be a bare flag, whose next word is no file: reading it then fails below
        at = position if "=" in words[position] else position + 1
        try:
            return at, json.loads(Path(_value(words, position)).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
    return None


def _is_in_json(switch: Switch, words: Sequence[str]) -> bool:
    config = _json_of(words)
    if config is None:
        return False
    inner: Any = config[1]
    for key in switch.where.split("."):
        if not isinstance(inner, dict) or key not in inner:
            return False
        inner = inner[key]
    return inner != switch.off


def _with_json(words: list[str], switches: Iterable[Switch], folder: Path) -> list[str]:
    named_config = _json_of(words)
    if named_config is None:
        return words
    # each run has a file of its own; what the user wrote is not changed
    at, document = named_config[0], copy.deepcopy(named_config[1])
    for switch in switches:
        *outer, last = switch.where.split(".")
        inner = document
        for key in outer:
            inner = inner[key]
        if switch.off is None:
            del inner[last]
        else:
            inner[last] = switch.off
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "deepspeed.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    option, equals, _ = words[at].partition("=")
    return [*words[:at], f"{option}={file}" if equals else str(file), *words[at + 1 :]]
