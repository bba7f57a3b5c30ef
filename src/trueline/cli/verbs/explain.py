"""`trueline explain`: the manual of a check or a cause, and pages for coding agents."""

from __future__ import annotations

from typing import Annotated

import typer

from trueline.cli.options import Json, MaxBytes, Page, bounds_of

SKILL = "skill"
"""In place of a code: the name of a skill follows."""


def command(
    code: Annotated[
        str | None,
        typer.Argument(
            help="The code of a finding, as 'replica-drift', its id, as 'unusual.rate-zero', that of a cause, "
            "'agents', or 'skill'.",
            show_default="a list of all",
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Argument(help="With 'skill': which one.", metavar="[NAME]", show_default="a list of all")
    ] = None,
    json: Json = False,
    max_bytes: MaxBytes = None,
    page: Page = 1,
) -> None:
    """Say what a check finds, why that matters, how it decides, and what it may miss; or what a cause of `trueline
    diagnose` is. `agents` is the page for coding agents and other programs, `skill NAME` one of their skills.

    With --json and no code: all findings, causes, verbs, exit codes and statuses.
    """
    from trueline.cli.json_document import print_bounded
    from trueline.cli.screen import Console
    from trueline.guide import AGENTS, text_of
    from trueline.judge.catalogue import SCHEMA, catalogue, manual_of
    from trueline.schema.errors import InputError

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
    if name is not None and code != SKILL:
        raise InputError(f"`trueline explain {code}` takes no second word, and '{name}' was given. Leave it out.")
    if code in (AGENTS, SKILL):
        title, manual = "", text_of(AGENTS) if code == AGENTS else _skill(name)
    else:
        title, manual = manual_of(code)
    if json:
        entry = {"code": title or name or code, "manual": manual}
        print_bounded({"schema": SCHEMA, "checks": [entry]}, "explain", bounds)
        return
    console = Console(soft_wrap=True)
    if title:
        console.print(title, style="bold")
    console.print(manual, markup=False, highlight=False)


def _skill(name: str | None) -> str:
    """The skill ``name``, or a list of all, a line each."""
    from trueline.guide import described, skills
    from trueline.schema.errors import InputError

    texts = skills()
    if name is None:
        return "\n".join(f"{skill}: {described(text)}" for skill, text in texts.items())
    if name not in texts:
        raise InputError(f"There is no skill '{name}'. There are {', '.join(texts)}.")
    return texts[name]


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
