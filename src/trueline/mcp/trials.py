"""Trials that a client plans, and starts where it may: within a budget of runs of the job, one at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trueline.mcp.answers import DATA, USUAL_BYTES, Answers
from trueline.render.bounded import ORDERS, page_of
from trueline.schema.errors import InputError
from trueline.schema.trial_verbs import VERBS, Verb

SAFE = frozenset(
    {"code", "error", "runs", "steps", "timeout", "seed", "only", "law", "at", "rank", "again", "pairs", "in-place"}
)
"""Options that a client may give. The others name files, devices, variables, packages or commands: whoever may not
start a process could start one by them.
"""
PLAN_S, END_S = 120.0, 20.0
"""Seconds that a plan may take, and that a trial has to end the processes of its job."""


@dataclass
class _Started:
    process: subprocess.Popen[bytes]
    verb: str
    folder: Path
    reserved: int
    output: Path
    is_counted: bool = False


class Trials:
    """What a client may ask of trials about the Runs within reach, with the command that made the Run. ``budget`` is
    how many runs of jobs all that it starts may make.
    """

    def __init__(self, answers: Answers, *, budget: int) -> None:
        self._answers = answers
        self._budget = budget
        self._lock = threading.Lock()
        self._started: list[_Started] = []

    def trial_plan(
        self, verb: str, run: str, options: dict[str, str] | None = None, max_bytes: int = USUAL_BYTES, page: int = 1
    ) -> dict[str, Any]:
        """What a trial about a Run would run, and what that costs; nothing is run. The action has the command, which a
        person, or whoever may, can run in a shell. ``options`` as of the command line, without the dashes.
        """
        argv, _ = self._argv(verb, run, options or {})
        words = [*argv[: argv.index("--")], "--dry-run", "--json", *argv[argv.index("--") :]]
        document = self._asked(words)
        document["actions"] = [action | {"argv": ["trueline", *argv]} for action in document["actions"]]
        document["budget_left"] = self._budget
        return page_of({"from_the_run": DATA, **document}, ORDERS["trial"], max_bytes=max_bytes, page=page)

    def trial_start(self, verb: str, run: str, options: dict[str, str] | None = None) -> dict[str, Any]:
        """Start a trial about a Run within the budget of runs; `trial_answer` has what comes of it."""
        options = dict(options or {})
        with self._lock:
            self._count()
            if (running := self._running()) is not None:
                raise InputError(f"Trial {running.verb} is running. Ask `trial_answer` until it has ended.")
            declared = _verb(verb)
            if "runs" in declared.lacks:
                raise InputError(
                    f"How many runs trial {verb} takes cannot be bounded, so it is not started here. `trial_plan` has "
                    "the command."
                )
            num_runs = int(options.get("runs") or self._budget)
            if not 0 < num_runs <= self._budget:
                raise InputError(f"The budget has {self._budget} runs left, and {num_runs} were asked for.")
            number = len(self._started) + 1
            argv, path = self._argv(verb, run, options | {"runs": str(num_runs)})
            folder = Path(path).parent / "trials" / f"{verb}-{os.getpid()}-{number}"
            folder.parent.mkdir(parents=True, exist_ok=True)
            words = [*argv[: argv.index("--")], "--out", str(folder), "--json", *argv[argv.index("--") :]]
            output = Path(f"{folder}.json")
            process = subprocess.Popen(
                [sys.executable, "-m", "trueline", *words],
                stdin=subprocess.DEVNULL,
                stdout=output.open("wb"),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._budget -= num_runs
            self._started.append(_Started(process, verb, folder, num_runs, output))
        return {"trial": number, "verb": verb, "argv": ["trueline", *words], "budget_left": self._budget}

    def trial_answer(
        self, trial: int, wait_s: float = 30.0, max_bytes: int = USUAL_BYTES, page: int = 1
    ) -> dict[str, Any]:
        """The answer of a trial that was started, or that it is still running after at most ``wait_s`` seconds."""
        if not 1 <= trial <= len(self._started):
            raise InputError(f"There is no trial {trial}. {len(self._started)} were started.")
        started = self._started[trial - 1]
        try:
            status = started.process.wait(min(max(wait_s, 0.0), 300.0))
        except subprocess.TimeoutExpired:
            return {"trial": started.verb, "status": "undecided", "is_running": True, "verdict": "It is running."}
        with self._lock:
            self._count()
        text = started.output.read_text(errors="replace")
        if not text.lstrip().startswith("{"):
            raise InputError(
                f"Trial {started.verb} ended with status {status} and has no answer. Its plan may tell why."
            )
        document = json.loads(text) | {"is_running": False, "budget_left": self._budget}
        return page_of({"from_the_run": DATA, **document}, ORDERS["trial"], max_bytes=max_bytes, page=page)

    def close(self) -> None:
        """End what is running, with the processes of its job."""
        if (running := self._running()) is not None:
            # it ends its jobs, and leaves what goes on with the same command
            running.process.send_signal(signal.SIGTERM)
            try:
                running.process.wait(END_S)
            except subprocess.TimeoutExpired:
                os.killpg(running.process.pid, signal.SIGKILL)

    def _running(self) -> _Started | None:
        return next((started for started in self._started if started.process.poll() is None), None)

    def _count(self) -> None:
        """Give back to the budget what trials that have ended did not run."""
        for started in self._started:
            if started.is_counted or started.process.poll() is None:
                continue
            started.is_counted = True
            try:
                runs = int(json.loads((started.folder / "trial.json").read_text())["runs"])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # what it ran is not known: all of it counts
            self._budget += max(started.reserved - runs, 0)

    def _argv(self, verb: str, run: str, options: Mapping[str, str]) -> tuple[list[str], str]:
        """The words behind `trueline`, and the path of the Run. Raises ``InputError``."""
        declared = _verb(verb)
        declared_options = {option.name.replace("_", "-"): option for option in (*declared.options, *declared.shared)}
        if unsafe := [name for name in options if name not in SAFE or name not in declared_options]:
            allowed = sorted(SAFE & declared_options.keys())
            raise InputError(
                f"Option '{unsafe[0]}' of trial {verb} cannot be given here; there are {', '.join(allowed)}. Run the "
                "command of `trial_plan` in a shell, with what it takes."
            )
        if missing := [name for name, option in declared_options.items() if option.required and name not in options]:
            raise InputError(
                f"Trial {verb} needs --{missing[0]}, which cannot be given here. Run it in a shell: "
                f"trueline {VERBS[verb].command(run)}."
            )
        path, job = self._answers.path_and_command(run)
        if not job:
            raise InputError(f"'{run}' does not have the command of its job. Run it under `trueline run`.")
        words = ["trial", verb, *([path] if declared.about_run else [])]
        for name, value in options.items():
            words += [f"--{name}"] if declared_options[name].kind is bool else [f"--{name}={value}"]
        return [*words, "--", *job], path

    def _asked(self, words: Sequence[str]) -> dict[str, Any]:
        try:
            plan = subprocess.run(
                [sys.executable, "-m", "trueline", *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PLAN_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise InputError(f"The plan took more than {PLAN_S:.0f} s. Ask for it in a shell.") from None
        if plan.returncode:
            lines = plan.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {plan.returncode}"]
            raise InputError(lines[-1].removeprefix("trueline: ")[:500])
        return json.loads(plan.stdout)


def _verb(name: str) -> Verb:
    if name not in VERBS:
        raise InputError(f"There is no trial '{name}' of a job; there are {', '.join(sorted(VERBS))}.")
    return VERBS[name]
