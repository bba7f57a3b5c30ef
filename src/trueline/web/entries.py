"""What the page shows, and the files that it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from trueline.schema.errors import InputError
from trueline.web.html_document import version
from trueline.web.watched_run import WatchedRun

Screen = Literal["overview", "trend", "settings", "step", "compare"]


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One of the Runs that the page shows, and the screens that there are about it; ``is_ref`` where another one is
    compared with it.
    """

    id: int
    name: str
    path: str
    ref: str | None
    is_ref: bool
    screens: tuple[Screen, ...]


@dataclass(frozen=True, slots=True)
class Runs:
    """All of them, and the version of Trueline."""

    runs: tuple[RunEntry, ...]
    version: str


def runs_of(runs: Sequence[WatchedRun], *, served: bool) -> Runs:
    """The Runs; recorded steps and comparisons are shown where they are ``served``."""
    entries: list[RunEntry] = []
    references = {watched.ref for watched in runs}
    for number, watched in enumerate(runs):
        screens: list[Screen] = ["overview", "trend", "settings"]
        if served and watched.run.has_records:
            screens.append("step")
        if served and watched.ref is not None:
            screens.append("compare")
        entries.append(
            RunEntry(number, watched.name, watched.run.path, watched.ref, watched.path in references, tuple(screens))
        )
    return Runs(tuple(entries), version())


def asset(name: str) -> bytes:
    """A file of the page, as it was built. Raises ``InputError`` for any other."""
    assets = {file.name: file for file in files("trueline.web").joinpath("assets").iterdir() if file.is_file()}
    if name not in assets:
        raise InputError(f"The page has no file '{name}'.")
    return assets[name].read_bytes()
