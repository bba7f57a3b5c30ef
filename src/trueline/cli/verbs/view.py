"""`trueline view`: the page, served from this machine."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from trueline.cli.options import LATEST, Ref, RunPaths

if TYPE_CHECKING:
    from trueline.web.serve import Address


def command(
    runs: RunPaths = None,
    ref: Ref = None,
    host: Annotated[
        str, typer.Option(help="Address to listen at; any but this machine's own needs a token of your own.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; where it is in use, the next free one.", min=0, max=65535)] = 8642,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="TRUELINE_VIEW_TOKEN",
            help="Secret in the page's address, instead of a new one; as a variable, others here cannot read it.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Show Runs in a browser, also while they are written: what is wrong, since when, on which ranks, and why.

    A directory of Runs shows all of them, and those that begin in it. Prints the address and serves until Ctrl-C.
    Nothing but these Runs can be read there, and nothing is sent anywhere.
    """
    from contextlib import ExitStack

    from trueline.cli.waiting import waiting
    from trueline.web.required import require_packages

    require_packages()
    paths = runs or [LATEST]
    from trueline.web.serve import serve

    before = signal.signal(signal.SIGTERM, _leave)  # ends what was started, as Ctrl-C does
    with ExitStack() as ending, ExitStack() as reading:
        ending.callback(signal.signal, signal.SIGTERM, before)
        reading.enter_context(waiting(f"Reading {', '.join(paths)}"))

        def tell(address: Address) -> None:
            reading.close()
            if address.busy_port is not None:
                print(f"trueline: port {address.busy_port} is in use; this is the next free one.", file=sys.stderr)
            print(f"Open {address.url} in a browser. Ctrl-C ends it.", flush=True)

        try:
            serve(paths, ref=ref, host=host, port=port, token=token, ready=tell)
        except KeyboardInterrupt:
            return


def _leave(number: int, frame: object) -> NoReturn:
    sys.exit(128 + number)
