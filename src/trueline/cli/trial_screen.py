"""Progress and screen of the verbs of `trueline trial` that run a job again."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from trueline.cli.options import Bounds
from trueline.schema.trial_verbs import VERBS

if TYPE_CHECKING:
    from rich.table import Table

    from trueline.trials.frame.asked import Asked, Prepared, ProgressSource
    from trueline.trials.frame.trial import TrialAnswer


def run_and_print(request: Asked, prepared: Prepared, *, dry_run: bool, json: bool, bounds: Bounds) -> NoReturn:
    """Run a trial, print its answer, and leave with its exit code; or print what it would do."""
    from trueline.cli.json_document import print_bounded

    if dry_run:
        if json:
            print_bounded(plan_document(request, prepared, sys.argv[1:]), "trial", bounds)
        else:
            _print_plan(prepared)
        raise typer.Exit
    with _running(prepared.runs, request.words):
        answer = prepared.trial.answer()
    if json:
        print_bounded(_document(request, answer), "trial", bounds)
    else:
        verb = VERBS[request.verb]
        _print_answer(answer, verb.means)
        if "out" not in verb.lacks:
            print(f"Trial: {request.folder}")
    raise typer.Exit(answer.exit_code)


def plan_document(request: Asked, prepared: Prepared, words: Sequence[str]) -> dict[str, Any]:
    """The document of what a trial would do; its action is the command of ``words`` that does it."""
    from trueline.judge.actions import Action
    from trueline.schema.judged import NOT_JUDGED
    from trueline.trials.frame.trial import SCHEMA

    # the job may have an option of the same name
    split = list(words).index("--") if "--" in words else len(words)
    argv = ("trueline", *(word for word in words[:split] if word != "--dry-run"), *words[split:])
    action = Action("Run the trial.", argv, runs_job=True, cost=f"runs of the job: {prepared.takes}")
    return {
        "schema": SCHEMA,
        "trial": request.verb,
        "status": NOT_JUDGED,
        "exit_code": 0,
        "verdict": f"Nothing was run. Runs: {prepared.takes}.",
        "cause": None,
        "actions": [action.to_json()],
        "plan": list(prepared.plan),
        "takes": prepared.takes,
    }


def _document(request: Asked, answer: TrialAnswer) -> dict[str, Any]:
    """The document of an answer; one about a Run makes its diagnosis surer, which is an action."""
    import shlex

    from trueline.judge.actions import actions_of

    document = answer.to_json()
    if request.run and answer.answer != "undecided":
        words = f"trueline diagnose {shlex.quote(request.run)} --trial {shlex.quote(str(request.folder))} --json"
        (diagnose,) = actions_of([f"With this answer the cause is surer: `{words}`."])
        document["actions"].append(diagnose.to_json())
    return document


@contextmanager
def _running(source: ProgressSource, words: Sequence[str]) -> Iterator[None]:
    """Progress on standard error while a trial runs. Ctrl-C and SIGTERM end the run with its processes, and leave what
    goes on with the same command.
    """
    import errno
    import signal

    from trueline.cli.screen import Console
    from trueline.cli.waiting import on_terminal
    from trueline.schema.errors import InputError
    from trueline.schema.text.words import counted
    from trueline.trials.frame.runs import Runs

    runs = source if isinstance(source, Runs) else None
    status = Console(stderr=True).status("Running the command") if on_terminal() else None

    def progress(arm: str, number: int) -> None:
        says = f"run {number + 1} of at most {source.max_runs}: {arm}"
        if status is not None:
            counts = runs.counts("base", "sham") if runs else None
            so_far = f" (base and sham: {counts.showed} of {counts.runs} showed it)" if counts and counts.runs else ""
            status.update(says + so_far)
        else:
            print(f"trueline: {says}", file=sys.stderr, flush=True)

    source.progress = progress
    # batch systems end a job by SIGTERM: it is to leave what Ctrl-C leaves
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with status or nullcontext():
            yield
    except KeyboardInterrupt:
        progress_text = (
            f" after {counted(len(runs.log), 'run')}, kept in {runs.folder}; the same command goes on" if runs else ""
        )
        print(f"trueline: stopped{progress_text}.", file=sys.stderr)
        raise typer.Exit(130) from None
    except OSError as error:
        if runs and (error.errno == errno.ENOSPC or str(error.filename or "").startswith(str(runs.folder))):
            raise InputError(
                f"The trial cannot be written to '{runs.folder}': {error}. Make room, or pass another --out; the same "
                "command goes on."
            ) from None
        program = f"'{words[0]}'" if words else "A command"
        raise InputError(f"{program} cannot be started: {error}. Try it without trueline.") from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _print_answer(answer: TrialAnswer, means: Mapping[str, str]) -> None:
    """Print the answer, what to do next, and the runs behind it."""
    from rich.padding import Padding
    from rich.text import Text

    from trueline.cli.lines import screen

    console = screen()
    console.print(f"{answer.answer.capitalize()}: {means[answer.answer]}.", style="bold", highlight=False)
    lines = [Text(line) for line in answer.says] + [Text.assemble(("next: ", "green"), line) for line in answer.next]
    if len(answer.credible) > 1 and answer.answer == "undecided":  # a clear answer has said what is left
        lines.append(Text(f"Left: {', '.join(answer.credible[:8])}{' …' if len(answer.credible) > 8 else ''}"))
    if answer.rate is not None:
        rate = answer.rate
        often = f"{rate.showed} of {rate.runs} runs, so in at least {rate.at_least:.0%} (95 % confidence)"
        clean = "1 run" if rate.clean_runs == 1 else f"{rate.clean_runs} runs in a row"
        cure = f"To see by yourself that a change cures it, with an error of 1 %: {clean} without it."
        lines.append(Text(f"The job as it is shows it in {often}. {cure}"))
    for line in lines:
        console.print(Padding(line, (0, 0, 0, 2)))
    if answer.table:
        console.print(_table_of(answer.table))
    arms = "; ".join(f"{arm.name} ({arm.showed} of {arm.runs})" for arm in answer.arms[:6])
    more = f"; {len(answer.arms) - 6} more arms" if len(answer.arms) > 6 else ""
    error_text = "" if answer.error_asked is None else f", error asked {answer.error_asked:g}"
    console.print(f"Runs: {answer.runs}{error_text}. Showed it: {arms}{more}", style="dim", highlight=False)


def _table_of(rows: Sequence[Mapping[str, Any]]) -> Table:
    """The texts of rows."""
    from rich.table import Table

    names = [name for name, value in rows[0].items() if isinstance(value, str)]
    table = Table(*names, box=None, header_style="bold", padding=(0, 2, 0, 0))
    for row in rows:
        table.add_row(*(row[name] for name in names))
    return table


def _print_plan(prepared: Prepared) -> None:
    from trueline.cli.lines import screen

    console = screen()
    for line in prepared.plan:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    console.print(f"Runs: {prepared.takes}.", highlight=False)
