"""`trueline diff`: what differs between two jobs that should be the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trueline.cli.options import Json

if TYPE_CHECKING:
    from rich.text import Text

    from trueline.cli.screen import Console
    from trueline.same_job.diff import JobDiff
    from trueline.same_job.difference import Difference

_MAX_LINES = 30
_WIDTH = 100
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
) -> None:
    """Say what differs between two jobs that should be the same, what most likely explains other numbers first.

    What cannot matter (order, hosts, paths, ports, ranks) is left out. Exit code 0: nothing, or only what explains
    rounding; 1: something that can explain other numbers; 2: nothing to compare there; 3: nothing in common.
    """
    from trueline.cli.json_document import print_document
    from trueline.cli.lines import screen
    from trueline.render.job_diff import write_html, write_xlsx
    from trueline.render.output import writable_target
    from trueline.same_job.diff import diff

    targets = {
        write: writable_target(out, overwrite=overwrite, what=what, example=example)
        for write, out, what, example in (
            (write_xlsx, xlsx, "workbook", "diff.xlsx"),
            (write_html, html, "page", "diff.html"),
        )
        if out is not None
    }
    found = diff(run, ref)
    for write, target in targets.items():
        write(target, found)
    written = [str(target) for target in targets.values()]
    if json:
        print_document({**found.to_json(), "written": written})
    else:
        _print(screen(), found, written, every=all)
    raise typer.Exit(found.exit_code)


def _print(console: Console, found: JobDiff, written: list[str], *, every: bool) -> None:
    from rich.text import Text

    from trueline.render.wording import one_line

    style = "bold yellow" if found.telling else "bold green"
    lines = [Text(one_line(found.headline), style=style), Text("")]
    shown = found.differences if every else found.differences[:_MAX_LINES]
    width = max((len(each.says) for each in shown), default=0)
    lines += [_line(each, min(width, 58)) for each in shown]
    if len(shown) < len(found.differences):
        lines.append(Text(f"and {len(found.differences) - len(shown)} that are less likely: --all", style="dim"))
    if shown:
        lines.append(Text(""))
    lines += [Text(one_line(line), style="dim") for line in _about(found)]
    lines += [Text(f"Written: {path}") for path in written]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False)


def _line(each: Difference, width: int) -> Text:
    from rich.text import Text

    from trueline.render.wording import one_line
    from trueline.schema.text.words import clipped

    both = f"{clipped(each.run, 40)} | {clipped(each.ref, 40)}"
    where = " | ".join(dict.fromkeys(each_where for each_where in (each.run_where, each.ref_where) if each_where))
    tail = f"   ({where})" if where else ""
    note = f"   {each.note}" if each.note else ""
    text = Text(f"{each.likely:>3}  {each.code:<18}", style=_STYLES[each.severity])
    return text.append(one_line(f"{each.says:<{width}}  {both}{tail}{note}"), style="")


def _about(found: JobDiff) -> list[str]:
    counts = ", ".join(f"{count} of {kind}" for kind, count in found.compared.items() if count)
    began = {
        "at the first loss": "The losses differ from the first one on.",
        "later": "The first loss agrees, later ones do not.",
        "never": "The losses agree.",
    }.get(found.began, "")
    return [*([began] if began else []), f"Compared: {counts}.", *found.notes]
