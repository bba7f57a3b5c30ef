"""What installed packages register: entry points, which are read again only where a package came or went."""

from __future__ import annotations

import functools
import importlib.metadata
import operator
import os
import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint

_name_of = operator.attrgetter("_normalized_name")
"""By which importlib.metadata itself tells packages apart: ``name`` takes as long as reading the entry points."""


def entry_points(group: str) -> list[EntryPoint]:
    """The entry points of ``group``, one of Trueline's, in the order of their names."""
    packages = set[str]()
    chosen: list[EntryPoint] = []
    for folder in sys.path:
        names, entries_of = _entry_points_in(folder, _changed_at(folder))
        for name, entries in entries_of:
            if name not in packages:  # of two the first counts, as it is the one that is imported
                chosen += [entry for entry in entries if entry.group == group]
        packages |= names
    return sorted(chosen, key=lambda entry: entry.name)


@functools.lru_cache(maxsize=64)
def _entry_points_in(folder: str, changed_ns: int) -> tuple[frozenset[str], Sequence[tuple[str, Sequence[EntryPoint]]]]:
    """Names of all packages in ``folder``, and of those that register something with Trueline what. Of 170 packages
    that takes 25 ms: as much as opening a Run.
    """
    names: list[str] = []
    entries_of: list[tuple[str, Sequence[EntryPoint]]] = []
    for package in importlib.metadata.distributions(path=[folder]):
        names.append(name := _name_of(package))
        entries = [entry for entry in package.entry_points if entry.group.startswith("trueline.")]
        # a folder may hold two of a name, of which the first counts, too
        if entries and name not in names[:-1]:
            entries_of.append((name, entries))
    return frozenset(names), entries_of


def _changed_at(folder: str) -> int:
    """When an entry of ``folder`` was last added or taken away, in ns; 0 where that cannot be seen."""
    try:
        return os.stat(folder or ".").st_mtime_ns
    except OSError:
        return 0
