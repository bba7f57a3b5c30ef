"""Healthy trainings of this repository: the twins and controls of the gallery, and the frameworks' healthy modes."""

from __future__ import annotations

import functools
import importlib
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.frameworks.ranks import preload, trained
from benchmarks.frameworks.table import FRAMEWORKS
from gallery.entry import Entry, all_entries, num_ranks, train_on_rank

from trueline.demo.ranks import Ranks

STEPS = 24
"""Of each framework's mode: three times what a fact of the loss needs."""


def gallery_entries() -> list[Entry]:
    """The first entry, by its id, of each function that trains, as faults that one function plants have one twin.

    Rollouts (L1) are left out: they have no training loop of their own.
    """
    firsts: dict[Any, Entry] = {}
    for entry in all_entries():
        train: Any = entry.train
        while isinstance(train, functools.partial):
            train = train.func
        firsts.setdefault(getattr(train, "__code__", train), entry)
    return list(firsts.values())


def is_asked(kind: str, name: str, only: str) -> bool:
    """Whether ``only`` is nothing, the kind, or what the name begins with."""
    return only == kind or name.startswith(only)


def train_gallery(folder: Path, *, only: str = "") -> Iterator[tuple[str, str]]:
    """Trains the healthy ones that ``folder`` lacks, each to folder/ID/healthy; (id, '' or why it did not finish)."""
    lacking = [
        entry
        for entry in gallery_entries()
        if is_asked("gallery", entry.id, only) and not (folder / entry.id / "healthy" / "manifest.json").exists()
    ]
    for size in sorted({num_ranks(entry, "healthy") for entry in lacking}):
        with Ranks(size) as ranks:
            for entry in (entry for entry in lacking if num_ranks(entry, "healthy") == size):
                out = folder / entry.id / "healthy"
                shutil.rmtree(out, ignore_errors=True)
                try:
                    ranks.run(train_on_rank, entry.id, "healthy", str(out))
                    yield entry.id, ""
                except Exception as error:
                    yield entry.id, f"{type(error).__name__}: {error}"[-300:]


def framework_modes() -> Iterator[tuple[str, str]]:
    """(framework, mode) of those that are installed and train, not only launch."""
    for name in FRAMEWORKS:
        if name == "launchers":
            continue
        try:
            module: Any = importlib.import_module(f"benchmarks.frameworks.jobs.{name}")
            for package in getattr(module, "IMPORTS", (module.PACKAGE,)):
                importlib.import_module(package.replace("-", "_"))
        except ImportError:
            continue
        yield from ((name, mode) for mode in module.MODES)


def as_folder(framework: str, mode: str) -> str:
    """The name of a mode as that of a folder."""
    return re.sub(r"[^a-z0-9]+", "-", f"{framework} {mode}".lower()).strip("-")


def train_frameworks(folder: Path, *, only: str = "") -> Iterator[tuple[str, str]]:
    """Trains the healthy modes that ``folder`` lacks, each to folder/NAME; (name, '' or why it did not finish)."""
    for framework, mode in framework_modes():
        name = as_folder(framework, mode)
        out = folder / name
        if not is_asked("frameworks", name, only) or (out / "manifest.json").exists():
            continue
        shutil.rmtree(out, ignore_errors=True)
        out.parent.mkdir(parents=True, exist_ok=True)
        module: Any = importlib.import_module(f"benchmarks.frameworks.jobs.{framework}")
        preload(*getattr(module, "IMPORTS", (module.PACKAGE,)))
        left = folder / f"{name}.left"
        try:
            trained(framework, mode, left, run=out, plan={"every": 1}, steps=STEPS)
            yield name, ""
        except Exception as error:
            yield name, f"{type(error).__name__}: {error}"[-300:]
        shutil.rmtree(left, ignore_errors=True)
