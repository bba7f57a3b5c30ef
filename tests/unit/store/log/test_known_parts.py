"""What is known of sealed parts spares reading them to open a Run, and counts only where their files are the same."""

import json
import os

import numpy as np
import pytest
from tests.synthetic_runs import write_run

from trueline.store.log.part_files import PartFiles, known_parts
from trueline.store.reader import Run


@pytest.fixture
def path(tmp_path):
    path = write_run(tmp_path / "run", num_ranks=2, num_steps=12)
    Run(path).parts.keep()
    return path


def part_of(path, rank):
    return next((path / "workers").glob(f"part-r{rank:05d}-*"))


def assert_same(run, path):
    fresh = Run(path)
    assert np.array_equal(run.steps, fresh.steps)
    assert run.problems == fresh.problems
    assert run.table().equals(fresh.table())


def test_a_run_is_opened_by_it_without_reading_a_part(path, monkeypatch):
    def refuse(*given, **named):
        raise AssertionError("a part was read")

    known = known_parts(path)
    with monkeypatch.context() as patch:
        patch.setattr(PartFiles, "_decoded", refuse)
        run = Run(path, parts=known)
    assert_same(run, path)


def test_a_part_whose_file_is_another_since_then_is_read_again(path):
    part = part_of(path, 1)
    part.write_bytes(part.read_bytes()[:-1] + b"x")
    run = Run(path, parts=known_parts(path))
    assert [problem.file for problem in run.problems] == [f"workers/{part.name}"]
    assert_same(run, path)


def test_a_part_that_is_gone_is_not_there(path):
    part_of(path, 1).unlink()
    assert_same(Run(path, parts=known_parts(path)), path)


def test_parts_whose_steps_are_not_in_a_row_are_read(tmp_path):
    path = write_run(tmp_path / "run", num_ranks=2, num_steps=12)
    known = Run(path)
    part = next(iter(known.parts._keys))
    known.parts._keys[part] = known.parts._keys[part].table().take([0, 2, 5])
    known.parts.keep()
    assert len(json.loads((path / "parts.json").read_text())["parts"]) == 1
    assert_same(Run(path, parts=known_parts(path)), path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace('"version": 1', '"version": 99'),
        lambda text: text.replace("   12,", "   11,", 1),
        lambda text: "",
    ],
)
def test_what_is_torn_or_of_another_version_counts_for_nothing(path, damage):
    told = path / "parts.json"
    kept = told.read_text()
    told.write_text(damage(kept))
    assert told.read_text() != kept
    assert known_parts(path) is None


def test_it_is_written_anew_only_where_it_is_another(path):
    told = path / "parts.json"
    before = os.stat(told).st_mtime_ns
    Run(path).parts.keep()
    assert os.stat(told).st_mtime_ns == before
