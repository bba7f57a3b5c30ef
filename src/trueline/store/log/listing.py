"""List the folders of a Run: journals and sealed parts of each rank, and which are missing."""

from __future__ import annotations

import posixpath
from collections.abc import Callable

import pyarrow as pa
from fsspec import AbstractFileSystem

from trueline.store import file_names
from trueline.store.file_names import PartName, Problem
from trueline.store.log.journal import JournalContent, read_journal


def names_in(fs: AbstractFileSystem, folder: str) -> list[str]:
    """Names of the entries of a folder, sorted; none where it does not exist."""
    try:
        entries = fs.ls(folder, detail=False, refresh=True)
    except FileNotFoundError:
        return []
    return sorted(posixpath.basename(entry.rstrip("/")) for entry in entries)


def read_journals(
    fs: AbstractFileSystem,
    root: str,
    problems: list[Problem],
    *,
    rank_of: Callable[[str], int | None],
    schema: pa.Schema,
) -> dict[int, JournalContent]:
    """Journals by rank, which ``rank_of`` finds in a name; ``schema`` is for those whose header is damaged."""
    folder = posixpath.join(root, file_names.JOURNAL_DIR)
    journals: dict[int, JournalContent] = {}
    for name in names_in(fs, folder):
        rank = rank_of(name)
        if rank is None:
            continue
        file = posixpath.join(file_names.JOURNAL_DIR, name)
        try:
            journals[rank] = read_journal(fs.cat_file(posixpath.join(folder, name)), schema)
        except FileNotFoundError:
            continue  # It was sealed since it was listed: its rows are in a part, and parts are listed later.
        except OSError as error:
            problems.append(Problem(f"it cannot be read ({error}) and was skipped", file=file))
            continue
        problems += [problem.in_file(file) for problem in journals[rank].problems]
    return journals


def list_parts(fs: AbstractFileSystem, root: str, folder: str, problems: list[Problem]) -> dict[int, list[PartName]]:
    """The sealed parts in a folder of the Run by rank."""
    parts: dict[int, list[PartName]] = {}
    for name in names_in(fs, posixpath.join(root, folder)):
        part = PartName.parse(name)
        if part is not None:
            parts.setdefault(part.rank, []).append(part)
        elif not name.endswith(file_names.TEMPORARY_SUFFIX):
            file = posixpath.join(folder, name)
            problems.append(Problem("it is not named like a part of a Run and was skipped", file=file))
    return parts


def name_missing_parts(
    folder: str, rank: int, parts: list[PartName], journal: JournalContent | None, problems: list[Problem]
) -> None:
    """Say which parts of a rank there must have been that are not there."""
    present = file_names.numbers_of(parts)
    numbered = sorted(present if journal is None or journal.sequence is None else present | {journal.sequence})
    last = {number // file_names.PARTS_PER_ATTEMPT: number for number in numbered}
    missing = [
        number
        for attempt, end in last.items()
        for number in range(attempt * file_names.PARTS_PER_ATTEMPT, end)
        if number not in present
    ]
    if missing:
        numbers = ", ".join(map(str, missing))
        problems.append(Problem(f"part {numbers} of rank {rank} is missing, and the rows in it with it", file=folder))
