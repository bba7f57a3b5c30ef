"""`trueline plan`: what a Run observes, and what it shall observe from now on."""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trueline.cli.options import Json
from trueline.cli.plan_keys import key_and_value

if TYPE_CHECKING:
    from trueline.schema.plan import Plan
    from trueline.store.reader import Run


def command(
    run: Annotated[str, typer.Argument(help="The Run's directory.", metavar="RUN")],
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Change a key while the job runs; may be given again. KEY= is its default.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Show the Plan that is in force in a Run, or change it while its job runs.

    A change is taken up by all ranks at the same step: two sampled steps after the first rank has seen it.

    Example: trueline plan runs/a --set preset=mix --set steps=120:125
    """
    from trueline.cli.json_document import print_document
    from trueline.schema.files.plan_files import plan_path
    from trueline.store.plan_change import change_plan
    from trueline.store.reader import Run

    opened = Run(run)
    path = plan_path(os.fspath(opened.path))
    if changes:
        change_plan(opened, dict(map(key_and_value, changes)), asker="--set")
    document = _document(opened, path)
    print_document(document) if json else _print(document)


def _document(run: Run, path: str) -> dict[str, Any]:
    """The document of `--json`; ``asked`` are the keys of plan.json that have another value than the Plan in force, and
    ``refused`` says why they cannot be taken up.
    """
    from trueline.schema.files.run_manifest import SCHEMA_VERSION
    from trueline.store.plan_change import plan_in_force

    in_force, plans = plan_in_force(run), run.manifest.plans
    changes, refused = _changes_asked(in_force, path)
    return {
        "schema": SCHEMA_VERSION,
        "run": run.path,
        "running": bool(run.unclosed),
        "revision": plans[-1].revision if plans else 0,
        "since_step": plans[-1].step if plans else 0,
        "plan": in_force.model_dump(mode="json"),
        "asked": changes,
        "refused": refused,
        "history": [{"revision": 0, "step": 0, "plan": run.manifest.plan}, *(entry.model_dump() for entry in plans)],
    }


def _changes_asked(in_force: Plan, path: str) -> tuple[dict[str, Any], str | None]:
    """Keys that plan.json asks for beyond what is in force, and why that cannot be; none where there is no file."""
    from trueline.schema.errors import PlanError
    from trueline.schema.files.plan_files import read_changes

    if not os.path.isfile(path):
        return {}, None
    try:
        changes = read_changes(path)
        revised = in_force.revised(changes, "plan.json").model_dump(mode="json")
    except PlanError as error:
        return {}, str(error)
    return {key: revised[key] for key, value in in_force.model_dump(mode="json").items() if revised[key] != value}, None


def _print(document: dict[str, Any]) -> None:
    from rich.table import Table
    from rich.text import Text

    from trueline.cli.lines import screen
    from trueline.schema.plan import LIVE, Plan

    default = Plan().model_dump(mode="json")
    table = Table("key", "in force", "default", "asked for", "may change", box=None, header_style="bold")
    for key, value in document["plan"].items():
        is_default = value == default[key]
        change = _text(document["asked"][key], key) if key in document["asked"] else ""
        cells = (_text(value, key), "" if is_default else _text(default[key], key), change)
        table.add_row(key, *map(Text, cells), "yes" if key in LIVE else "", style=None if is_default else "bold")
    console = screen()
    console.print(f"Plan of {document['run']}", style="bold", markup=False, highlight=False)
    console.print(table)
    for line in _story(document):
        console.print(line, markup=False, highlight=False)


def _story(document: dict[str, Any]) -> list[str]:
    """One line for each change that was taken up, and one on what is not taken up yet."""
    lines: list[str] = []
    history = document["history"]
    for before, after in itertools.pairwise(history):
        changed = {key: value for key, value in after["plan"].items() if before["plan"].get(key) != value}
        settings = ", ".join(f"{key} = {_text(value, key)}" for key, value in changed.items()) or "nothing"
        lines.append(f"Since step {after['step']}: {settings}.")
    if document["refused"]:
        lines.append(f"plan.json is not followed: {document['refused']}")
    if document["asked"]:
        changes = ", ".join(f"{key} = {_text(value, key)}" for key, value in document["asked"].items())
        wait = "not taken up yet" if document["running"] else "never taken up, as the job has ended"
        lines.append(f"plan.json asks for {changes}: {wait}.")
    return lines


def _text(value: Any, key: str = "") -> str:
    """A value as it may stand behind ``--set KEY=``."""
    # as --set takes it, so that it can be copied from here
    if key == "steps":
        return ":".join("" if step is None else str(step) for step in value)
    if value is None:
        return "unset"
    if isinstance(value, list):
        return ", ".join(_text(part) for part in value) or "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
