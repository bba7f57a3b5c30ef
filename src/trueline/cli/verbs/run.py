"""`trueline run`: the user's own training command under watch."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trueline.cli.options import LATEST

if TYPE_CHECKING:
    from trueline.cli.run_end import Stamps
    from trueline.schema.plan import Plan

ERROR_OPEN = 4
"""Exit code of a command that ended with 0 while an error was open, where that was asked for."""

SETTINGS = {"context_settings": {"ignore_unknown_options": True, "allow_interspersed_args": False}}


def command(
    words: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The training command.")] = None,
    out: Annotated[str, typer.Option(help="Directory of the Run; must be new, except with --resume.")] = LATEST,
    plan: Annotated[
        str | None,
        typer.Option(help="A preset (workers, laws, audit, modules, ops, mix, bits, monitor), or a TOML or JSON file."),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Set a key of the plan, such as steps=19:20; may be given again. KEY= is its default.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    ref: Annotated[
        str | None,
        typer.Option(help="When the command has ended, check the Run and compare it with this one.", metavar="RUN"),
    ] = None,
    sink: Annotated[
        list[str] | None,
        typer.Option(
            help="Report findings and dispersion here while the command runs; may be given again.",
            metavar="NAME:TARGET",
        ),
    ] = None,
    on_finding: Annotated[
        str | None,
        typer.Option(
            help="What the first error or warning does: log, raise (all ranks stop), record (the next steps), "
            "skip (updates that would do harm, with most_skips), or command:TEXT (a shell starts it).",
            metavar="WHAT",
        ),
    ] = None,
    fail_on_error: Annotated[
        bool,
        typer.Option(
            "--fail-on-error", help="End with exit code 4 where the command ended with 0 and an error is open."
        ),
    ] = False,
    collect: Annotated[
        str | None,
        typer.Option(
            help="Copy the Run here while the command runs: a directory, or a URL such as s3://bucket/run; the same "
            "for all machines.",
            metavar="DST",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an earlier Run at --out.")] = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the Run at --out, which an earlier start of the job wrote.")
    ] = False,
) -> None:
    """Run a training command under watch, with no change to the script.

    Output, exit code and signals of the command stay as they are, but for --fail-on-error. When it ends, one line on
    standard error says what was watched. Then run: trueline check RUN. With --ref the checks run at
    once and print to standard error.

    Example: trueline run --out runs/a -- torchrun --nproc-per-node 8 train.py --lr 1e-4
    Example: trueline run --plan mix --set steps=19:20 --out runs/b -- torchrun --nproc-per-node 8 train.py
    """
    from trueline.capture.child_env import environment
    from trueline.cli.foreground import threads_without_signals
    from trueline.schema.errors import InputError
    from trueline.schema.plan import Plan

    if not words:
        raise InputError("No command was given. Put it behind --, for example: trueline run -- torchrun train.py.")
    program = shutil.which(words[0])
    if program is None:
        raise InputError(f"'{words[0]}' is not a program on PATH. Give the command as you would without trueline.")
    _require_script(words)
    with threads_without_signals():
        plan_chosen = _with_sinks(_with_keys(Plan.load(plan), changes), sink, on_finding)
        fails = fail_on_error or plan_chosen.fail_on_error
        if ref is not None:
            _require_reference(ref, out)
        _require_free_path(out, overwrite=overwrite, resume=resume)
        if not resume:
            _free_rollouts(out, overwrite=overwrite)
        if collect is not None:
            _require_destination(collect, out)
    plan_keys = plan_chosen.model_dump(mode="json")
    watched_environ = environment(
        out=out, plan=plan_keys, overwrite=overwrite, resume=resume, argv=words, base=dict(os.environ)
    )
    if sys.stderr.isatty():
        print(f"trueline: watching; afterwards: trueline check {out}", file=sys.stderr, flush=True)
    try:
        _run_and_tell(program, words, watched_environ, run_path=out, ref=ref, destination=collect, fails=fails)
    except OSError as error:
        raise InputError(f"'{program}' cannot be started: {error}. Try it without trueline.") from None


def _with_keys(plan: Plan, changes: list[str] | None) -> Plan:
    """The Plan with the keys that ``--set`` names. Raises ``PlanError``."""
    from trueline.cli.plan_keys import key_and_value
    from trueline.schema.plan import Plan

    return Plan.load(plan.model_dump() | dict(map(key_and_value, changes))) if changes else plan


def _with_sinks(plan: Plan, sinks: list[str] | None, on_finding: str | None) -> Plan:
    """The Plan with what the options ask for. Raises ``PlanError``, or ``InputError`` for a sink that cannot be had."""
    from trueline.schema.plan import Plan
    from trueline.sinks.registry import at_home, require_ready, require_sinks

    sink_names = [at_home(sink_name) for sink_name in (*plan.sinks, *(sinks or ()))]
    require_sinks(sink_names)
    require_ready(sink_names)
    changed = {"sinks": sink_names, "on_finding": on_finding or plan.on_finding}
    return Plan.load(plan.model_dump() | changed)


def _run_and_tell(
    program: str,
    words: list[str],
    environ: dict[str, str],
    *,
    run_path: str,
    ref: str | None,
    destination: str | None,
    fails: bool,
) -> None:
    """Run the command, print what was watched and, with ``ref``, what the checks find, and end as the command did;
    where it ended well and ``fails`` asks for it, with ``ERROR_OPEN`` while an error is open.
    """
    from trueline.capture.child_env import UNSEEN, WATCHED
    from trueline.cli.collecting import Collecting
    from trueline.cli.foreground import end_as, run_in_foreground
    from trueline.cli.run_end import keep_end, stamps, watched

    before = stamps(run_path)
    collecting = None if destination is None else Collecting(run_path, destination)
    with tempfile.TemporaryDirectory(prefix="trueline-", ignore_cleanup_errors=True) as folder:
        unseen_file, begun_file = Path(folder) / "unseen", Path(folder) / f"unseen{WATCHED}"
        unseen_file.touch()
        begun_file.touch()
        ended = run_in_foreground(program, words, environ | {UNSEEN: str(unseen_file)})
        status = ended.status
        why, began = (file.read_text(encoding="utf-8") if file.exists() else "" for file in (unseen_file, begun_file))
    try:
        keep_end(run_path, ended, before=before)
        print(
            f"trueline: {watched(run_path, before=before, unseen=why, status=status, began=bool(began))}",
            file=sys.stderr,
        )
        if collecting is not None:
            print(f"trueline: {collecting.end()}", file=sys.stderr)
        if ref is not None or (fails and status == 0):
            error = _judge(run_path, ref, before=before)
            if fails and status == 0 and error is not None:
                print(f"trueline: exit code {ERROR_OPEN}, as an error is open: {error}", file=sys.stderr)
                status = ERROR_OPEN << 8  # as os.waitpid gives it
    except KeyboardInterrupt:
        print(f"trueline: not checked to the end; again: trueline check {run_path}", file=sys.stderr)
    except Exception as error:  # the exit status of the command is reported whatever a check raises
        print(f"trueline: what was watched could not be read: {type(error).__name__}: {error}", file=sys.stderr)
    end_as(status)


def _judge(run_path: str, ref: str | None, *, before: Stamps) -> str | None:
    """The first error that the last Run of the command shows, None without one; with ``ref``, print what is found."""
    from trueline.cli.lines import screen
    from trueline.cli.run_end import written
    from trueline.cli.verbs.check import print_report
    from trueline.judge.check_run import check
    from trueline.schema.errors import TruelineError
    from trueline.schema.live import headline

    paths = written(run_path, before=before)
    if not paths:
        print(f"trueline: the command wrote no Run at '{run_path}', so nothing was checked.", file=sys.stderr)
        return None
    errors: list[str] = []
    try:
        # a start that torchrun made again has a Run of its own, and the job ended well with the last
        report = check(paths[-1], ref=ref)
        errors = [headline(finding) for finding in report.findings if finding.severity == "error"]
        if ref is not None:
            print_report(screen(stderr=True), report)
    except TruelineError as error:
        print(f"trueline: {error}", file=sys.stderr)
    return errors[0] if errors else None


def _require_reference(ref: str, run_path: str) -> None:
    """Raise ``RunError`` where there is no Run at ``ref``, ``InputError`` where the new Run would take its place."""
    from trueline.schema.errors import InputError
    from trueline.store.reader import Run

    Run(ref)
    if Path(ref).resolve() == Path(run_path).resolve():
        raise InputError(
            f"--ref and --out are both '{run_path}'. Pass another --out: a Run is not compared with itself."
        )


def _require_free_path(run_path: str, *, overwrite: bool, resume: bool) -> None:
    """Raise InputError where the Run cannot go to ``run_path``: something is there, or nothing can be written."""
    from trueline.schema.errors import InputError, RunExistsError
    from trueline.store.filesystem import local_path

    path = Path(local_path(run_path))
    if overwrite and resume:
        raise InputError("--overwrite and --resume contradict each other. Pass one of them.")
    # the folder in which those that are missing would be made
    nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if nearest != path and not nearest.is_dir():
        raise InputError(f"'{run_path}' cannot be a Run: '{nearest}' is a file. Pass another --out.")
    if nearest.is_dir() and not os.access(nearest, os.W_OK | os.X_OK):
        raise InputError(f"A Run cannot be written to '{run_path}': '{nearest}' does not allow it. Pass another --out.")
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return
    from trueline.schema.files.run_lock import require_ended
    from trueline.store.log.claim import require_free

    if resume:
        from trueline.store.reader import Run

        Run(run_path)
        require_ended(run_path, proven=True)
    else:
        require_free(run_path, overwrite=True)
        if not overwrite:
            raise RunExistsError(
                f"'{run_path}' already holds a Run. Pass another --out, --resume to go on with it, or --overwrite to "
                "replace it."
            )


def _free_rollouts(run_path: str, *, overwrite: bool) -> None:
    """Remove the rollouts that an earlier command recorded beside the Run, or raise ``RunExistsError`` for them. No
    process of the command does: it could be the second to record.
    """
    from trueline.capture.child_env import path_of_rollouts
    from trueline.store.log.claim import claim

    path = path_of_rollouts(run_path)
    if os.path.isdir(path):
        claim(path, overwrite=overwrite)
        os.rmdir(path)


def _require_destination(destination: str, run_path: str) -> None:
    """Raise ``InputError`` where nothing can be collected into ``destination``."""
    from trueline.store.collect import open_target

    open_target(destination, [run_path])


def _require_script(words: list[str]) -> None:
    """Raise InputError where the first Python file of the command is not there."""
    from trueline.schema.command_words import script_in
    from trueline.schema.errors import InputError

    # of other programs nobody knows which of their words is a script
    runners = ("python", "torchrun", "accelerate", "deepspeed")
    if not Path(words[0]).name.startswith(runners):
        return
    script = script_in(words[1:])
    if script is not None and not Path(script).is_file():
        raise InputError(
            f"The script '{script}' does not exist. Check the path; the working directory is {os.getcwd()}."
        )
