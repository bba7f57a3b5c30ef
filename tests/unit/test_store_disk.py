"""Whichever call a disk refuses, the Run says what it lacks and nothing false, and training goes on; nor does a power
cut leave anything false. ``make bench ARGS=durability`` tries all of it, this a share.
"""

import shutil

import pytest
from benchmarks.durability import jobs
from benchmarks.durability.disk import FAILURES, Disk


@pytest.mark.parametrize(("records", "stride"), [(False, 1), (True, 9)])
def test_a_call_that_fails_is_told_and_makes_nothing_false(tmp_path, caplog, records, stride):
    """Each of them, in turn; of those with recorded steps every ninth."""
    numbers = {number for number, _ in jobs.failures(tmp_path / "whole", records=records)}
    assert len(numbers) > 80
    failed = 0
    for number in sorted(numbers)[::stride]:
        path = tmp_path / str(number)
        caplog.clear()
        wrong, calls = jobs.run_with_failure(
            path, number, FAILURES[number // stride % 4], logged=lambda: caplog.text, records=records
        )
        assert wrong == [], (number, calls)
        failed += len(calls)
        shutil.rmtree(path)
    assert failed > len(numbers) / stride / 2


def test_training_under_a_disk_that_fails_is_that_without_a_watch(tmp_path):
    bare = jobs.train(None)
    with Disk(str(tmp_path / "whole")).mounted() as disk:
        assert jobs.train(tmp_path / "whole") == bare
    for number in range(1, disk.num_calls, 8):
        path = tmp_path / str(number)
        with Disk(str(path), fails_at=number, how="EIO", lasting=number % 16 == 1).mounted():
            assert jobs.train(path) == bare
