"""Every reader, with files damaged by bytes and by what they say: the same, or one sentence, and never silence.

A few hundred here; thousands with ``python -m benchmarks.damage``.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.damage.attempt import FAULTS, WAYS, Damaged, checked
from tests.damage.readers import Kind, kinds

NAMES = (
    *("manifest", "environment", "findings", "copy of the Plan", "workers part", "records part", "stored values"),
    *("call stacks", "workers journal", "records journal", "safetensors", "torch.save", "torch.save before 1.6"),
    *("distributed checkpoint", "model directory", "dump of msProbe", "plan", "map of names", "tolerance"),
    *("configuration of msProbe", "Run in an archive"),
)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    return {kind.name: kind for kind in kinds(tmp_path_factory.mktemp("damage"))}


def test_every_reader_is_here(found: dict[str, Kind]) -> None:
    assert set(found) == set(NAMES)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", NAMES)
def test_damage_is_read_the_same_or_told(found: dict[str, Kind], name: str) -> None:
    damaged = Damaged(found[name], checked=checked(found[name]))

    @settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.integers(0, 2**32), st.sampled_from(sorted(WAYS)))
    def is_told(seed: int, way: str) -> None:
        attempt = damaged.attempt(random.Random(seed), WAYS[way])
        assert attempt.outcome not in FAULTS, f"{way} {seed}: {attempt.why}"

    is_told()
