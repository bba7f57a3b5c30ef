"""What the page shows, and the files that it is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Literal

from trueline.schema.errors import InputError
from trueline.web.html_document import version
from trueline.web.watched_run import WatchedRun

Shown = Literal["triage", "trend", "settings", "step", "compare"]


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
    screens: tuple[Shown, ...]


@dataclass(frozen=True, slots=True)
class Runs:
    """All of them, and the version of Trueline."""

    runs: tuple[RunEntry, ...]
    version: str


def runs_of(runs: Sequence[WatchedRun], *, served: bool) -> Runs:
    """The Runs; recorded steps and comparisons are shown where they are ``served``."""
    entries: list[RunEntry] = []
    references = {each.ref for each in runs}
    for number, each in enumerate(runs):
        screens: list[Shown] = ["triage", "trend", "settings"]
        if served and each.run.has_records:
            screens.append("step")
        if served and each.ref is not None:
            screens.append("compare")
        entries.append(RunEntry(number, each.name, each.run.path, each.ref, each.path in references, tuple(screens)))
    return Runs(tuple(entries), version())


def asset(name: str) -> bytes:
    """A file of the page, as it was built. Raises ``InputError`` for any other."""
    found = {each.name: each for each in files("trueline.web").joinpath("assets").iterdir() if each.is_file()}
    if name not in found:
        raise InputError(f"The page has no file '{name}'.")
    return found[name].read_bytes()
