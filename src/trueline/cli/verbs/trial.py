"""`trueline trial`: experiments for questions that recorded Runs cannot answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trueline.cli.options import Json
from trueline.cli.trial_options import command_of
from trueline.cli.verbs.run import SETTINGS
from trueline.cli.verbs.trials import op, precheck
from trueline.schema.trial_verbs import VERBS

if TYPE_CHECKING:
    from trueline.comparison.expect.rounding import OrderJudgement
    from trueline.trials.noise import OrderNoise, SumSetup

app = typer.Typer(no_args_is_help=True, help="Run an experiment for a question that recorded Runs cannot answer.")
for _name, _verb in sorted(VERBS.items()):
    app.command(_name, **(SETTINGS if _verb.takes_bare_command else {}))(command_of(_verb))

app.command("op")(op.command)
app.command("precheck")(precheck.command)

_STATUSES = {True: "confirmed", False: "excluded", None: "undecided"}
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

    options = {"workers": workers, "cosine": cosine, "dtype": dtype, "elements": elements}
    orders = ORDERS if order == "all" else (order,)
    setup = _sum_setup(run, options, accumulate=accumulate, orders=orders, seed=seed)
    answer = None if difference is None else judge(difference, setup)
    measured = _measured(setup)
    if json:
        print_document(_document(setup, measured, run=run, difference=difference, answer=answer))
    else:
        _print(setup, measured, difference=difference, answer=answer)
    if answer is not None:
        raise typer.Exit(_EXIT_CODES[answer.explained])


def _sum_setup(run: str | None, options: dict[str, Any], **settings: Any) -> SumSetup:
    """The sum that is asked for: each of ``options``, where it is None as the Run has it, and else as is usual. Raises
    ``InputError`` for what cannot be.
    """
    from trueline.trials.noise import SumSetup, setup_of, usual_elements

    if run is not None:
        from trueline.store.reader import Run

        from_run = {name: options[name] for name in ("workers", "cosine", "dtype")}
        # what was given by hand wins over the Run: setup_of passes it through
        options = options | dict(zip(from_run, setup_of(Run(run), **from_run), strict=True))
    options = {name: value for name, value in options.items() if value is not None}
    workers = options.get("workers", SumSetup.workers)
    return SumSetup(**{"elements": usual_elements(workers), **options, **settings})


def _measured(setup: SumSetup) -> list[OrderNoise]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from trueline.cli.lines import screen
    from trueline.cli.waiting import on_terminal
    from trueline.trials.noise import measure, num_pieces

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = screen(stderr=True)
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
    """Document of `--json`; ``answer`` is null without ``--difference``, ``explained`` where it cannot be decided."""
    from dataclasses import asdict

    from trueline.schema.files.run_manifest import SCHEMA_VERSION
    from trueline.schema.judged import NOT_JUDGED

    fields = asdict(setup)
    del fields["orders"]
    return {
        "schema": SCHEMA_VERSION,
        "run": run,
        "status": NOT_JUDGED if answer is None else _STATUSES[answer.explained],
        "exit_code": 0 if answer is None else _EXIT_CODES[answer.explained],
        "verdict": " ".join(_verdict(difference, answer)) or "Nothing is judged without --difference.",
        "cause": None,
        "actions": [],
        **fields,
        "orders": [asdict(order) for order in measured],
        "difference": difference,
        "answer": None if answer is None else asdict(answer),
    }


def _print(
    setup: SumSetup, measured: list[OrderNoise], *, difference: float | None, answer: OrderJudgement | None
) -> None:
    from rich.table import Table

    from trueline.cli.lines import screen

    console = screen()
    console.print(_setup_text(setup), highlight=False, soft_wrap=True)
    table = Table(box=None, header_style="bold")
    table.add_column("order")
    for title in ("error", "expected", "between two orders", "expected", "explained up to"):
        table.add_column(title, justify="right")
    for order in measured:
        numbers = (order.error_rel, order.error_expected_rel, order.difference_rel, order.difference_expected_rel)
        table.add_row(order.order, *(f"{number:.2e}" for number in (*numbers, order.limit_rel)))
    console.print(table)
    for line in (*_remarks(measured), *_verdict(difference, answer)):
        console.print(line, highlight=False, soft_wrap=True)


def _setup_text(setup: SumSetup) -> str:
    partial_sums = "float32" if setup.accumulate == "float32" else "the same"
    return (
        f"Sums of the gradients of {setup.workers:,} workers in {setup.dtype}, partial sums in {partial_sums}, mean "
        f"cosine {setup.cosine:.4g}; {setup.elements:,} elements, relative L2:"
    )


def _remarks(measured: list[OrderNoise]) -> list[str]:
    stagnating = [order.order for order in measured if order.stagnates]
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
