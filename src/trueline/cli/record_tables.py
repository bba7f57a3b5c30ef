"""Recorded steps as tables for people: `trueline info`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trueline.schema.site import SITE_FORM

if TYPE_CHECKING:
    from trueline.cli.screen import Console

MAX_MODULES = 40
MAX_ROWS = 500


def print_records(console: Console, records: dict[str, Any]) -> None:
    """Print what ``summarize_records`` says."""
    from rich.table import Table
    from rich.text import Text

    steps, last = records["steps"], records["steps"]["last"]
    phases = ", ".join(f"{phase} {count}" for phase, count in records["phases_last_step"].items())
    facts = {
        "Plan": ", ".join(f"{key} {records[key]}" for key in ("preset", "depth") if records[key]),
        "Steps": f"{steps['count']} ({steps['first']} to {last})",
        "Ranks": ", ".join(map(str, records["ranks"])),
        "Sites": f"{records['sites_last_step']} in step {last}",
        "Rows": f"{records['rows_last_step']} in step {last}: {phases}",
        "On disk": ", ".join(f"{folder} {_size(count)}" for folder, count in records["bytes"].items()),
    }
    grid = Table.grid(padding=(0, 2))
    for name, fact in facts.items():
        if fact:
            grid.add_row(Text(name, style="bold"), Text(fact))
    console.print("\nRecorded:", style="bold")
    console.print(grid)
    _print_modules(console, records["modules"], last)


def print_sites(rows: list[dict[str, Any]]) -> None:
    """Print what ``list_sites`` gives, two lines a row; a call stack once for the rows that follow each other on it."""
    from rich.text import Text

    from trueline.cli.lines import screen

    console = screen()
    last_frames: list[str] = []
    for row in rows[:MAX_ROWS]:
        site, facts = Text(row["site"], style="bold"), Text("  ".join(_facts(row)))
        console.print(site, facts, soft_wrap=True)
        console.print(Text("    " + "  ".join(_numbers(row))), soft_wrap=True)
        frames = row.get("frames") or []
        for frame in frames if frames != last_frames else ():
            console.print(Text(f"    {frame}"), soft_wrap=True)
        last_frames = frames
    console.print(Text(f"Sites: {SITE_FORM}", style="dim"))
    if len(rows) > MAX_ROWS:
        console.print(f"… and {len(rows) - MAX_ROWS} more rows. Narrow it with --step and --rank, or take --json.")


def _facts(row: dict[str, Any]) -> list[str]:
    """Facts of the value: dtype, shape and why it has no numbers of its own."""
    shape = "" if row["shape"] is None else "x".join(map(str, row["shape"])) or "scalar"
    reference = "" if row["same_as"] is None else f"same as row {row['same_as']}"
    return [fact for fact in (row["dtype"], shape, row["flags"], reference, row["note"]) if fact]


def _numbers(row: dict[str, Any]) -> list[str]:
    """Numbers that were measured of the value."""
    numbers = [f"{name} {row[name]:.6g}" for name in ("min", "max", "mean", "rms") if row[name] is not None]
    if row["nan"] is not None:
        infinite = row["pos_inf"] + row["neg_inf"]
        numbers += [f"nan {row['nan']}", f"inf {infinite}"]
    return numbers + ([f"fingerprint {row['fingerprint']}"] if row["fingerprint"] else []) or ["not measured"]


def _print_modules(console: Console, modules: list[dict[str, Any]], step: int) -> None:
    from rich.table import Table
    from rich.text import Text

    if not modules:
        return
    table = Table("module", "class", "calls", "ops", title=f"Modules in step {step}, forward", title_justify="left")
    for module in modules[:MAX_MODULES]:
        depth = module["name"].count(".") + 1 if module["name"] else 0
        name = Text("  " * depth + (module["name"].rpartition(".")[2] or "(model)"))
        calls = "" if module["calls"] is None else str(module["calls"])
        table.add_row(name, Text(module["api"] or ""), calls, str(module["ops"] or ""))
    console.print(table)
    if len(modules) > MAX_MODULES:
        console.print(f"… and {len(modules) - MAX_MODULES} more modules; all of them are in --json.")


def _size(num_bytes: int) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if num_bytes >= scale:
            return f"{num_bytes / scale:.1f} {unit}"
    return f"{num_bytes} B"
