"""Options that several verbs have in common, worded once."""

from __future__ import annotations

from typing import Annotated

import typer

LATEST = "runs/latest"
"""Where `trueline run` writes unless it is told otherwise, and where a Run is read that is not named."""
RunPath = Annotated[str, typer.Argument(help="The Run's directory.", metavar="RUN")]
RunPaths = Annotated[list[str] | None, typer.Argument(help=f"Directories of Runs, by default {LATEST}.", metavar="RUN")]
Names = Annotated[
    str | None,
    typer.Option(
        "--map",
        help="What one Run calls otherwise than the other: a file, a built-in map, or 'module.='.",
        metavar="FILE",
    ),
]
Steps = Annotated[
    list[int] | None, typer.Option("--step", help="Only this step; may be given again.", metavar="N", min=0)
]
Ranks = Annotated[
    list[int] | None, typer.Option("--rank", help="Only this rank; may be given again.", metavar="R", min=0)
]
Ref = Annotated[str | None, typer.Option(help="Compare with this Run too, as `trueline compare` does.", metavar="RUN")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
