"""What the verbs of `trueline trial` that run a job again have in common: their options, progress, and the screen."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from trueline.trials.runs import Runs
    from trueline.trials.start import Asked, AskedAgain, AskedRemedy, AskedVote, Prepared
    from trueline.trials.trial import TrialAnswer

RunOf = Annotated[
    str, typer.Argument(help="A Run in which `trueline check` finds what the trial is about.", metavar="RUN")
]
Words = Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The training command.")]
Code = Annotated[
    str | None,
    typer.Option(help="The finding that the trial is about.", show_default="of the first incident", metavar="CODE"),
]
Error = Annotated[float, typer.Option(help="Probability of a wrong answer that is allowed, over all decisions.")]
Most = Annotated[int, typer.Option("--runs", help="Runs after which it is undecided.", min=1)]
Steps = Annotated[
    int | None, typer.Option(help="Steps of each run.", show_default="as many as RUN has", min=1, metavar="N")
]
Timeout = Annotated[float, typer.Option(help="Seconds after which a run of the command is stopped.")]
Out = Annotated[str, typer.Option(help="Folder of the trial; one that was begun with the same command goes on.")]
Seed = Annotated[int, typer.Option(help="Random seed of the order of the runs.")]
Keep = Annotated[bool, typer.Option("--keep", help="Keep what every run left, not one of runs alike.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be run and what it costs, and run nothing.")]

MOST, ERROR, TIMEOUT = 200, 0.05, 3600.0


def run_and_print(
    asked: Asked | AskedAgain | AskedVote | AskedRemedy,
    prepared: Prepared,
    *,
    means: Mapping[str, str],
    dry_run: bool,
    json: bool,
) -> NoReturn:
    """Run a trial, print its answer, and leave with its exit code; or print what it would do."""
    from trueline.cli.json_document import print_document

    if dry_run:
        _print_plan(asked, prepared)
        raise typer.Exit
    with _running(prepared.trial.runs, asked.words):
        answer = prepared.trial.answer()
    if json:
        print_document(answer.to_json())
    else:
        _print_answer(answer, means)
        print(f"Trial: {asked.folder}")
    raise typer.Exit(answer.exit_code)


@contextmanager
def _running(runs: Runs, words: Sequence[str]) -> Iterator[None]:
    """Progress on standard error while a trial runs. Ctrl-C and SIGTERM end the run with its processes, and leave what
    goes on with the same command.
    """
    import errno
    import signal
    import sys

    from rich.console import Console

    from trueline.cli.waiting import on_terminal
    from trueline.schema.errors import InputError
    from trueline.schema.text.words import counted

    console = Console(stderr=True)
    status = console.status("Running the command") if on_terminal() else None

    def progress(arm: str, number: int) -> None:
        says = f"run {number + 1} of at most {runs.most}: {arm}"
        if status is not None:
            counts = runs.counts("base", "sham")
            status.update(f"{says} (base and sham: {counts.showed} of {counts.runs} showed it)")
        else:
            print(f"trueline: {says}", file=sys.stderr, flush=True)

    runs.progress = progress
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        if status is None:
            yield
        else:
            with status:
                yield
    except KeyboardInterrupt:
        print(
            f"trueline: stopped after {counted(len(runs.log), 'run')}, kept in {runs.folder}; the same command "
            "goes on.",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None
    except OSError as error:
        if error.errno == errno.ENOSPC or str(error.filename or "").startswith(str(runs.folder)):
            raise InputError(
                f"The trial cannot be written to '{runs.folder}': {error}. Make room, or pass another --out; the same "
                "command goes on."
            ) from None
        raise InputError(f"'{words[0]}' cannot be started: {error}. Try it without trueline.") from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _print_answer(answer: TrialAnswer, means: Mapping[str, str]) -> None:
    """What it says, what to do, and the runs behind it."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console()
    console.print(f"{answer.answer.capitalize()}: {means[answer.answer]}.", style="bold", highlight=False)
    lines = [Text(line) for line in answer.says] + [Text.assemble(("next: ", "green"), line) for line in answer.next]
    if answer.credible and answer.answer != "confirmed":
        lines.append(Text(f"Left: {', '.join(answer.credible[:8])}{' …' if len(answer.credible) > 8 else ''}"))
    if answer.rate is not None:
        rate = answer.rate
        often = f"{rate.showed} of {rate.runs} runs, so in at least {rate.at_least:.0%} (95 % confidence)"
        needed = f"it takes {rate.clean_runs} runs without it in a row to say, with an error of 1 %, that it is gone"
        lines.append(Text(f"The job as it is shows it in {often}: {needed}."))
    for line in lines:
        console.print(Padding(line, (0, 0, 0, 2)))
    arms = "; ".join(f"{arm.name} ({arm.showed} of {arm.runs})" for arm in answer.arms[:6])
    more = f"; {len(answer.arms) - 6} more arms" if len(answer.arms) > 6 else ""
    asked = "" if answer.error_asked is None else f", error asked {answer.error_asked:g}"
    console.print(f"Runs: {answer.runs}{asked}. Showed it: {arms}{more}", style="dim", highlight=False)


def _print_plan(asked: Asked | AskedAgain | AskedVote | AskedRemedy, prepared: Prepared) -> None:
    from rich.console import Console

    console = Console()
    for line in (*asked.says(), *prepared.plan):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    runs = f"about {prepared.usual} where every run shows it, {asked.runs_says()}"
    console.print(f"Runs: {asked.runs_says() if asked.runs_says() == prepared.usual else runs}.", highlight=False)
