"""`trueline diff`: what differs between two jobs that should be the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trueline.cli.options import Json, MaxBytes, Page, bounds_of

if TYPE_CHECKING:
    from rich.text import Text

    from trueline.cli.screen import Console
    from trueline.same_job.diff import JobDiff
    from trueline.same_job.difference import Difference

_MAX_LINES = 30
_STYLES = {"warning": "bold yellow", "info": "dim"}


def command(
    run: Annotated[
        str,
        typer.Argument(help="A Run, a file of `trueline env collect`, a configuration, or a directory.", metavar="A"),
    ],
    ref: Annotated[str, typer.Argument(help="The same of the job that it should be like.", metavar="B")],
    xlsx: Annotated[
        str | None, typer.Option(help="Write an Excel workbook, a sheet each kind.", metavar="FILE")
    ] = None,
    html: Annotated[str | None, typer.Option(help="Write one self-contained HTML file.", metavar="FILE")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace files that are there already.")] = False,
    all: Annotated[bool, typer.Option("--all", help="Print every difference.")] = False,
    json: Json = False,
    max_bytes: MaxBytes = None,
    page: Page = 1,
) -> None:
    """Say what differs between two jobs that should be the same, what most likely explains other numbers first.

    What cannot matter (order, hosts, paths, ports, ranks) is left out. Exit code 0: nothing, or only what explains
    rounding; 1: something that can explain other numbers; 2: nothing to compare there; 3: nothing in common.
    """
    from trueline.cli.json_document import print_bounded
    from trueline.cli.lines import screen
    from trueline.judge.facts.apart import diff_trainings
    from trueline.render.job_diff import write_html, write_xlsx
    from trueline.render.output import writable_target

    bounds = bounds_of(max_bytes, page, json=json)
    targets = {
        write: writable_target(path, overwrite=overwrite, kind=kind, example=example)
        for write, path, kind, example in (
            (write_xlsx, xlsx, "workbook", "diff.xlsx"),
            (write_html, html, "page", "diff.html"),
        )
        if path is not None
    }
    job_diff = diff_trainings(run, ref)
    for write, target in targets.items():
        write(target, job_diff)
    written = [str(target) for target in targets.values()]
    if json:
        print_bounded({**job_diff.to_json(), "written": written}, "diff", bounds)
    else:
        _print(screen(), job_diff, written, all_lines=all)
    raise typer.Exit(job_diff.exit_code)


def _print(console: Console, job_diff: JobDiff, written: list[str], *, all_lines: bool) -> None:
    from rich.text import Text

    from trueline.render.wording import one_line
    from trueline.schema.text.words import counted, named_some

    style = "bold yellow" if job_diff.telling else "bold green"
    lines = [Text(one_line(job_diff.headline), style=style), Text("")]
    if job_diff.facts:
        lines.append(Text("What they did otherwise:", style="bold"))
        lines += [
            Text(one_line(f"{head}{text}"))
            for pair in job_diff.facts
            for head, text in (("  A: ", pair.run), ("  B: ", pair.ref))
        ]
        lines.append(Text(""))
    listed = [difference for difference in job_diff.differences if all_lines or not difference.is_unknown]
    unknown = [difference.says for difference in job_diff.differences if difference.is_unknown]
    differences = listed if all_lines else listed[:_MAX_LINES]
    width = max((len(difference.says) for difference in differences), default=0)
    lines += [_line(difference, min(width, 58)) for difference in differences]
    if len(differences) < len(listed):
        lines.append(Text(f"and {len(listed) - len(differences)} that are less likely: --all", style="dim"))
    if unknown and not all_lines:
        text = f"{counted(len(unknown), 'option')} of unknown effect: {named_some(unknown)}. Values: --all"
        lines.append(Text(one_line(text), style="dim"))
    if differences:
        lines.append(Text(""))
    lines += [Text(one_line(line), style="dim") for line in _about(job_diff)]
    lines += [Text(f"Written: {path}") for path in written]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def _line(difference: Difference, width: int) -> Text:
    from rich.text import Text

    from trueline.render.wording import one_line
    from trueline.schema.text.words import clipped

    values = f"{clipped(difference.run, 40)} | {clipped(difference.ref, 40)}"
    where = " | ".join(
        dict.fromkeys(each_where for each_where in (difference.run_where, difference.ref_where) if each_where)
    )
    tail = f"   ({where})" if where else ""
    note = f"   {difference.note}" if difference.note else ""
    text = Text(f"{difference.likely:>3}  {difference.code:<18}", style=_STYLES[difference.severity])
    return text.append(one_line(f"{difference.says:<{width}}  {values}{tail}{note}"), style="")


def _about(job_diff: JobDiff) -> list[str]:
    counts = ", ".join(f"{count} of {kind}" for kind, count in job_diff.compared.items() if count)
    began = {
        "at the first loss": "The losses differ from the first one on.",
        "later": "The first loss agrees, later ones do not.",
        "never": "The losses agree.",
    }.get(job_diff.began, "")
    return [*([began] if began else []), f"Compared: {counts}.", *job_diff.notes]
