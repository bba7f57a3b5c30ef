"""`trueline gallery`: trains every fault and its healthy twin, and scores what is reported of both."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trueline.cli.options import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gallery.entry import Entry
    from gallery.scoring import Score


def command(
    only: Annotated[
        str, typer.Option(help="Ids with commas between: D1 (with its variants), R3.fsdp, healthy.", metavar="ID,…")
    ] = "",
    keep: Annotated[Path | None, typer.Option(help="Keep the Runs here: DIR/ID/faulty, /healthy, /reference.")] = None,
    from_outside: Annotated[
        bool, typer.Option("--from-outside", help="Watch without the loops' own calls, as `trueline run` does.")
    ] = False,
    json: Json = False,
) -> None:
    """Train small models with faults that people really had, on 1 to 4 local ranks, and score what is reported.

    Faults between two runs are compared with a reference run. Each fault has a healthy twin that must stay silent, and
    there are healthy controls. Exit code 0: every fault was found at its place and no healthy run raised an alarm; 1
    otherwise.
    """
    import tempfile

    _find_checkout()
    from gallery.entry import chosen_entries

    entries = chosen_entries([name.strip() for name in only.split(",") if name.strip()])
    if keep is not None:
        _require_empty(keep)
        scores = _scores(entries, keep, explicit=not from_outside)
    else:
        with tempfile.TemporaryDirectory(prefix="trueline-gallery-") as folder:
            scores = _scores(entries, Path(folder), explicit=not from_outside)
    _print_document(scores) if json else _print_table(scores)
    raise typer.Exit(0 if all(score.green for score in scores) else 1)


def _find_checkout() -> None:
    """Let Python import the gallery, which is not installed; raises ``InputError`` outside of a checkout."""
    import sys

    from trueline.schema.errors import InputError

    root = Path(__file__).parents[4]
    if not (root / "gallery" / "entry.py").exists():
        raise InputError(
            "The gallery is part of Trueline's sources and is not installed with it. Clone the repository, "
            "`pip install -e .` there, and run `trueline gallery` again."
        )
    # at the end: nothing of the checkout may stand in for an installed module
    if str(root) not in sys.path:
        sys.path.append(str(root))


def _require_empty(folder: Path) -> None:
    from trueline.schema.errors import RunExistsError

    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise RunExistsError(f"'{folder}' already holds something. Pass --keep a folder that is empty or new.")


def _scores(entries: Sequence[Entry], folder: Path, *, explicit: bool) -> list[Score]:
    from itertools import count

    from gallery.scoring import run_gallery

    from trueline.cli.waiting import waiting

    number = count(1)
    with waiting(f"Gallery: 0 of {len(entries)}") as say:

        def scored(score: Score) -> None:
            say(f"Gallery: {next(number)} of {len(entries)}, {score.id} was the last")

        return run_gallery(entries, folder, explicit=explicit, heard=scored)


def _print_document(scores: Sequence[Score]) -> None:
    import json
    from dataclasses import asdict

    from gallery.scoring import summary

    entries = [{**asdict(score), "green": score.green} for score in scores]
    print(json.dumps({"schema": 1, "summary": summary(scores), "entries": entries}, indent=1))


def _print_table(scores: Sequence[Score]) -> None:
    from gallery.scoring import summary
    from rich.table import Table
    from rich.text import Text

    from trueline.cli.lines import screen

    console = screen()
    table = Table(
        "entry", "what", "found", "at its place", "delay", "cause", "healthy run", box=None, header_style="bold"
    )
    for score in scores:
        table.add_row(*(Text(cell) for cell in _cells(score)), style="" if score.green else "red")
    console.print(table)
    for score in scores:
        _print_troubles(console, score)
    console.print(_sentence(summary(scores)), highlight=False)


def _cells(score: Score) -> tuple[str, ...]:
    from trueline.schema.text.words import counted

    spoken = counted(len(score.alarms), "alarm") if score.alarms else "silent"
    healthy = "did not finish" if score.failed_healthy else spoken
    if score.kind == "control":
        return score.id, score.name, "", "", "", "", healthy
    delay = "" if score.delay_steps is None else f"{score.delay_steps} steps"
    return (
        score.id,
        score.name,
        "yes" if score.detected else f"not {', '.join(score.missed)}",
        "yes" if score.localised else "no",
        delay,
        score.cause if score.cause_found in ("named", "none") else f"{score.cause_found}: {score.cause}",
        healthy,
    )


def _print_troubles(console: Any, score: Score) -> None:
    lines = [f"healthy run: {alarm}" for alarm in score.alarms]
    if score.kind == "fault" and not (score.detected and score.localised and not score.unexpected):
        lines += [f"planted run: {claim}" for claim in score.claims]
        lines += [
            f"planted run: {code} was not expected; if it is a true consequence, add it to may_find"
            for code in score.unexpected
        ]
    lines += [f"{variant} run did not finish: {_last_word(text)}" for variant, text in score.failures.items()]
    for line in lines:
        console.print(f"{score.id}: {line}", markup=False, highlight=False)


def _last_word(failure: str) -> str:
    """The error that the first rank to fail ended with; ``--json`` has the tracebacks of all."""
    first_rank = failure.split("\nrank ")[1] if "\nrank " in failure else failure
    lines = first_rank.split("\n  its output ended with:")[0].strip().splitlines()
    return lines[-1] if len(lines) > 1 else f"rank {first_rank}" if first_rank is not failure else failure


def _sentence(totals: dict[str, Any]) -> str:
    healthy = f"{totals['false_alarms']} false alarms in {totals['controls']} healthy runs"
    failed = f"; {totals['failed']} runs did not finish" if totals["failed"] else ""
    if not totals["faults"]:
        return f"{healthy}{failed}."
    return (
        f"{totals['faults']} independent faults: {totals['detected']:.0%} detected, "
        f"{totals['localised']:.0%} at their place; "
        f"cause named for {totals['cause_named']:.0%}, wrong for {totals['wrong_cause']:.0%}; {healthy}{failed}."
    )
