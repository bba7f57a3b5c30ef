"""`trueline explain`: the manual of a check or a cause, and pages for coding agents."""

from __future__ import annotations

from typing import Annotated

import typer

from trueline.cli.options import Json, MaxBytes, Page, bounds_of


def command(
    code: Annotated[
        str | None,
        typer.Argument(
            help="The code of a finding, as 'replica-drift', its id, as 'unusual.rate-zero', that of a cause, or "
            "'agents'.",
            show_default="a list of all",
        ),
    ] = None,
    json: Json = False,
    max_bytes: MaxBytes = None,
    page: Page = 1,
) -> None:
    """Say what a check finds, why that matters, how it decides, and what it may miss; or what a cause of `trueline
    diagnose` is. `agents` is the page for coding agents and other programs.

    With --json and no code: all findings, causes, verbs, exit codes and statuses.
    """
    from trueline.cli.json_document import print_bounded
    from trueline.cli.screen import Console
    from trueline.guide import AGENTS, text_of
    from trueline.judge.catalogue import SCHEMA, catalogue, manual_of

    # before the catalogue is made, which takes a second
    bounds = bounds_of(max_bytes, page, json=json)
    if code is None:
        if json:
            from trueline.cli.help_texts import readable, verbs_of
            from trueline.cli.main import app

            # the command that runs has the options of its own verb alone
            verbs = verbs_of(readable(typer.main.get_command(app)))
            print_bounded(catalogue() | {"verbs": verbs}, "explain", bounds)
        else:
            _print_list()
        return
    name, manual = (code, text_of(AGENTS)) if code == AGENTS else manual_of(code)
    if json:
        print_bounded({"schema": SCHEMA, "checks": [{"code": name, "manual": manual}]}, "explain", bounds)
        return
    console = Console(soft_wrap=True)
    if name != AGENTS:
        console.print(name, style="bold")
    console.print(manual, markup=False, highlight=False)


def _print_list() -> None:
    from rich.table import Table

    from trueline.cli.screen import Console
    from trueline.judge.catalogue import manuals_of_checks, manuals_of_others
    from trueline.judge.facts.unusual import manuals_of_marks
    from trueline.schema.finding import UNUSUAL

    table = Table("code", "what it finds")
    for code, manual in (manuals_of_checks() | manuals_of_others() | {UNUSUAL: manuals_of_marks()[UNUSUAL]}).items():
        table.add_row(code, manual.partition("\n")[0])
    Console().print(table)
