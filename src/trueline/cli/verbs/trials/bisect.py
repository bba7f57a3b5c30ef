"""`trueline trial bisect`: since which commit or release a finding is there."""

from __future__ import annotations

from typing import Annotated

import typer

from trueline.cli.options import Json
from trueline.cli.trial_screen import (
    ERROR,
    MOST,
    TIMEOUT,
    Code,
    DryRun,
    Error,
    Keep,
    Most,
    Out,
    RunOf,
    Seed,
    Steps,
    Timeout,
    Words,
)

_MEANS = {
    "confirmed": "the finding is there since the version below",
    "excluded": "",
    "undecided": "since which version the finding is there cannot be told",
}


def command(
    run: RunOf,
    good: Annotated[str, typer.Option(help="A commit, tag, branch or release without the finding.", metavar="REV")],
    words: Words = None,
    bad: Annotated[
        str | None,
        typer.Option(
            help="One that shows it.", metavar="REV", show_default="HEAD, without changes to it; what is installed"
        ),
    ] = None,
    package: Annotated[
        str | None, typer.Option(help="Try releases of this package, and not commits.", metavar="NAME")
    ] = None,
    code: Code = None,
    error: Error = ERROR,
    runs: Most = MOST,
    steps: Steps = None,
    timeout: Timeout = TIMEOUT,
    out: Out = "trials/bisect",
    seed: Seed = 0,
    keep: Keep = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Run a training command in checkouts of commits of the repository that it is in, and say since which of them it
    shows a finding. Your own files stay as they are. With --package it is releases of one package, each put before what
    is installed, without what it depends on.

    confirmed: a commit or release, or a few of which but the last cannot be run. Exit code 0: that; 3: undecided.

    Example: trueline trial bisect runs/bad --good v1.2 -- python train.py
    """
    from trueline.cli.trial_screen import run_and_print
    from trueline.trials import start

    asked = start.Asked("bisect", run, words or (), code, error, runs, steps, timeout, out, seed, keep)
    prepared = start.bisect(asked, good=good, bad=bad, package=package)
    run_and_print(asked, prepared, means=_MEANS, dry_run=dry_run, json=json)
