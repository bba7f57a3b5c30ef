"""Actions to take next, as commands that run as they are printed."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from trueline.schema.text.secrets import HIDDEN
from trueline.schema.trial_verbs import VERBS

_COMMAND = re.compile(r"`(trueline [^`]+)`")
_TO_FILL_IN = re.compile(r"COMMAND|RUN|REF|REV|REMEDY|NAME,…|KEY=VALUE|FILE|DIR|CODE")
"""Words that stand for what only a person knows."""
_STARTS_A_JOB = ("run", "trial")
_READS_A_RUN = ("op", "precheck", "noise")
"""Verbs of ``trueline trial`` that start no job."""


def record_step(step: int, options: str = "") -> str:
    """The command that records one step of the job, for advice."""
    return f"`trueline run --plan mix {f'{options} ' if options else ''}--set steps={step}:{step + 1} -- COMMAND`"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do: what to ``say`` of it, the words of its command (None where a person must act), whether that
    runs the job again, and about what it costs.
    """

    say: str
    argv: tuple[str, ...] | None = None
    runs_job: bool = False
    cost: str = ""

    def to_json(self) -> dict[str, Any]:
        argv = None if self.argv is None else list(self.argv)
        return {"say": self.say, "argv": argv, "runs_job": self.runs_job, "cost": self.cost}


@dataclass(frozen=True, slots=True)
class Commands:
    """Puts the path of a Run, and the words of its job (none: not known), where advice has ``RUN`` and ``COMMAND``."""

    run: str
    job: tuple[str, ...] = ()

    def filled(self, line: str) -> str:
        """``line`` with the commands between its backticks as they can be run."""
        return _COMMAND.sub(lambda match: f"`{self._command(match[1])}`", line)

    def _command(self, text: str) -> str:
        words = [shlex.quote(self.run) if word == "RUN" else word for word in text.split(" ")]
        if words[-1] != "COMMAND" or not self.job:
            return " ".join(words)
        options = words[2:-2]  # trueline run OPTIONS -- COMMAND
        if words[1] == "run" and "--out" not in options:
            options += ["--out", shlex.quote(self._next_run_path(options))]
        return " ".join([*words[:2], *options, "--", shlex.join(self.job)])

    def _next_run_path(self, options: Sequence[str]) -> str:
        """A place for the next Run next to this one: ``runs/latest-mix-19``."""
        plan = [after for before, after in itertools.pairwise(options) if before == "--plan"]
        steps = [word.removeprefix("steps=").partition(":")[0] for word in options if word.startswith("steps=")]
        path = self.run.rstrip("/") if "://" not in self.run else f"runs/{self.run.rstrip('/').rpartition('/')[2]}"
        suffix = "-".join(["", *plan, *steps])
        name = path if path.endswith(suffix) else path + suffix
        free_numbers = (str(number) for number in range(2, 100) if not os.path.exists(f"{name}-{number}"))
        return f"{name}-{next(free_numbers, 'next')}" if os.path.exists(name) else name


def actions_of(lines: Iterable[str]) -> tuple[Action, ...]:
    """Actions that lines of advice ask for, in order, each command and each sentence once."""
    return tuple(dict.fromkeys(map(_action, lines)))


def _action(line: str) -> Action:
    match = _COMMAND.search(line)
    if match is None:
        return Action(line)
    try:
        argv = tuple(shlex.split(match[1]))
    except ValueError:  # a quote that is not closed: nothing that a program can run
        return Action(line)
    # what silences a finding is for the person who knows that it is meant
    if argv[1] == "confirm" or any(_TO_FILL_IN.fullmatch(word) or HIDDEN in word for word in argv):
        return Action(line)
    runs_job = argv[1] in _STARTS_A_JOB and argv[2] not in _READS_A_RUN
    reading_cost = "nothing" if argv[1] == "explain" else "reads the Run"
    return Action(line, argv, runs_job, _cost(argv) if runs_job else reading_cost)


def _cost(argv: Sequence[str]) -> str:
    if argv[1] == "run":
        return "the job once"
    if argv[2] == "batch":
        return "about 20 times the job up to its first update"
    usual = VERBS[argv[2]].usual if argv[2] in VERBS else 0
    return f"about {usual} times the job" if usual else "the job several times"


def judged_by_check(run: str) -> Action:
    """The action after something that judges nothing."""
    return _action(f"Nothing is judged here: `trueline check {shlex.quote(run)} --json` says what is wrong.")


def split_at_command(line: str) -> tuple[str, str, str]:
    """Parts of ``line``: before a command that starts a job, that command, and behind it; the line, "" and ""
    where it has none. Such a command is long, and is copied: it stands on a line of its own.
    """
    match = _COMMAND.search(line)
    if match is None or " -- " not in match[1]:
        return line, "", ""
    behind = line[match.end() :].lstrip(".:, ")
    return line[: match.start()].rstrip(), match[1], behind
