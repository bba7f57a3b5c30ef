"""`trueline verify`: whether the files of a Run are what was written."""

from __future__ import annotations

from typing import Annotated

import typer

from trueline.cli.options import Json


def command(
    run: Annotated[str, typer.Argument(help="The Run's directory.", metavar="RUN")],
    json: Json = False,
) -> None:
    """Read every file of a Run completely, and report what is damaged, missing, or incomplete because a job was killed.

    Exit code 0: whole; 1: damaged, or something is missing; 2: no Run.
    """
    from trueline.cli.json_document import print_document
    from trueline.cli.screen import Console
    from trueline.cli.waiting import waiting
    from trueline.store.verify import verify

    with waiting(f"Reading {run}"):
        verification = verify(run)
    if json:
        print_document(verification.to_json())
    else:
        console = Console(soft_wrap=True)
        console.print(verification.verdict, style="bold", markup=False, highlight=False)
        for line in (
            *(f"{file.state}: {file.file}: {file.why}" for file in verification.files if file.why),
            *verification.missing,
        ):
            console.print(f"  {line}", markup=False, highlight=False)
    raise typer.Exit(verification.exit_code)
