"""`trueline report`: one self-contained HTML file about one or several Runs."""

from __future__ import annotations

from typing import Annotated

import typer

from trueline.cli.options import Json


def command(
    runs: Annotated[
        list[str], typer.Argument(help="Directories of Runs, in the order they are to stand in.", metavar="RUN…")
    ],
    out: Annotated[str, typer.Option("-o", "--out", help="The HTML file to write.", metavar="FILE.html")],
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE.html if it is there already.")] = False,
    json: Json = False,
) -> None:
    """Write a report on one or several Runs to a single HTML file that needs no network.

    Verdict in words, findings, workers over steps, dispersion, cosines, what was checked, environment. The exit code is
    0 once the file is written, whatever is found: `trueline check` is the one that judges with its exit code.
    """
    from rich.console import Console

    from trueline.analyze.results import results_of
    from trueline.cli.json_document import print_document
    from trueline.cli.waiting import waiting
    from trueline.render.output import save, writable_target
    from trueline.render.report.report import render
    from trueline.render.report.run_reading import readings_of

    target = writable_target(out, overwrite=overwrite)
    with waiting("Reading and checking"):
        readings = readings_of(results_of(runs))
    save(target, render(readings))
    if json:
        runs_json = [
            {"name": each.name, "status": each.report.verdict.status, **each.report.to_json()} for each in readings
        ]
        print_document({"schema": 1, "report": str(target), "runs": runs_json})
        return
    console = Console(soft_wrap=True)
    for reading in readings:
        console.print(f"{reading.name}: {reading.report.verdict.line}", markup=False, highlight=False)
    console.print(f"Report: {target}", markup=False, highlight=False)
