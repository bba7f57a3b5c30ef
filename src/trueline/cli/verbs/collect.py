"""`trueline collect`: one Run of what ranks wrote on disks of their own."""

from __future__ import annotations

from typing import Annotated

import typer

from trueline.cli.options import Json


def command(
    places: Annotated[
        list[str],
        typer.Argument(help="What was --out on each machine, then where to put the whole Run.", metavar="SRC... DST"),
    ],
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on until the ranks have ended, for a job that is running.")
    ] = False,
    every: Annotated[float, typer.Option(help="With --follow: seconds between two looks.", min=0.1)] = 30.0,
    rate: Annotated[float | None, typer.Option(help="Copy at most so many MiB a second.", min=0.001)] = None,
    json: Json = False,
) -> None:
    """Bring together in one Run what the ranks of a job wrote on disks of their own. Run it again at any time.

    Only what is new is copied, each file is read back, and nothing is changed at SRC. DST may be a directory, or a URL
    such as s3://bucket/run, which every command reads.

    Exit code 0: all ranks are there; 1: some are missing, or rows of one are damaged or missing; 2: nothing could be
    collected.
    """
    from trueline.cli.json_document import print_document
    from trueline.cli.screen import Console
    from trueline.cli.waiting import waiting
    from trueline.schema.errors import InputError, RunError
    from trueline.schema.text.reading import why
    from trueline.store.collect import collect, ended, follow_until

    if len(places) < 2:
        raise InputError("One place was given. Pass what was --out on each machine, then where to put the whole Run.")
    *sources, into = places
    max_bytes_per_s = None if rate is None else rate * 2**20
    try:
        if follow:  # for days, perhaps: nothing to wait for
            follow_until(
                lambda: ended(sources),
                sources,
                into,
                every_s=every,
                tell=lambda line: typer.echo(f"trueline: {line}", err=True),
                max_bytes_per_s=max_bytes_per_s,
            )
        with waiting(f"Collecting into {into}"):
            collected = collect(sources, into, max_bytes_per_s=max_bytes_per_s)
    except OSError as error:
        raise RunError(f"Collecting stopped: {why(error)}. What was copied stays; run the command again.") from None
    if json:
        print_document(collected.to_json())
    else:
        console = Console(soft_wrap=True)
        console.print(collected.verdict, style="bold", markup=False, highlight=False)
        for line in collected.problems:
            console.print(f"  {line}", markup=False, highlight=False)
        if collected.unclosed:
            from trueline.schema.text.words import capitalized, ranks_text

            line = (
                f"{capitalized(ranks_text(collected.unclosed))} had not ended (or were killed) when these were copied."
            )
            console.print(f"  {line}", markup=False, highlight=False)
        if collected.exit_code == 0:
            console.print(f"Next: trueline check {into}", markup=False, highlight=False)
    raise typer.Exit(collected.exit_code)
