"""`trueline trial`: experiments for questions that recorded Runs cannot answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trueline.cli.options import Json
from trueline.cli.verbs import trial_op, trial_precheck
from trueline.cli.verbs.run import SETTINGS
from trueline.cli.verbs.trials import bisect, knobs, remedy, repeat, rl, shrink, sync, vote

if TYPE_CHECKING:
    from trueline.analyze.compare.expect.rounding import OrderJudgement
    from trueline.trials.batch.laws import Law
    from trueline.trials.noise import OrderNoise, SumSetup
    from trueline.trials.trial import TrialAnswer

app = typer.Typer(no_args_is_help=True, help="Run an experiment for a question that recorded Runs cannot answer.")
app.command("bisect")(bisect.command)
app.command("knobs")(knobs.command)
app.command("remedy")(remedy.command)
app.command("repeat")(repeat.command)
app.command("rl")(rl.command)
app.command("shrink")(shrink.command)
app.command("sync")(sync.command)
app.command("vote")(vote.command)

app.command("op")(trial_op.command)
app.command("precheck")(trial_precheck.command)

_MEANS = {
    "confirmed": "the first step breaks a law",
    "excluded": "the first step obeys the laws that were looked at",
    "undecided": "whether the first step obeys the laws cannot be told",
}

_EXIT_CODES = {True: 0, False: 1, None: 3}

_Elements = Annotated[
    int | None, typer.Option(help="Elements of each gradient.", show_default="65,536; fewer for over 256 workers")
]
_Dtype = Annotated[
    str | None,
    typer.Option(help="Dtype of the gradients: float32, bfloat16 or float16.", show_default="float32", metavar="DTYPE"),
]
_Run = Annotated[
    str | None,
    typer.Option(help="Take workers, mean cosine and dtype from this Run, unless given.", metavar="RUN"),
]
_Difference = Annotated[
    float | None,
    typer.Option(help="Decide whether the order explains this difference |a - b| / |a| of two sums.", metavar="X"),
]


@app.command("batch", **SETTINGS)
def batch(
    words: Annotated[list[str] | None, typer.Argument(metavar="-- COMMAND...", help="The training command.")] = None,
    law: Annotated[
        str, typer.Option(help="Which laws, with commas: permute, halves, padding, gradient.", metavar="LAW,…")
    ] = "permute,halves,padding,gradient",
    seed: Annotated[int, typer.Option(help="Random seed of the job, where it sets none.")] = 0,
    timeout: Annotated[float, typer.Option(help="Seconds after which a run of the command is stopped.")] = 1800.0,
    json: Json = False,
) -> None:
    """Run a training command up to its first update, several times with batches or weights changed, and judge whether
    losses and gradients obey what must hold: the order of rows, splitting in halves and padding change nothing, and the
    gradient is the derivative of the loss.

    The command is run about twenty times, forty where the gradient is wrong, and does what it does before its first
    update, which it never makes.

    confirmed: a law is broken; excluded: all hold. Exit code 0: one of these; 3: undecided.

    Example: trueline trial batch -- torchrun --nproc-per-node 2 train.py
    """
    import shutil

    from trueline.cli.json_document import print_document
    from trueline.schema.errors import InputError
    from trueline.trials.batch.batch import LAWS

    laws = [each for each in LAWS if each in law.split(",")]
    unknown = sorted({*law.split(",")} - {*LAWS})
    if unknown or not laws:
        raise InputError(f"--law is '{law}'; give some of {', '.join(LAWS)}, with commas.")
    if not 0 <= seed < 2**32:
        raise InputError(f"--seed is {seed}; give a whole number from 0 to {2**32 - 1}.")
    if not timeout > 0:
        raise InputError(f"--timeout is {timeout:g}; give a number of seconds above 0.")
    if not words or shutil.which(words[0]) is None:
        raise InputError(
            f"'{words[0]}' is not a program on PATH. Give the command as you would without trueline."
            if words
            else "No command was given. Put it behind --, for example: trueline trial batch -- torchrun train.py."
        )
    answer = _tried(words, laws, seed=seed, timeout=timeout)
    if json:
        print_document(answer.to_json())
    else:
        _print_answer(answer)
    raise typer.Exit(answer.exit_code)


def _tried(words: list[str], laws: list[Law], *, seed: int, timeout: float) -> TrialAnswer:
    import tempfile
    from pathlib import Path

    from rich.console import Console

    from trueline.cli.waiting import on_terminal
    from trueline.schema.errors import InputError
    from trueline.trials.batch.batch import BatchTrial
    from trueline.trials.trial import Job

    console = Console(stderr=True)
    status = console.status("Running the command for one step") if on_terminal() else None
    with tempfile.TemporaryDirectory(prefix="trueline-", ignore_cleanup_errors=True) as place:
        trial = BatchTrial(Job(words, timeout), Path(place), laws, seed=seed)
        try:
            if status is None:
                return trial.answer()
            trial.progress = lambda name: status.update(f"Running the command for one step: {name}")
            with status:
                return trial.answer()
        except OSError as error:
            raise InputError(f"'{words[0]}' cannot be started: {error}. Try it without trueline.") from None


def _print_answer(answer: TrialAnswer) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console()
    console.print(f"{answer.answer.capitalize()}: {_MEANS[answer.answer]}.", style="bold", highlight=False)
    lines = [Text(line) for line in answer.says] + [Text.assemble(("next: ", "green"), line) for line in answer.next]
    for line in lines:
        console.print(Padding(line, (0, 0, 0, 2)))
    arms = ", ".join(f"{arm.name} x {arm.runs}" for arm in answer.arms)
    console.print(f"Runs of the first step: {answer.runs} ({arms})", style="dim", highlight=False)


@app.command("noise")
def noise(
    workers: Annotated[int | None, typer.Option(help="Workers whose gradients are added up.", show_default="8")] = None,
    elements: _Elements = None,
    dtype: _Dtype = None,
    accumulate: Annotated[
        str, typer.Option(help="Dtype of partial sums: same (as the gradients) or float32.", metavar="HOW")
    ] = "same",
    order: Annotated[
        str, typer.Option(help="Order of the sum: sequential, ring, tree, or all of these.", metavar="ORDER")
    ] = "all",
    cosine: Annotated[
        float | None, typer.Option(help="Mean cosine between two workers' gradients.", show_default="0")
    ] = None,
    run: _Run = None,
    difference: _Difference = None,
    seed: Annotated[int, typer.Option(help="Random seed of gradients and orders.")] = 0,
    json: Json = False,
) -> None:
    """Measure how much sums of the same gradients differ by the order of summation, and what rounding theory predicts.

    With --difference, exit code 0: the order of the sum explains it; 1: it does not; 3: it cannot be decided.

    Example: trueline trial noise --workers 64 --dtype bfloat16 --difference 0.02
    """
    from trueline.cli.json_document import print_document
    from trueline.trials.noise import ORDERS, judge

    given = {"workers": workers, "cosine": cosine, "dtype": dtype, "elements": elements}
    orders = ORDERS if order == "all" else (order,)
    setup = _question(run, given, accumulate=accumulate, orders=orders, seed=seed)
    answer = None if difference is None else judge(difference, setup)
    measured = _measured(setup)
    if json:
        print_document(_document(setup, measured, run=run, difference=difference, answer=answer))
    else:
        _print(setup, measured, difference=difference, answer=answer)
    if answer is not None:
        raise typer.Exit(_EXIT_CODES[answer.explained])


def _question(run: str | None, given: dict[str, Any], **asked: Any) -> SumSetup:
    """What was asked: as ``given``, where that is None as the Run has it, and else as is usual. It refuses what cannot
    be.
    """
    from trueline.trials.noise import SumSetup, setup_of, usual_elements

    if run is not None:
        from trueline.store.reader import Run

        known = {name: given[name] for name in ("workers", "cosine", "dtype")}
        given = given | dict(zip(known, setup_of(Run(run), **known), strict=True))
    given = {name: value for name, value in given.items() if value is not None}
    workers = given.get("workers", SumSetup.workers)
    return SumSetup(**{"elements": usual_elements(workers), **given, **asked})


def _measured(setup: SumSetup) -> list[OrderNoise]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from trueline.cli.waiting import on_terminal
    from trueline.trials.noise import measure, num_pieces

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not on_terminal()) as progress:
        task = progress.add_task("Adding up gradients", total=num_pieces(setup))
        return measure(setup, progress=lambda: progress.advance(task))


def _document(
    setup: SumSetup,
    measured: list[OrderNoise],
    *,
    run: str | None,
    difference: float | None,
    answer: OrderJudgement | None,
) -> dict[str, Any]:
    """What `--json` prints; ``answer`` is null without ``--difference``, ``explained`` where it cannot be decided."""
    from dataclasses import asdict

    from trueline.schema.files.run_manifest import SCHEMA_VERSION

    fields = asdict(setup)
    del fields["orders"]
    return {
        "schema": SCHEMA_VERSION,
        "run": run,
        **fields,
        "orders": [asdict(one) for one in measured],
        "difference": difference,
        "answer": None if answer is None else asdict(answer),
    }


def _print(
    setup: SumSetup, measured: list[OrderNoise], *, difference: float | None, answer: OrderJudgement | None
) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(_asked(setup), highlight=False, soft_wrap=True)
    table = Table(box=None, header_style="bold")
    table.add_column("order")
    for title in ("error", "expected", "between two orders", "expected", "explained up to"):
        table.add_column(title, justify="right")
    for one in measured:
        numbers = (one.error_rel, one.error_expected_rel, one.difference_rel, one.difference_expected_rel)
        table.add_row(one.order, *(f"{number:.2e}" for number in (*numbers, one.limit_rel)))
    console.print(table)
    for line in (*_remarks(measured), *_verdict(difference, answer)):
        console.print(line, highlight=False, soft_wrap=True)


def _asked(setup: SumSetup) -> str:
    kept = "float32" if setup.accumulate == "float32" else "the same"
    return (
        f"Sums of the gradients of {setup.workers:,} workers in {setup.dtype}, partial sums in {kept}, mean "
        f"cosine {setup.cosine:.4g}; {setup.elements:,} elements, relative L2:"
    )


def _remarks(measured: list[OrderNoise]) -> list[str]:
    stagnating = [one.order for one in measured if one.stagnates]
    if not stagnating:
        return []
    return [
        f"One after the other ({', '.join(stagnating)}), terms become too small for the partial sum and are lost: the "
        "expected error does not hold. Accumulate in float32."
    ]


def _verdict(difference: float | None, answer: OrderJudgement | None) -> list[str]:
    if difference is None or answer is None:
        return []
    conclusion = {
        True: "is explained by reduction order",
        False: "is not explained by reduction order",
        None: "may or may not be explained by reduction order; it cannot be decided",
    }[answer.explained]
    return [
        f"A difference of {difference:.3g} {conclusion}. {answer.why} Expected are {answer.expected_rel:.2e}, "
        f"explained up to {answer.limit_rel:.2e}."
    ]
