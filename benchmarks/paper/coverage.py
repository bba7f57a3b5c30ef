"""From which step on the two coverage checks catch each setting, on what the recorder would write down.

Batches come from the loaders that the workers train on; digests, epochs and declarations from the recorder's own
probes. Nothing is trained.
"""

from __future__ import annotations

import bisect
import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from benchmarks.paper.cells import PAPER, READINGS, SEED_APART, Size, job_of, setting_of
from tests.simulated_epochs import Epoch, samples_of

from trueline.capture.probes.batch import read_batch
from trueline.capture.probes.dataloader import EpochProbe
from trueline.demo.fine_tune import Material
from trueline.demo.worker_training import Job, endless_batches
from trueline.judge.series.declared_sampling import DeclaredSampling
from trueline.laws.data_split import shard_overlap
from trueline.laws.data_split.consumed import Samples
from trueline.laws.data_split.repeats_in_step import find_duplicates

UNDECLARED = DeclaredSampling({})


def caught(material: Material, text: str, size: Size, *, seeds: int, steps: int) -> list[dict[str, Any]]:
    """One row a reading, setting and seed: after how many steps each way of looking finds something.

    None: not within ``steps``. ``declared`` is `shard-overlap` with what samplers declare, as an error;
    ``digests_only`` the same without that; ``duplicates`` is `duplicate-data`; ``first_shared`` the first time that two
    workers hold equal digests in one epoch, which is no judgement: equal rows share as well.
    """
    rows: list[dict[str, Any]] = []
    for reading, setting, seed in itertools.product(READINGS, PAPER, range(seeds)):
        job = job_of(setting_of(reading, setting.name), material, size, seed=SEED_APART * seed, steps=steps)
        epochs, declared = consumed(job, size.workers)
        rows.append({"text": text, "reading": reading, "setting": setting.name, "seed": seed})
        rows[-1] |= _first_steps(epochs, declared, batch_size=size.batch_size, steps=steps)
    return rows


def consumed(job: Job, num_workers: int) -> tuple[list[Epoch], DeclaredSampling]:
    """The digests that each worker consumes, by epoch, and what its loader declares."""
    by_epoch: defaultdict[int, list[list[np.ndarray]]] = defaultdict(lambda: [[] for _ in range(num_workers)])
    facts: dict[int, dict[str, Any]] = {}
    for rank in range(num_workers):
        probe = EpochProbe()
        seed = job.setting.seed(rank, base=job.seed)
        try:
            for batch in itertools.islice(endless_batches(job, rank, num_workers, seed=seed), job.steps):
                probe.at_training_step()
                seen = read_batch(batch)
                if seen is None or probe.epoch is None:
                    raise ValueError(f"The batches of rank {rank} show no samples or no epoch; expected both.")
                by_epoch[probe.epoch][rank].append(seen.samples.numpy())
        finally:
            probe.detach()
        facts[rank] = probe.facts
    return [[np.concatenate(parts) for parts in by_epoch[epoch]] for epoch in sorted(by_epoch)], DeclaredSampling(facts)


def _first_steps(
    epochs: list[Epoch], declared: DeclaredSampling, *, batch_size: int, steps: int
) -> dict[str, int | None]:
    def until(num_steps: int) -> Samples:
        return samples_of(epochs, batch_size, num_steps=num_steps)

    ways: dict[str, Callable[[Samples], bool]] = {
        "first_shared": _shares,
        "declared": lambda samples: _is_error(samples, declared),
        "digests_only": lambda samples: _is_error(samples, UNDECLARED),
        "duplicates": lambda samples: find_duplicates(samples) is not None,
    }
    found: dict[str, int | None] = {}
    for name, way in ways.items():
        first = 1 + bisect.bisect_left(range(1, steps + 1), True, key=lambda num, way=way: way(until(num)))
        found[name] = first if first <= steps else None
    return found


def _is_error(samples: Samples, declared: DeclaredSampling) -> bool:
    return any(finding.severity == "error" for finding in shard_overlap.judge(samples, declared))


def _shares(samples: Samples) -> bool:
    return bool(np.any(samples.worker != samples.worker[samples.first]))
