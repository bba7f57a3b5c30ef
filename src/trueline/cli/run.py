"""`trueline run`: the user's own training command under watch."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Annotated

import typer

SETTINGS = {"context_settings": {"ignore_unknown_options": True, "allow_interspersed_args": False}}


def command(
    words: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The training command.")] = None,
    out: Annotated[str, typer.Option(help="Where the Run goes; must not exist yet.")] = "runs/latest",
    plan: Annotated[
        str | None, typer.Option(help="A preset (workers, modules, ops, mix), or a TOML or JSON file.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier Run at --out.")] = False,
) -> None:
    """Run a training command under watch, with no change to the script.

    The command's output, exit code and signals are its own. Afterwards: trueline check RUN.

    Example: trueline run --out runs/a -- torchrun --nproc-per-node 8 train.py --lr 1e-4
    """
    from trueline.capture.launch import environment
    from trueline.schema.errors import InputError, RunExistsError
    from trueline.schema.plan import Plan

    if not words:
        raise InputError("No command was given. Put it behind --, for example: trueline run -- torchrun train.py.")
    program = shutil.which(words[0])
    if program is None:
        raise InputError(f"'{words[0]}' is not a program on PATH. Give the command as you would without trueline.")
    _require_script(words)
    chosen = Plan.load(plan)
    if Path(out).exists() and not overwrite and (not Path(out).is_dir() or any(Path(out).iterdir())):
        raise RunExistsError(f"'{out}' exists already. Pass another --out, or --overwrite to replace the Run there.")
    ours = environment(out=out, plan=chosen.model_dump(mode="json"), overwrite=overwrite, base=dict(os.environ))
    if sys.stderr.isatty():
        print(f"trueline: watching; afterwards: trueline check {out}", file=sys.stderr, flush=True)
    os.execvpe(program, words, ours)


def _require_script(words: list[str]) -> None:
    """Raise InputError where the first Python file of the command is not there."""
    from trueline.schema.errors import InputError

    runners = ("python", "torchrun", "accelerate", "deepspeed")
    if not Path(words[0]).name.startswith(runners):
        return
    script = next((word for word in words[1:] if word.endswith(".py") and not word.startswith("-")), None)
    if script is not None and not Path(script).is_file():
        raise InputError(
            f"The script '{script}' does not exist. Check the path; the working directory is {os.getcwd()}."
        )
