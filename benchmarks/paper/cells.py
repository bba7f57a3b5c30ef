"""What is trained: every combination of text, start, reading, setting and dropout that the page reports on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trueline.demo.fine_tune import Material
from trueline.demo.settings import SETTINGS, Setting
from trueline.demo.worker_training import Job, PackedSamples

PAPER: tuple[Setting, ...] = SETTINGS[:3]
"""S1-1, S1-2 and S1-3, as the demo trains them."""

READINGS = {
    "sharded": "a DistributedSampler deals one epoch to all ranks",
    "unsharded": "every rank shuffles all rows for itself, so that equal seeds mean identical batches",
}
DROPOUT = {
    "off": "no dropout",
    "on": "dropout 0.1, its generator seeded like the sampler",
    "own": "dropout 0.1, every rank with a stream of its own",
}
LIBRARY = "library"
"""The standard-library set; another text goes by the name of its file."""

SEED_APART = 97
"""Between the seeds of two repetitions: a sampler adds the epoch to its seed, so neighbours would share orders."""
WARM_SEED = 900_001
"""Seed of the ordinary training that the trained start comes from: none of a repetition's, in no epoch."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One row of the table; ``text`` is ``LIBRARY`` or the name of a file, ``start`` "trained" or "random" weights."""

    text: str
    start: str
    reading: str
    setting: str
    dropout: str


@dataclass(frozen=True, slots=True)
class Size:
    """How much is trained. ``batch_size`` samples a worker and step, of at most ``max_length`` tokens.

    ``warm_steps`` are the optimizer steps of ordinary training before the trained start.
    """

    workers: int = 8
    steps: int = 50
    batch_size: int = 4
    max_length: int = 64
    warm_steps: int = 300
    seeds: int = 5
    seeds_random: int = 3


QUICK = Size(steps=6, warm_steps=6, seeds=2, seeds_random=2)


def cells(text: str) -> Iterator[Cell]:
    """The cells of one text; from random weights only the standard-library set, with dropout on."""
    for reading in READINGS:
        for dropout in ("off", "on"):
            for setting in PAPER:
                yield Cell(text, "trained", reading, setting.name, dropout)
    yield Cell(text, "trained", "unsharded", PAPER[0].name, "own")
    if text == LIBRARY:
        for reading in READINGS:
            for setting in PAPER:
                yield Cell(text, "random", reading, setting.name, "on")


def setting_of(reading: str, name: str) -> Setting:
    """The demo's setting ``name``, read with or without a DistributedSampler."""
    setting = next(each for each in PAPER if each.name == name)
    return dataclasses.replace(setting, distributed_sampler=reading == "sharded")


def job_of(
    setting: Setting, material: Material, size: Size, *, seed: int, steps: int | None = None, run: Path = Path("unused")
) -> Job:
    """The demo's job for ``setting``; ``run`` and its progress file are written by real workers only."""
    return Job(
        setting=setting,
        samples=PackedSamples(material.samples),
        pad_id=material.pad_id,
        model=material.model,
        run=run,
        progress=run.with_suffix(".progress"),
        steps=size.steps if steps is None else steps,
        batch_size=size.batch_size,
        seed=seed,
        bf16=False,
    )
