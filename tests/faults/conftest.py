"""Pools of ranks, and watched runs of entries, that the tests of this folder share: that is what keeps it quick."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from trueline.schema.finding import Finding
from trueline.testing.entry import Entry, Variant, num_ranks, train_on_rank
from trueline.testing.gallery import findings_on
from trueline.testing.ranks import Ranks
from trueline.testing.witness import Witness

PoolOf = Callable[[int], Ranks]


@dataclass(frozen=True)
class Watched:
    """One watched run: what each rank itself saw, and the warnings and errors that were said of it."""

    witnesses: list[Witness]
    findings: list[Finding]


@pytest.fixture(scope="session")
def pool_of() -> Iterator[PoolOf]:
    pools: dict[int, Ranks] = {}

    def of(world_size: int) -> Ranks:
        return pools.setdefault(world_size, Ranks(world_size, timeout_s=120.0))

    yield of
    for pool in pools.values():
        pool.stop()


@pytest.fixture(scope="session")
def watched(pool_of: PoolOf, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Entry, Variant], Watched]:
    runs: dict[tuple[str, Variant], Watched] = {}
    references: dict[str, Path] = {}

    def trained(entry: Entry, variant: Variant) -> tuple[list[Witness], Path]:
        out = tmp_path_factory.mktemp("gallery") / "run"
        return pool_of(num_ranks(entry, variant)).run(train_on_rank, entry.id, variant, str(out)), out

    def run(entry: Entry, variant: Variant) -> Watched:
        if (entry.id, variant) not in runs:
            witnesses, out = trained(entry, variant)
            if entry.reference is not None and entry.id not in references:
                references[entry.id] = trained(entry, "reference")[1]
            found = findings_on(out, references.get(entry.id))
            findings = [finding for finding in found if finding.severity != "info"]
            runs[entry.id, variant] = Watched(witnesses, findings)
        return runs[entry.id, variant]

    return run
