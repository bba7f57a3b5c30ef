"""`trueline explain`: the manual of a check."""

from __future__ import annotations

from typing import Annotated

import typer

from trueline.cli.options import Json


def command(
    code: Annotated[
        str | None, typer.Argument(help="The code of a finding, as 'replica-drift'.", show_default="a list of all")
    ] = None,
    json: Json = False,
) -> None:
    """Say what a check finds, why that matters, how it decides, and what it may miss."""
    from rich.console import Console

    from trueline.analyze.registry import installed_checks
    from trueline.cli.json_document import print_document

    checks = {check.code: check for check in installed_checks()}
    chosen = list(checks.values()) if code is None else [checks[_known(code, list(checks))]]
    if json:
        print_document({"schema": 1, "checks": [{"code": each.code, "manual": each.manual} for each in chosen]})
        return
    console = Console(soft_wrap=code is not None)
    if code is None:
        from rich.table import Table

        table = Table("code", "what it finds")
        for each in chosen:
            table.add_row(each.code, each.summary)
        console.print(table)
        return
    console.print(code, style="bold")
    console.print(chosen[0].manual, markup=False, highlight=False)


def _known(code: str, codes: list[str]) -> str:
    from difflib import get_close_matches

    from trueline.schema.errors import InputError

    if code in codes:
        return code
    near = get_close_matches(code, codes, n=1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    raise InputError(f"No check that is installed has the code '{code}'. {hint}List all with: trueline explain.")
