"""`trueline trial bisect`: since which commit or release a finding is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from trueline.cli.trial_options import verb

_MEANS = {
    "confirmed": "the finding is there since the version below",
    "excluded": "",
    "undecided": "since which version the finding is there cannot be told",
}


@verb("bisect", _MEANS)
def command(
    good: Annotated[str, typer.Option(help="A commit, tag, branch or release without the finding.", metavar="REV")],
    bad: Annotated[
        str | None,
        typer.Option(
            help="One that shows it.", metavar="REV", show_default="HEAD, without changes to it; what is installed"
        ),
    ] = None,
    package: Annotated[
        str | None, typer.Option(help="Try releases of this package, and not commits.", metavar="NAME")
    ] = None,
) -> Mapping[str, Any]:
    """Run a training command in checkouts of commits of the repository that it is in, and say since which of them it
    shows a finding. Your own files stay as they are. With --package it is releases of one package, each put before what
    is installed, without what it depends on.

    confirmed: a commit or release, or a few of which but the last cannot be run. Exit code 0: that; 3: undecided.

    Example: trueline trial bisect runs/bad --good v1.2 -- python train.py
    """
    return {"good": good, "bad": bad, "package": package}
