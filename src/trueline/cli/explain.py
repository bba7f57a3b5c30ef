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

    from trueline.analyze.check_run import COMPARE_CODES
    from trueline.analyze.registry import installed_checks
    from trueline.cli.json_document import print_document
    from trueline.schema.finding import LIVE_CODES

    checks = {check.code: check for check in installed_checks()}
    others = {each: f"{what}\n\nA finding of `trueline compare`." for each, what in COMPARE_CODES.items()} | LIVE_CODES
    manuals = {each: check.manual for each, check in checks.items()}
    if code is not None:
        manuals = {code: (manuals | others)[_known(code, [*manuals, *others])]}
    if json:
        print_document({"schema": 1, "checks": [{"code": each, "manual": what} for each, what in manuals.items()]})
        return
    console = Console(soft_wrap=code is not None)
    if code is None:
        from rich.table import Table

        table = Table("code", "what it finds")
        for each, what in (manuals | others).items():
            table.add_row(each, what.partition("\n")[0])
        console.print(table)
        return
    console.print(code, style="bold")
    console.print(manuals[code], markup=False, highlight=False)


def _known(code: str, codes: list[str]) -> str:
    from difflib import get_close_matches

    from trueline.schema.errors import InputError

    if code in codes:
        return code
    near = get_close_matches(code, codes, n=1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    raise InputError(f"No finding has the code '{code}'. {hint}List all with: trueline explain.")
