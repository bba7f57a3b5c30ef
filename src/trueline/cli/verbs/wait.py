"""`trueline wait`: block until a Run shows something."""

from __future__ import annotations

from typing import Annotated

import typer

from trueline.cli.options import LATEST, RunPath

MAX_BYTES = 2000
"""Bytes of the document: a program that waits reads it whole."""


def command(
    run: RunPath = LATEST,
    until: Annotated[
        str,
        typer.Option(
            help="What to wait for: finding (an error or a warning), confirm (that, or anything to confirm), end (of "
            "the job), step:N (every rank has written step N).",
            metavar="finding|confirm|end|step:N",
        ),
    ] = "finding",
    timeout: Annotated[float, typer.Option(help="Wait at most so long.", metavar="SECONDS", min=0)] = 3600.0,
) -> None:
    """Block until a Run shows something, and print one JSON document of at most 2,000 bytes.

    The Run need not have begun: a place that is empty, or not there, is waited for, too, also in an object store. The
    end of the job ends waiting, whatever is waited for.

    Exit code 1: an error or a warning is there, or with `--until confirm` something to confirm; 0: what was waited for
    came, or the job ended without a finding, and enough was judged; 2: no Run can come there; 3: cannot tell, as time
    is over, or the job ended before step N. Nothing found in time is 3, and never 0.

    Example: trueline wait runs/latest --until finding --timeout 600
    """
    from trueline.cli.json_document import print_document
    from trueline.cli.waiting import waiting
    from trueline.judge.awaited import Until, wait_for
    from trueline.render.bounded import ORDERS, page_of

    condition = Until.parse(until)
    with waiting(f"Waiting at {run} for {condition.words}"):
        awaited = wait_for(run, condition, timeout_s=timeout)
    document = page_of(awaited.to_json(), ORDERS["wait"], max_bytes=MAX_BYTES)
    # what does not fit is read by other verbs
    print_document({key: value for key, value in document.items() if key not in ("page", "next_page")}, compact=True)
    raise typer.Exit(awaited.exit_code)
