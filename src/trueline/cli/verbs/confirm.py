"""`trueline confirm`: say that something unusual is meant."""

from __future__ import annotations

from typing import Annotated

import typer


def command(
    run: Annotated[str, typer.Argument(help="The Run's directory.", metavar="RUN")],
    ids: Annotated[list[str], typer.Argument(help="What `check` calls it.", metavar="ID")],
) -> None:
    """Say that what `check` has to confirm is meant: it says nothing of it from then on.

    The next job remembers it where its plan has the key `confirmed`; the command is printed.

    Example: trueline confirm runs/a unusual.rate-zero
    """
    from rich.text import Text

    from trueline.cli.lines import print_advice, screen
    from trueline.cli.waiting import waiting
    from trueline.judge.actions import Commands
    from trueline.judge.check_run import check
    from trueline.schema.errors import InputError
    from trueline.schema.text.plan_options import options_of
    from trueline.schema.text.words import listed
    from trueline.store.plan_change import confirm, confirmed_ids, plan_in_force
    from trueline.store.reader import Run

    opened = Run(run)
    with waiting(f"Checking {run}"):
        open_ids = [finding.id for finding in check(opened).to_confirm]
    missing = [name for name in ids if name not in {*open_ids, *confirmed_ids(opened)}]
    if missing:
        has = f"It has {listed(open_ids)}" if open_ids else "It has nothing to confirm"
        raise InputError(f"Nothing to confirm in Run '{run}' is called '{missing[0]}'. {has}.")
    confirm(opened, ids)
    options = options_of(plan_in_force(opened).model_copy(update={"confirmed": tuple(sorted(confirmed_ids(opened)))}))
    commands = Commands(run, tuple(opened.manifest.argv))
    console = screen()
    console.print(f"Confirmed: {listed(ids)}.", markup=False, highlight=False)
    if unconfirmed := [name for name in open_ids if name not in ids]:
        console.print(f"Left to confirm: {listed(unconfirmed)}.", markup=False, highlight=False)
    print_advice(console, Text(commands.filled(f"In the next job: `trueline run {options} -- COMMAND`")), indent=0)
