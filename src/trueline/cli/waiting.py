"""Shows progress while a command works: a spinner on a terminal, a line every half minute in a log."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator

EVERY_S = 30.0
"""Time between two lines in a log."""


@contextlib.contextmanager
def waiting(activity: str) -> Iterator[Callable[[str], None]]:
    """Show ``activity`` on standard error while the block runs; yields a function that replaces the text."""
    if on_terminal():
        from rich.markup import escape

        from trueline.cli.screen import Console

        with Console(stderr=True).status(escape(activity)) as status:
            yield lambda text: status.update(escape(text))
        return
    news = [activity]
    ended = threading.Event()
    begin = time.monotonic()

    def tell() -> None:
        while not ended.wait(EVERY_S):
            print(f"trueline: {news[0]} ({time.monotonic() - begin:.0f} s)", file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell, name="trueline-waiting", daemon=True)
    teller.start()
    try:
        yield lambda text: news.__setitem__(0, text)
    finally:
        ended.set()
        teller.join()


def on_terminal() -> bool:
    """True if standard error is a terminal, whatever colours a log is asked to have."""
    return sys.stderr.isatty()
