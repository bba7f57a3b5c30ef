"""Pools of ranks that the tests of this folder share: starting them once is what keeps the folder quick."""

from collections.abc import Callable, Iterator

import pytest

from trueline.testing.ranks import Ranks

PoolOf = Callable[[int], Ranks]


@pytest.fixture(scope="session")
def pool_of() -> Iterator[PoolOf]:
    pools: dict[int, Ranks] = {}

    def of(world_size: int) -> Ranks:
        return pools.setdefault(world_size, Ranks(world_size, timeout_s=120.0))

    yield of
    for pool in pools.values():
        pool.stop()
