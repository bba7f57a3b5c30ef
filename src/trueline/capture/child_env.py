"""Variables that ``trueline run`` hands down to the processes of the command. Free of torch."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from typing import Any

RUN, PLAN, OVERWRITE, RESUME = "TRUELINE_RUN", "TRUELINE_PLAN", "TRUELINE_OVERWRITE", "TRUELINE_RESUME"
TRIAL = "TRUELINE_TRIAL"
"""Measurement that `trueline trial` asks of the first step (JSON); in place of a Run."""
CHANGES = "TRUELINE_CHANGES"
"""Changes of `trueline trial` to a job that is watched (JSON, the arguments of ``capture.trial.changes.Changes``)."""
ARGV = "TRUELINE_ARGV"
"""The command that `trueline run` was given (JSON)."""
UNSEEN = "TRUELINE_UNSEEN"
"""The file in which a process says why it was not watched, for the last line of the command."""
WATCHED = ".watched"
"""Behind the path in ``UNSEEN``: the file in which a process leaves word that it is watched."""


def environment(
    *,
    out: str,
    plan: dict[str, Any],
    overwrite: bool,
    base: dict[str, str],
    resume: bool = False,
    argv: Sequence[str] = (),
) -> dict[str, str]:
    """``base`` with what a process needs to attach itself: the Run, the Plan as JSON, the command ``argv``, and our
    sitecustomize on PYTHONPATH.
    """
    return _attaching(base) | {
        RUN: os.path.abspath(out),
        PLAN: json.dumps(plan),
        OVERWRITE: "1" if overwrite else "",
        RESUME: "1" if resume else "",
        ARGV: json.dumps(list(argv)),
    }


def trial_environment(trial: dict[str, Any], *, base: dict[str, str]) -> dict[str, str]:
    """``base`` with what a process needs to measure its first step as ``trial``, and not to be watched."""
    return {name: value for name, value in _attaching(base).items() if name != RUN} | {TRIAL: json.dumps(trial)}


def _attaching(base: dict[str, str]) -> dict[str, str]:
    attach_folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "attach")
    return base | {"PYTHONPATH": os.pathsep.join([attach_folder, *filter(None, [base.get("PYTHONPATH")])])}


def settings() -> dict[str, Any]:
    """Settings handed down to this process, as arguments of ``trueline.watch``."""
    return {
        "out": os.environ[RUN],
        "plan": plan_given(),
        "overwrite": bool(os.environ.get(OVERWRITE)),
        "resume": bool(os.environ.get(RESUME)),
    }


def plan_given() -> dict[str, Any]:
    """The Plan handed down to this process; no keys where there is none."""
    return json.loads(os.environ.get(PLAN) or "{}")


def command_given() -> list[str]:
    """The command that `trueline run` was given; nothing where this process was not started by it."""
    return json.loads(os.environ.get(ARGV) or "[]")


def tell_unseen(why: str) -> None:
    """Leave it to the command's last line to say ``why`` this process was not watched."""
    if path := os.environ.get(UNSEEN):
        with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
            file.write(why)


def tell_watched() -> None:
    """Let the command's last line know that this process is watched."""
    if path := os.environ.get(UNSEEN):
        with contextlib.suppress(OSError), open(f"{path}{WATCHED}", "w", encoding="utf-8") as file:
            file.write("yes")


def path_of_restart(run_path: str, restart: str) -> str:
    """Path of start number ``restart`` of the job that the Run at ``run_path`` cannot hold."""
    return f"{run_path}.restart{restart}"


def path_of_rollouts(run_path: str) -> str:
    """Path of the rollouts that a process of the job recorded which trains no model itself, as a driver of Ray."""
    return f"{run_path}.rollouts"
