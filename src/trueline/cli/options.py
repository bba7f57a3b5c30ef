"""Options that several verbs have in common, worded once."""

from __future__ import annotations

from dataclasses import dataclass
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
MaxBytes = Annotated[
    int | None,
    typer.Option(
        help="With --json: print a page of at most so many bytes, what matters most first.", metavar="N", min=1
    ),
]
Page = Annotated[int, typer.Option(help="With --max-bytes: which page.", metavar="P", min=1)]


@dataclass(frozen=True, slots=True)
class Bounds:
    """A page of a document; ``max_bytes`` is None for all of it."""

    max_bytes: int | None = None
    page: int = 1


def bounds_of(max_bytes: int | None, page: int, *, json: bool) -> Bounds:
    """What the options ask for. Raises ``InputError`` for such as contradict each other, before anything is read."""
    from trueline.schema.errors import InputError

    if max_bytes is not None and not json:
        raise InputError("--max-bytes bounds the document of --json. Pass --json too.")
    if max_bytes is None and page != 1:
        raise InputError(f"--page {page} takes --max-bytes: how large are pages?")
    return Bounds(max_bytes, page)
