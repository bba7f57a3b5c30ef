"""The experiments of ``experiments.toml``, and how each is reached by the words of a command."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trueline.schema.errors import InputError
from trueline.trials.frame.tree import Experiment


@dataclass(frozen=True)
class OptionExperiment(Experiment):
    """One that words of a command may reach: ``options`` are what each may be called."""

    options: Mapping[str, str] = field(default_factory=dict[str, str])

    def words(self, command: Sequence[str]) -> list[str] | None:
        """The command with the change; None where no word of it is known to make it."""
        for option, value in self.options.items():
            changed = with_option(command, option, value)
            if changed is not None:
                return changed
        return None


def experiments() -> list[OptionExperiment]:
    """All, the cheapest first."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return [
        OptionExperiment(name, entry["says"], frozenset(entry["cures"]), entry["options"])
        for name, entry in table.items()
    ]


def with_option(command: Sequence[str], option: str, value: str) -> list[str] | None:
    """The command in which ``option`` has this value; None where it has not that option. Of options with dots, as of
    Hydra, one that is missing is added where the command has another of the same part.
    """
    words = list(command)
    for position, word in enumerate(words):
        name, equals, _ = word.partition("=")
        if name.lstrip("+") != option:
            continue
        if equals:
            return [*words[:position], f"{name}={value}", *words[position + 1 :]]
        if position + 1 < len(words):
            return [*words[: position + 1], value, *words[position + 2 :]]
    part = f"{option.partition('.')[0]}."
    if not option.startswith("-") and any("=" in word and word.lstrip("+").startswith(part) for word in words):
        return [*words, f"{option}={value}"]
    return None


def reached(
    command: Sequence[str], users_ways: Sequence[str], among: Sequence[OptionExperiment]
) -> dict[str, tuple[list[str], Mapping[str, str]]]:
    """By name of an experiment that can be reached, its command and environment. ``users_ways`` are of the form
    ``NAME=OPTION=VALUE``; an option in capitals is a variable of the environment. Raises ``InputError`` for others.
    """
    names = [experiment.name for experiment in among]
    commands: dict[str, tuple[list[str], Mapping[str, str]]] = {}
    for experiment in among:
        words = experiment.words(command)
        if words is not None:
            commands[experiment.name] = (words, {})
    for text in users_ways:
        name, _, setting = text.partition("=")
        option, equals, value = setting.partition("=")
        if name not in names or not option or not equals:
            raise InputError(
                f"--way is '{text}'; give NAME=OPTION=VALUE with a name of {', '.join(names)}, for example "
                "one-token=--max-len=1."
            )
        if option.replace("_", "").isupper():
            commands[name] = (list(command), {option: value})
            continue
        words = with_option(command, option, value)
        if words is None:
            raise InputError(f"--way is '{text}', and the command has no option '{option}'. Put it into the command.")
        commands[name] = (words, {})
    return commands
