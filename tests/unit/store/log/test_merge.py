"""Parts that pile up become one, and no reader or power cut meets a moment at which rows are missing."""

import shutil

import numpy as np
import pyarrow.parquet as pq
import pytest

from trueline.schema.files.start import Start
from trueline.store.file_names import PartName
from trueline.store.log import merge
from trueline.store.reader import Run
from trueline.store.writer import RunWriter


def write(writer, steps):
    for step in steps:
        writer.write({"step": step, "loss": step / 2})
        writer.write({"step": step, "sketch": [step, -1]} if step != 3 else {"step": step, "cosine_mean": 0.5})


def names(path):
    return sorted(tuple(PartName.parse(file.name).numbers) for file in (path / "workers").iterdir())


def assert_whole(path, num_steps, problems=()):
    run = Run(path) if not isinstance(path, Run) else path
    assert [text for text in run.problems if not text.startswith("rank 0")] == list(problems)
    assert run.pivot("loss")[0][:, 0].tolist() == [step / 2 for step in range(num_steps)]
    sketches = {step: values.tolist() for (step, _), values in run.lists("sketch").items()}
    assert sketches == {step: [step, -1] for step in range(num_steps) if step != 3}
    assert run.stack("sketch", steps=[0])[0].tolist() == [[[0, -1]]]
    assert run.table().num_rows == num_steps


@pytest.fixture(autouse=True)
def three_at_a_time(monkeypatch):
    monkeypatch.setattr(merge, "FAN_IN", 3)


def test_parts_become_one_and_those_one_again(tmp_path):
    writer = RunWriter(tmp_path, rank=0, seal_steps=1)
    write(writer, range(7))  # two pieces a step make two parts of it
    assert names(tmp_path) == [tuple(range(9)), (9, 10, 11), (12,), (13,)]
    writer.close()
    assert_whole(tmp_path, 7)


@pytest.fixture
def merged(tmp_path):
    """A Run whose first parts are one, those that they were, in a folder beside it, and who has read them."""
    writer = RunWriter(tmp_path / "run", rank=0, seal_steps=1)
    write(writer, range(1))
    shutil.copytree(tmp_path / "run" / "workers", tmp_path / "before")
    reader = Run(tmp_path / "run")
    write(writer, range(1, 5))
    writer.close()
    assert names(tmp_path / "run") == [tuple(range(9)), (9,)]
    return tmp_path / "run", tmp_path / "before", reader


def test_a_reader_that_opened_before_reads_on_after(merged):
    _, _, reader = merged
    assert_whole(reader, 1)


def test_a_part_that_is_still_there_beside_the_merged_one_does_no_harm(merged):
    path, before, _ = merged
    shutil.copytree(before, path / "workers", dirs_exist_ok=True)
    assert_whole(path, 5)


def test_a_damaged_merged_part_is_named_and_what_is_left_of_the_others_is_read(merged):
    path, before, _ = merged
    (whole,) = (path / "workers").glob("*-000008-*")
    whole.write_bytes(whole.read_bytes()[:-1])
    problem = Run(path).problems[0]
    assert problem.startswith(f"workers/{whole.name}: its")
    shutil.copytree(before, path / "workers", dirs_exist_ok=True)
    run = Run(path)
    assert run.steps.tolist() == [0, 4]


def test_a_later_start_counts_on_behind_merged_parts(merged):
    path, _, _ = merged
    writer = RunWriter(path, rank=0, seal_steps=1, start=Start(attempt=1, step=5, manifest=Run(path).manifest))
    write(writer, range(5, 7))
    writer.close()
    assert names(path)[-2:] == [(1_000_000, 1_000_001, 1_000_002), (1_000_003,)]
    assert np.array_equal(Run(path).steps, np.arange(7))
    assert [text for text in Run(path).problems if not text.startswith("rank 0")] == []


def test_parts_that_are_large_together_stay(tmp_path, monkeypatch):
    monkeypatch.setattr(merge, "MAX_BYTES", 1000)
    writer = RunWriter(tmp_path, rank=0, seal_steps=1)
    write(writer, range(5))
    writer.close()
    assert max(map(len, names(tmp_path))) == 1
    assert_whole(tmp_path, 5)


def test_of_a_merged_part_only_the_rows_that_are_asked_for_are_decoded(tmp_path, monkeypatch):
    monkeypatch.setattr(merge, "ROWS_A_GROUP", 4)
    writer = RunWriter(tmp_path, rank=0, seal_steps=3)
    write(writer, range(9))
    writer.close()
    run, read = Run(tmp_path), []
    rows_of = pq.ParquetFile.read_row_groups

    def counted(file, groups, **options):
        read.append(groups)
        return rows_of(file, groups, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", counted)
    assert run.between(5, 7).pivot("loss")[0].tolist() == [[2.5], [3.0]]
    assert sorted(read) == [[0], [1, 2]], "the part after the merged one, and of that not the first group"
    for first in range(9):
        for end in range(first + 1, 10):
            loss = run.between(first, end).pivot("loss")[0][:, 0]
            assert loss.tolist() == [step / 2 for step in range(first, end)]
