"""`trueline report`: one self-contained HTML file about one or several Runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trueline.cli.options import LATEST, Json, RunPaths

if TYPE_CHECKING:
    from trueline.web.watched_run import WatchedRun


def command(
    out: Annotated[str, typer.Option("-o", "--out", help="The HTML file to write.", metavar="FILE.html")],
    runs: RunPaths = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace FILE.html if it is there already.")] = False,
    json: Json = False,
) -> None:
    """Write the page of `trueline view` about one or several Runs to a single HTML file that needs no server.

    Verdict, incidents with evidence for and against, ranks over steps, dispersion, cosines, settings. The exit code is
    0 once the file is written, whatever is found: `trueline check` is the one that judges with its exit code.
    """
    from trueline.cli.json_document import print_document
    from trueline.cli.screen import Console

    target, watched, _, shared = written(runs or [LATEST], out, "report", overwrite=overwrite)
    judged = [(run.name, run.require_results().report) for run in watched]
    if json:
        runs_json = [{"name": name, **report.to_json()} for name, report in judged]
        print_document({"schema": 1, "report": str(target), "runs": runs_json})
        return
    console = Console(soft_wrap=True)
    for name, report in judged:
        console.print(f"{name}: {report.verdict.line}", markup=False, highlight=False)
    console.print(f"Report: {target}{shared and f'. {shared}'}", markup=False, highlight=False)


def written(runs: list[str], out: str, kind: str, *, overwrite: bool) -> tuple[Path, list[WatchedRun], float, str]:
    """Write the page: where, about which Runs, how large it is in MB, and a sentence where steps share columns."""
    from trueline.cli.waiting import waiting
    from trueline.render.output import save, writable_target
    from trueline.web.page_file import page_file
    from trueline.web.watched_run import judged_runs

    target = writable_target(out, overwrite=overwrite, kind=kind, example=f"{kind}.html")
    with waiting("Reading and checking"):
        watched = judged_runs(runs)
        document, num_columns = page_file(watched)
    save(target, document, kind=kind)
    longest = max(run.run.steps.size for run in watched)
    shared = f"Steps share columns, of which there are {num_columns} at most." if longest > num_columns else ""
    return target, watched, len(document) / 1e6, shared
