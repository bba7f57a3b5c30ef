"""Brings together in one Run what the ranks of a job wrote on disks of their own.

Each file of a Run has one writer, so a Run is the union of what lies on all machines. What never changes (sealed parts,
whose names hold their checksums, and stored values) is copied once; what still grows is copied whole each time. A row
is in a journal or in a part: journals are read first and written last, so that a reader of the copy finds it in one of
the two at any moment.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from trueline.schema.errors import InputError, RunError
from trueline.schema.files.run_lock import living
from trueline.schema.text.reading import why
from trueline.schema.text.words import counted, ranks_text
from trueline.store import file_names
from trueline.store.collecting.belonging import world_size
from trueline.store.collecting.copying import Budget, Work
from trueline.store.collecting.one_run import collect_run
from trueline.store.collecting.sides import NothingYet, Side, open_target, sides_of

SCHEMA = 1
"""Of the document that ``Collected.to_json`` makes."""


@dataclass(frozen=True, slots=True)
class Collected:
    """State of ``run`` now: of ``world_size`` ranks (None: rank 0's files, which say so, are not there yet) these,
    and of which ``unclosed`` were still being written, or killed. ``copied`` files of ``copied_bytes`` were not there
    before, or not as they are now. ``problems`` has a line for each thing that is not as it should be.
    """

    run: str
    ranks: tuple[int, ...]
    world_size: int | None
    unclosed: tuple[int, ...]
    copied: int
    copied_bytes: int
    problems: tuple[str, ...]

    @property
    def missing(self) -> tuple[int, ...]:
        """Ranks of the job of which nothing is there."""
        return tuple(sorted({*range(self.world_size or 0)} - {*self.ranks}))

    @property
    def verdict(self) -> str:
        copied = f"{counted(self.copied, 'file')} ({self.copied_bytes / 2**20:.1f} MiB) copied"
        if self.world_size is None:
            ranks_present = f"only {ranks_text(self.ranks)}" if self.ranks else "no rank"
            return f"No Run yet at '{self.run}': {ranks_present}, and the manifest is where rank 0 writes; {copied}."
        if self.missing:
            return (
                f"Incomplete: {ranks_text(self.missing)} of {self.world_size} left nothing in these places; {copied}."
            )
        return f"Complete: {counted(len(self.ranks), 'rank')} of {self.world_size} in '{self.run}'; {copied}."

    @property
    def exit_code(self) -> int:
        """1 where ranks are missing, or something is not as it should be; else 0."""
        return 1 if self.world_size is None or self.missing or self.problems else 0

    def to_json(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "run": self.run,
            "verdict": self.verdict,
            "ranks": list(self.ranks),
            "world_size": self.world_size,
            "missing": list(self.missing),
            "unclosed": list(self.unclosed),
            "copied": self.copied,
            "copied_bytes": self.copied_bytes,
            "problems": list(self.problems),
        }


def collect(
    sources: Sequence[str | os.PathLike[str]],
    dst: str,
    *,
    max_bytes_per_s: float | None = None,
    reads_again: bool = True,
) -> Collected:
    """Copy to ``dst``, a path or fsspec URL, what it lacks of the ``sources``: Runs, or what ranks of one job left on
    machines without rank 0. Jobs that still write may be collected again and again; nothing is changed at a source.
    With ``reads_again`` parts that were copied before are read at their source, so that damage is named each time.

    Raises ``InputError`` where they are not of one job, or hold different rows of one rank; ``RunError`` where a source
    is no Run or cannot be read, and ``OSError`` where ``dst`` does not take, or does not keep, what it is given.
    """
    sides = sides_of(sources)
    into = open_target(dst, [side.root for side in sides if side.is_local])
    work = Work(Budget(max_bytes_per_s), reads_again)
    # the Run of the first group has no suffix and comes first
    for suffix in sorted({side.suffix for side in sides}):
        alike = [side for side in sides if side.suffix == suffix]
        target = Side(f"{os.fspath(dst).rstrip('/')}{suffix}") if suffix else into
        for folder in sorted({folder for side in alike for folder in side.folders}):
            collect_run([side.at(folder) for side in alike if folder in side.folders], target.at(folder), work)
    # as it was listed before anything was copied
    into = into.fresh()
    ranks, unclosed = into.ranks, into.unclosed
    for suffix in sorted({side.suffix for side in sides if side.suffix}):
        of_group = Side(f"{os.fspath(dst).rstrip('/')}{suffix}")
        ranks, unclosed = ranks | of_group.ranks, unclosed | of_group.unclosed
    manifest = into.document(file_names.MANIFEST)
    return Collected(
        run=into.label,
        ranks=tuple(sorted(ranks)),
        world_size=None if manifest is None else world_size(into, manifest),
        unclosed=tuple(sorted(unclosed)),
        copied=work.copied,
        copied_bytes=work.copied_bytes,
        problems=tuple(dict.fromkeys(work.problems)),
    )


def follow_until(
    is_over: Callable[[], bool],
    sources: Sequence[str],
    dst: str,
    *,
    every_s: float,
    tell: Callable[[str], None],
    max_bytes_per_s: float | None = None,
) -> None:
    """``collect`` every ``every_s`` seconds until ``is_over``. A place that cannot be reached, or a source that is not
    there yet, costs nothing: each sentence about it is told once, and it is tried again.
    """
    last_problem = ""
    while not is_over():
        try:
            collect(sources, dst, max_bytes_per_s=max_bytes_per_s, reads_again=False)
        except NothingYet:
            pass
        except (RunError, InputError, OSError) as error:
            if str(error) != last_problem:
                tell(f"{why(error)}. It is tried again every {every_s:g} s, and nothing is lost meanwhile.")
                last_problem = str(error)
        else:
            if last_problem:
                tell("collecting goes on.")
                last_problem = ""
        time.sleep(every_s)


def ended(sources: Sequence[str]) -> bool:
    """True if ranks wrote to all of ``sources``, and none writes there any more."""
    try:
        sides = sides_of(sources)
    except RunError:
        return False
    return not any(living(side.root) if side.is_local else side.unclosed for side in sides)
