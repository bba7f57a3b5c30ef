"""`trueline compare`: where two Runs first differ by more than rounding explains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trueline.cli.options import Json, MaxBytes, Names, Page, Ranks, Steps, bounds_of

if TYPE_CHECKING:
    from trueline.comparison.match.names import NameMap
    from trueline.comparison.result import Comparison
    from trueline.render.comparison.compare_story import Story
    from trueline.schema.files.tolerance import Tolerance
    from trueline.store.reader import Run


def command(
    run: Annotated[str, typer.Argument(help="The Run's directory.", metavar="RUN")],
    ref: Annotated[str, typer.Argument(help="The directory of the Run that it is compared with.", metavar="REF")],
    tolerance: Annotated[
        str | None, typer.Option(help="What rounding explains, as `trueline calibrate` measured it.", metavar="FILE")
    ] = None,
    names: Names = None,
    steps: Steps = None,
    ranks: Ranks = None,
    csv: Annotated[str | None, typer.Option(help="Write every row to a CSV file.", metavar="FILE")] = None,
    xlsx: Annotated[str | None, typer.Option(help="Write every row to an Excel workbook.", metavar="FILE")] = None,
    html: Annotated[str | None, typer.Option(help="Write one self-contained HTML file.", metavar="FILE")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there already.")] = False,
    memory: Annotated[
        int,
        typer.Option(
            help="Memory that comparing stored values may take, however large they are.", metavar="MIB", min=1
        ),
    ] = 256,
    all: Annotated[bool, typer.Option("--all", help="Print every row.")] = False,
    json: Json = False,
    max_bytes: MaxBytes = None,
    page: Page = 1,
) -> None:
    """Say where two Runs first differ by more than rounding explains, and how each recorded value compares.

    Exit code 0: the same, or rounding explains all of it; 1: different; 2: no Runs to compare; 3: what was recorded
    does not suffice to tell.
    """
    from trueline.cli.compare_screen import print_screen
    from trueline.cli.json_document import print_bounded
    from trueline.cli.lines import screen
    from trueline.render.comparison.compare_document import compare_document

    bounds = bounds_of(max_bytes, page, json=json)
    targets = _targets(csv, xlsx, html, overwrite=overwrite)
    opened = _open(run), _open(ref)
    options = {"tolerance": _tolerance(tolerance), "names": _names(names), "steps": steps, "ranks": ranks}
    result = _compared(*opened, {**options, "max_bytes": memory * 2**20})
    story = _story(result, *opened)
    written = _write(targets, result, story)
    if json:
        print_bounded(compare_document(result, story, written), "compare", bounds)
    else:
        print_screen(screen(), result, story, written=written, every_row=all)
    raise typer.Exit(result.exit_code)


def _targets(csv: str | None, xlsx: str | None, html: str | None, *, overwrite: bool) -> dict[str, Path]:
    """The files to write by option, checked before anything is read."""
    from trueline.render.comparison.compare_xlsx import require_xlsxwriter
    from trueline.render.output import writable_target
    from trueline.schema.errors import InputError

    if xlsx is not None:
        require_xlsxwriter()
    files = (
        ("csv", csv, "CSV file", "rows.csv"),
        ("xlsx", xlsx, "workbook", "rows.xlsx"),
        ("html", html, "page", "compare.html"),
    )
    targets = {
        option: writable_target(path, overwrite=overwrite, kind=kind, example=example)
        for option, path, kind, example in files
        if path is not None
    }
    if len({target.resolve() for target in targets.values()}) < len(targets):
        raise InputError("--csv, --xlsx and --html name one file twice. Pass a file of its own for each.")
    return targets


def _open(path: str) -> Run:
    from trueline.store.reader import Run

    return Run(path)


def _tolerance(path: str | None) -> Tolerance | None:
    if path is None:
        return None
    from trueline.schema.files.tolerance import Tolerance

    return Tolerance.load(path)


def _names(path: str | None) -> NameMap | None:
    if path is None:
        return None
    from trueline.comparison.match.names import NameMap

    return NameMap.load(path)


def _compared(run: Run, ref: Run, options: dict[str, Any]) -> Comparison:
    from rich.progress import Progress

    from trueline.cli.lines import screen
    from trueline.cli.waiting import on_terminal
    from trueline.comparison.compare import compare

    options_set = {name: value for name, value in options.items() if value}
    console = screen(stderr=True)
    with Progress(console=console, transient=True, disable=not on_terminal()) as progress:
        task = progress.add_task("Comparing steps", total=None)

        def advance(num_done: int, total: int) -> None:
            progress.update(task, completed=num_done, total=total)

        return compare(run, ref, progress=advance, **options_set)


def _story(result: Comparison, run: Run, ref: Run) -> Story:
    from trueline.render.comparison.compare_call import recorded_call
    from trueline.render.comparison.compare_story import story_of

    first = result.first
    if first is None:
        return story_of(result)
    return story_of(result, recorded_call(run, first.site), recorded_call(ref, first.ref_site))


def _write(targets: dict[str, Path], result: Comparison, story: Story) -> list[str]:
    """The paths of the files that were written."""
    from trueline.render.comparison.compare_csv import write_csv
    from trueline.render.comparison.compare_xlsx import write_xlsx
    from trueline.render.output import save
    from trueline.web.page_file import comparison_file

    if "csv" in targets:
        write_csv(targets["csv"], result.rows)
    if "xlsx" in targets:
        write_xlsx(targets["xlsx"], result, story)
    if "html" in targets:
        save(targets["html"], comparison_file(result, story), kind="page")
    return [str(target) for target in targets.values()]
