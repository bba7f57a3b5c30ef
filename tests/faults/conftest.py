"""Pools of ranks, and watched runs of entries, that the tests of this folder share: that is what keeps it quick."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from trueline.schema.finding import Finding
from trueline.testing.entry import Entry, Variant
from trueline.testing.play import play
from trueline.testing.ranks import Ranks
from trueline.testing.witness import Witness

PoolOf = Callable[[int], Ranks]


@dataclass(frozen=True)
class Watched:
    """One watched run: what each rank itself saw, and the warnings and errors of ``trueline.check``."""

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
    import trueline

    runs: dict[tuple[str, Variant], Watched] = {}

    def run(entry: Entry, variant: Variant) -> Watched:
        if (entry.id, variant) not in runs:
            out = str(tmp_path_factory.mktemp("gallery") / "run")
            witnesses = pool_of(entry.world_size).run(play, entry.id, variant, out)
            findings = [finding for finding in trueline.check(out).findings if finding.severity != "info"]
            runs[entry.id, variant] = Watched(witnesses, findings)
        return runs[entry.id, variant]

    return run
