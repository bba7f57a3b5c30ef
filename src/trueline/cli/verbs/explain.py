"""`trueline explain`: the manual of a check or a cause."""

from __future__ import annotations

from typing import Annotated

import typer

from trueline.cli.options import Json


def command(
    code: Annotated[
        str | None,
        typer.Argument(
            help="The code of a finding, as 'replica-drift', its id, as 'unusual.rate-zero', or that of a cause.",
            show_default="a list of all",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Say what a check finds, why that matters, how it decides, and what it may miss; or what a cause of `trueline
    diagnose` is.
    """
    from trueline.cli.json_document import print_document
    from trueline.cli.screen import Console
    from trueline.judge.causes.library import known_causes
    from trueline.judge.facts.unusual import manuals_of_marks
    from trueline.judge.registry import installed_checks
    from trueline.schema.finding import LIVE_CODES, UNUSUAL
    from trueline.schema.law import installed_laws

    checks = {check.code: check for check in installed_checks()}
    other_manuals = {
        code_named: f"{facts.manual}\n\nA finding of `{law.command}`."
        for law in installed_laws()
        for code_named, facts in law.findings.items()
    } | LIVE_CODES
    manuals = {code_named: check.manual for code_named, check in checks.items()}
    causes = {
        cause.slug: f"{cause.manual}\n\nWhat settles it\n---------------\n{cause.settles}" for cause in known_causes()
    }
    if code is not None:
        manual_by_code = causes | manuals | other_manuals | manuals_of_marks()
        code = _require_code(code, [*manual_by_code])
        manuals = {code: manual_by_code[code]}
    if json:
        print_document(
            {"schema": 1, "checks": [{"code": code_named, "manual": manual} for code_named, manual in manuals.items()]}
        )
        return
    console = Console(soft_wrap=code is not None)
    if code is None:
        from rich.table import Table

        table = Table("code", "what it finds")
        for code_named, manual in (manuals | other_manuals | {UNUSUAL: manuals_of_marks()[UNUSUAL]}).items():
            table.add_row(code_named, manual.partition("\n")[0])
        console.print(table)
        return
    console.print(code, style="bold")
    console.print(manuals[code], markup=False, highlight=False)


def _require_code(code: str, codes: list[str]) -> str:
    """The one of ``codes`` that ``code``, or the id of a finding, has. Raises ``InputError`` where there is none."""
    from difflib import get_close_matches

    from trueline.schema.errors import InputError
    from trueline.schema.finding import UNUSUAL

    # an id is the code, and the kind of what was found or a digest
    for name in (code, code.partition(".")[0]):
        if name in codes and (name == code or name != UNUSUAL):
            return name
    near = get_close_matches(code, codes, n=1)
    hint = f"Did you mean '{near[0]}'? " if near else ""
    raise InputError(f"No finding or cause is called '{code}'. {hint}List all with: trueline explain.")
