"""`trueline calibrate`: measure how far Runs that should agree are apart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trueline.cli.options import Json, Names, Ranks, Steps

if TYPE_CHECKING:
    from trueline.cli.screen import Console
    from trueline.schema.files.tolerance import Tolerance

_MAX_ROWS = 12


def command(
    runs: Annotated[
        list[str], typer.Argument(help="Directories of two or more Runs that should agree.", metavar="RUN RUN…")
    ],
    out: Annotated[str, typer.Option("-o", "--out", help="The tolerance to write.", metavar="FILE.json")],
    names: Names = None,
    steps: Steps = None,
    ranks: Ranks = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE.json if it is there already.")] = False,
    json: Json = False,
) -> None:
    """Measure the rounding floor of a job from Runs of it that should agree, for `trueline compare --tolerance`.

    Record the same job twice or more, with what may vary between healthy runs: nothing, another order of reduction,
    other hardware, inputs changed by a rounding. Every pair of Runs is compared, site by site, and the largest
    difference at each site is the floor there. More Runs give a more reliable floor.

    Exit code 0: the tolerance was written; 2: Runs that cannot be read or do not belong together; 3: nothing measured.
    """
    from trueline.cli.json_document import print_document
    from trueline.cli.screen import Console
    from trueline.cli.waiting import waiting
    from trueline.comparison.calibrate import calibrate
    from trueline.comparison.match.names import NameMap
    from trueline.render.output import writable_target

    target = writable_target(out, overwrite=overwrite, kind="tolerance", example="tolerance.json")
    with waiting("Comparing Runs") as say:
        tolerance = calibrate(
            runs,
            names=None if names is None else NameMap.load(names),
            steps=steps or None,
            ranks=ranks or None,
            progress=lambda step, total: say(f"Comparing Runs: {step} of {total} steps"),
        )
    tolerance.save(target)
    if json:
        print_document(tolerance.model_dump(mode="json", by_alias=True))
    else:
        _print_tolerance(Console(soft_wrap=True), tolerance, str(target))


def _print_tolerance(console: Console, tolerance: Tolerance, target: str) -> None:
    from trueline.schema.text.words import counted

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False)

    say(
        f"{counted(len(tolerance.sites), 'site')} at {counted(len(tolerance.steps), 'step')} of "
        f"{len(tolerance.runs)} Runs ({counted(tolerance.pairs, 'pair')}), measured on {_MEASURED[tolerance.how]}."
    )
    for at, step in enumerate(tolerance.steps):
        floors = [(floors[at], site) for site, floors in tolerance.sites.items() if floors[at] is not None]
        if floors:
            largest, site = max(floors)
            middle = sorted(floor for floor, _ in floors)[len(floors) // 2]
            # Runs that are equal differ nowhere in particular
            where = f" at {site}" if largest else ""
            say(f"Step {step}: they differ by {middle:.2g} in the median, by {largest:.2g} at most{where}.")
    _print_kinds(console, tolerance)
    for line in (*tolerance.notes, *_chances(tolerance), _losses(tolerance)):
        say(line)
    say(f"Tolerance: {target}")


_MEASURED = {
    "tensor": "bits and stored values",
    "statistics": 'statistics (record with depth = "tensor" for exact floors)',
}


def _print_kinds(console: Console, tolerance: Tolerance) -> None:
    """The kinds whose floors are highest, at the step where they are."""
    from rich.table import Table

    from trueline.schema.files.tolerance import QUANTILE

    rows = [
        (kind.high[at], name, step, kind)
        for name, kind in tolerance.kinds.items()
        for at, step in enumerate(tolerance.steps)
        if kind.high[at] and kind.high[at] == max(floor or 0.0 for floor in kind.high)
    ]
    if not rows:
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("highest by kind", "step", "sites", "median", f"{QUANTILE:.0%}", "largest"):
        table.add_column(name, justify="left" if name == "highest by kind" else "right")
    for high, name, step, kind in sorted(rows, key=lambda row: -(row[0] or 0.0))[:_MAX_ROWS]:
        at = tolerance.steps.index(step)
        numbers = [f"{floor or 0.0:.2g}" for floor in (kind.median[at], high, kind.largest[at])]
        table.add_row(name, str(step), f"{kind.count[at]:,}", *numbers)
    if len(rows) > _MAX_ROWS:
        table.add_row(f"… and {len(rows) - _MAX_ROWS} more", "", "", "", "", "")
    console.print(table)


def _chances(tolerance: Tolerance) -> list[str]:
    lines = [
        f"If Runs are exchangeable, two further ones differ by more than the floor at any one site with a probability "
        f"of at most {tolerance.exceeded:.0%}, and one further Run compared with one of these "
        f"{tolerance.exceeded_by_one:.0%}."
    ]
    if tolerance.spread is not None:
        lines.append(
            f"Left out in turn, each Run stayed within {tolerance.spread:.2g} times the others' floor everywhere."
        )
    return lines


def _losses(tolerance: Tolerance) -> str:
    from trueline.schema.text.words import counted

    if not tolerance.losses:
        return "No step has a loss in all of them, so how fast losses diverge was not measured."
    least = 1 / (len(tolerance.runs) + 1)
    return (
        f"Their losses at {counted(len(tolerance.loss_steps), 'step')} show how fast losses of healthy runs diverge; a "
        f"further healthy run diverges fastest with a probability of up to {least:.0%}."
    )
