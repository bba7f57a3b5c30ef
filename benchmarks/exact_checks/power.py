"""How many steps the two checks need until they alarm, and whether they name the right workers.

Seeds recorded: samplers declare what they do, as the recorder writes it down. Otherwise digests alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from benchmarks import page
from tests.simulated_epochs import Epoch, Size, one_seed_each, same_batches, samples_of, seeds_for

from trueline.judge.series.declared_sampling import DeclaredSampling
from trueline.laws.data_split import shard_overlap
from trueline.laws.data_split.consumed import Samples
from trueline.laws.data_split.repeats_in_step import find_duplicates

MAX_STEPS = 256
"""Longest prefix of a run that is looked at."""


@dataclass(frozen=True)
class Setting:
    """One fault: how it consumes samples, and which workers it should name."""

    name: str
    size: Size
    make: Callable[[Size, np.random.Generator], list[Epoch]]
    odd: tuple[int, ...]
    seeds_recorded: bool = False


def settings() -> list[Setting]:
    paper, small = Size(8000, 8, 4, 1), Size(64, 2, 4, 2)
    found: list[Setting] = []
    for recorded in (False, True):
        for label, size, odd in (
            ("S1-3: a seed for each worker", paper, tuple(range(8))),
            ("S1-2: another seed on rank 0", paper, (0,)),
            ("a seed for each worker", Size(8000, 4, 4, 1), tuple(range(4))),
            ("a seed for each worker, two epochs", small, (0, 1)),
        ):
            found.append(Setting(label, size, partial(one_seed_each, odd=odd), odd, recorded))
    for workers, batch in ((2, 1), (2, 4), (4, 4), (8, 4)):
        found.append(Setting("the same batches", Size(8000, workers, batch, 1), same_batches, tuple(range(workers))))
    return found


def first_alarm(setting: Setting, seed: int) -> tuple[int | None, bool]:
    """The number of steps after which the run alarms (None: not within ``MAX_STEPS``), and whether it names the
    right ranks.
    """
    epochs = setting.make(setting.size, np.random.default_rng(seed))
    declared = seeds_for(setting.size, setting.odd) if setting.seeds_recorded else DeclaredSampling({})
    low, high = 0, MAX_STEPS
    named = _named(setting, samples_of(epochs, setting.size.batch, num_steps=high), declared)
    if named is None:
        return None, False
    while high - low > 1:
        middle = (low + high) // 2
        found = _named(setting, samples_of(epochs, setting.size.batch, num_steps=middle), declared)
        low, high, named = (low, middle, found) if found is not None else (middle, high, named)
    return high, named == setting.odd


def _named(setting: Setting, samples: Samples, declared: DeclaredSampling) -> tuple[int, ...] | None:
    if setting.make is same_batches:
        found = find_duplicates(samples)
        return None if found is None else tuple(sorted(worker for group in found.groups for worker in group))
    errors = [finding for finding in shard_overlap.judge(samples, declared) if finding.severity == "error"]
    return errors[0].ranks if errors else None


def table(*, runs: int) -> str:
    """The table over ``runs`` runs of each setting, as Markdown."""
    rows = []
    for setting in settings():
        results = [first_alarm(setting, seed) for seed in range(runs)]
        steps = [number for number, _ in results if number is not None]
        size, recorded = setting.size, "yes" if setting.seeds_recorded else "no"
        told = f"{np.median(steps):g} ({max(steps)})" if steps else "-"
        right = sum(named for _, named in results)
        consumed = [f"{size.workers} x {size.batch}", size.rows, recorded]
        rows.append([setting.name, *consumed, f"{len(steps)} of {runs}", told, f"{right} of {len(steps)}"])
    head = ["fault", "workers x samples", "rows", "seeds recorded", "found", "steps until found: median (most)"]
    return page.table([*head, "right ranks"], rows)
