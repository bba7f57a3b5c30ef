"""`trueline info`: what is in a Run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from trueline.cli.options import LATEST, Json, RunPath

if TYPE_CHECKING:
    from trueline.cli.screen import Console
    from trueline.store.reader import Run

FEW_ROWS = 3
"""Rows of an answer that are shown whole where the screen has no room for all columns."""

WIDEST = 40
"""Characters of a value beyond which a column is no wider: it is folded."""


def command(
    run: RunPath = LATEST,
    sql: Annotated[
        str | None,
        typer.Option(help="Ask with DuckDB's SQL; tables: `workers`, one row per step and rank, `records`."),
    ] = None,
    site: Annotated[
        str | None,
        typer.Option(help="List recorded rows: a site, or a glob over names or phase/name#call:slot.", metavar="GLOB"),
    ] = None,
    step: Annotated[int | None, typer.Option(help="With --site: of this step only.")] = None,
    rank: Annotated[int | None, typer.Option(help="With --site: of this rank only.")] = None,
    stacks: Annotated[bool, typer.Option("--stacks", help="With --site: the call stacks too.")] = False,
    json: Json = False,
) -> None:
    """Show what is in a Run: its ranks, steps, columns, recorded steps, what could not be watched and what is damaged.

    In JSON, numbers that it has no form for are the texts "NaN", "Infinity" and "-Infinity"; null is not measured.
    """
    from trueline.cli.json_document import print_document
    from trueline.cli.waiting import waiting
    from trueline.store.reader import Run
    from trueline.store.summary import summarize

    _check_options(sql, site, step, rank, stacks=stacks)
    with waiting(f"Reading {run}"):
        opened = Run(run)
    if sql is not None:
        _answer(opened, sql, json=json)
    elif site is not None:
        _list_sites(opened, site, step, rank, stacks=stacks, json=json)
    elif json:
        print_document(summarize(opened))
    else:
        _print_summary(summarize(opened))


def _check_options(sql: str | None, site: str | None, step: int | None, rank: int | None, *, stacks: bool) -> None:
    from trueline.schema.errors import InputError

    if sql is not None and site is not None:
        raise InputError("--sql and --site ask for different things. Pass one of them.")
    if site is None and (step is not None or rank is not None or stacks):
        raise InputError("--step, --rank and --stacks choose among the rows of --site. Pass --site too, such as '*'.")


def _answer(run: Run, sql: str, *, json: bool) -> None:
    from trueline.cli.json_document import print_document

    names, rows = run.query_named(sql)
    if json:
        print_document({"columns": names, "rows": rows})
    else:
        _print_rows(names, rows)


def _list_sites(run: Run, site: str, step: int | None, rank: int | None, *, stacks: bool, json: bool) -> None:
    from trueline.cli.json_document import print_document
    from trueline.cli.record_tables import print_sites
    from trueline.schema.files.run_manifest import SCHEMA_VERSION
    from trueline.store.records.record_summary import list_sites

    rows = list_sites(run, site, step=step, rank=rank, stacks=stacks)
    if json:
        print_document({"schema": SCHEMA_VERSION, "run": run.path, "rows": rows})
    else:
        print_sites(rows)


def _print_rows(names: list[str], rows: list[tuple[Any, ...]]) -> None:
    """As a table where it fits; else, of few rows, each as a block of lines, and of many those columns that fit."""
    from trueline.cli.lines import screen

    console = screen()
    widths = [_width(name, [row[index] for row in rows]) for index, name in enumerate(names)]
    fitting = _fitting(widths, console.width)
    if fitting == len(names):
        _print_table(console, names, rows)
    elif len(rows) <= FEW_ROWS:
        _print_blocks(console, names, rows)
    else:
        _print_table(console, names[:fitting], [row[:fitting] for row in rows])
        columns_left = ", ".join(names[fitting:])
        _print_line(
            console, f"{len(names) - fitting} of {len(names)} columns do not fit and are left out: {columns_left}."
        )
        _print_line(
            console, f"Select some of them by name, add `limit {FEW_ROWS}` to see rows whole, or --json for all."
        )


def _width(name: str, values: list[Any]) -> int:
    """Characters of a column on the screen, without its frame."""
    lines = [line for value in values if value is not None for line in str(value).splitlines()]
    return max(len(name), min(max(map(len, lines), default=0), WIDEST))


def _fitting(widths: list[int], room: int) -> int:
    """Number of columns, from the first on and at least one, that fit into so many characters with their frames."""
    # rich draws a bar and two blanks around each column, and a bar at the end
    ends = [sum(widths[: count + 1]) + 3 * (count + 1) + 1 for count in range(len(widths))]
    return max(sum(end <= room for end in ends), 1)


def _print_blocks(console: Console, names: list[str], rows: list[tuple[Any, ...]]) -> None:
    """A block for each row: names on the left, what is null in one line below."""
    name_width = max(map(len, names))
    for number, row in enumerate(rows, 1):
        _print_line(console, f"{chr(10) if number > 1 else ''}Row {number} of {len(rows)}")
        for name, value in zip(names, row, strict=True):
            if value is not None:
                # one line a value, whatever it holds
                text = " ".join(str(value).split())
                room = max(console.width - name_width - 4, WIDEST)
                _print_line(console, f"  {name:{name_width}}  {text if len(text) <= room else text[: room - 1] + '…'}")
        empty = [name for name, value in zip(names, row, strict=True) if value is None]
        if empty:
            _print_line(console, f"  null: {', '.join(empty)}")


def _print_line(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False)


def _print_table(console: Console, names: list[str], rows: list[tuple[Any, ...]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table()
    for name in names:
        table.add_column(Text(name))
    for row in rows:
        table.add_row(*(Text("" if value is None else str(value)) for value in row))
    console.print(table)


def _print_summary(summary: dict[str, Any]) -> None:
    from trueline.cli.lines import screen
    from trueline.cli.record_tables import print_records

    console = screen()
    _print_head(console, summary)
    _print_ranks(console, summary["ranks"])
    _print_columns(console, summary["columns"])
    if summary["records"] is not None:
        print_records(console, summary["records"])
    for title, lines in (
        ("Not watched", summary["manifest"]["notes"]),
        ("Findings while it ran", [finding["claim"] for finding in summary["findings"]]),
        ("Skipped or missing", summary["problems"]),
    ):
        if lines:
            console.print(f"\n{title}:", style="bold")
        for line in lines:
            console.print(f"  {line}", markup=False, highlight=False)


def _print_head(console: Console, summary: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    manifest, steps = summary["manifest"], summary["steps"]
    source = manifest["source"]
    span = f" ({steps['first']} to {steps['last']})" if steps["count"] else ""
    facts = {
        "Run": summary["run"],
        "Started": manifest["started_at"],
        "Started again": ", ".join(f"at step {again['step']}" for again in manifest["attempts"][1:]),
        "Command": " ".join(manifest["command"]),
        "Imported from": f"{source['format']} {source['path']}" if {"format", "path"} <= set(source) else "",
        "Watched by": ""
        if source
        else f"Trueline {manifest['trueline_version']}, adapter {manifest['adapter'] or 'unknown'}",
        "Workers": str(manifest["world_size"]),
        "Model": manifest["model"],
        "Further models": ", ".join(f"{name} (trueline info {path})" for name, path in summary["models"].items()),
        "Steps": f"{steps['count']}{span}",
    }
    grid = Table.grid(padding=(0, 2))
    for name, fact in facts.items():
        if fact:
            grid.add_row(Text(name, style="bold"), Text(fact))
    console.print(grid)


def _print_ranks(console: Console, ranks: list[dict[str, Any]]) -> None:
    from rich.table import Table
    from rich.text import Text

    if not ranks:
        return
    table = Table("rank", "steps", "host", "device", "parameters", "state", title="Ranks", title_justify="left")
    for rank in ranks:
        steps = rank["steps"]
        span = f"{steps['count']} ({steps['first']} to {steps['last']})" if steps["count"] else "none"
        state = "closed" if rank["closed"] else "open: writing or killed"
        facts = [rank["hostname"], rank["device"], rank["params"]]
        table.add_row(str(rank["rank"]), span, *(Text("" if fact is None else str(fact)) for fact in facts), state)
    console.print(table)


def _print_columns(console: Console, columns: list[dict[str, Any]]) -> None:
    from rich.table import Table

    if not columns:
        console.print("No rows of workers yet.")
        return
    table = Table("column", "measured", "unit", "meaning", title="Columns", title_justify="left")
    for column in columns:
        table.add_row(column["name"], str(column["measured"]), column["unit"], column["meaning"])
    console.print(table)
