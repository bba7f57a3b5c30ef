"""A store with the S3 protocol, in a process of its own, that is away or keeps less than it is given: what the ranks
wrote stays where it is, and all of it is there in the end.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import s3fs
from tests.object_store import Door, ObjectStore
from tests.unit.store.test_collect import WORLD, content, files, machine

import trueline
from trueline.schema.errors import TruelineError
from trueline.store import collect as module
from trueline.store.verify import verify

ROWS = [(step, rank) for step in range(6) for rank in range(WORLD)]


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    yield store
    store.stop()


@pytest.fixture
def door(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    door = Door(store)
    for name, value in (door.settings | {"AWS_MAX_ATTEMPTS": "1"}).items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()  # each has its own address
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    yield door
    door.stop()


@pytest.fixture
def disks(tmp_path):
    machine(tmp_path / "a", [0, 1])
    machine(tmp_path / "b", [2, 3])
    return tmp_path / "a", tmp_path / "b"


@pytest.mark.in_turn
def test_a_store_that_refuses_for_a_while(disks, door, tmp_path):
    url = f"s3://bucket/{tmp_path.name}"
    before = [files(disk) for disk in disks]
    said: list[str] = []
    turns = 0

    def over() -> bool:
        nonlocal turns
        turns += 1
        door.closed = turns in (2, 3)
        return turns > 4

    trueline.collect(disks[:1], url)
    module.follow_until(over, [str(disk) for disk in disks], url, every_s=0.01, tell=said.append)
    assert [line.rpartition(". ")[2] for line in said] == [
        "It is tried again every 0.01 s, and nothing is lost meanwhile.",
        "collecting goes on.",
    ]
    assert content(url) == ROWS
    assert [files(disk) for disk in disks] == before


def test_a_store_that_is_away_from_the_beginning_is_one_sentence(disks, door, tmp_path):
    door.closed = True
    with pytest.raises((OSError, TruelineError)) as told:
        trueline.collect(disks, f"s3://bucket/{tmp_path.name}")
    assert "\n" not in str(told.value)


@pytest.mark.in_turn
def test_a_store_that_keeps_less_than_it_is_given(disks, door, tmp_path):
    url = f"s3://bucket/{tmp_path.name}"
    door.lost_bytes = 9
    with pytest.raises(OSError, match="does not keep what is written to it"):
        trueline.collect(disks, url)
    door.lost_bytes = 0
    assert trueline.collect(disks, url).exit_code == 0
    assert content(url) == ROWS
    assert verify(url).exit_code == 0
