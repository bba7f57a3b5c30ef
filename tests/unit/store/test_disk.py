"""Whichever call a disk refuses, the Run says what it lacks and nothing false, and training goes on; nor does a power
cut leave anything false. ``make bench ARGS=durability`` tries all of it, this a share.
"""

import shutil

import pytest
from tests.durability import jobs, power
from tests.durability.disk import FAILURES, Disk


@pytest.mark.in_turn
@pytest.mark.parametrize(("records", "stride"), [(False, 2), (True, 9)])
def test_a_call_that_fails_is_told_and_makes_nothing_false(tmp_path, caplog, records, stride):
    """Every other of them, in turn; of those with recorded steps every ninth."""
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


@pytest.mark.in_turn
@pytest.mark.timeout(600)
def test_training_under_a_disk_that_fails_is_that_without_a_watch(tmp_path):
    bare = jobs.train(None)
    with Disk(str(tmp_path / "whole")).mounted() as disk:
        assert jobs.train(tmp_path / "whole") == bare
    for number in range(1, disk.num_calls, 8):
        path = tmp_path / str(number)
        with Disk(str(path), fails_at=number, how="EIO", lasting=number % 16 == 1).mounted():
            assert jobs.train(path) == bare


@pytest.mark.parametrize("records", [False, True])
def test_a_power_cut_leaves_what_was_sealed_and_nothing_false(tmp_path, records):
    """After every third call; which of the unsynced calls are on the disk changes from cut to cut."""
    (tmp_path / "made").mkdir()
    disk = Disk(str(tmp_path / "made"))
    with disk.mounted():
        jobs.write(tmp_path / "made" / "run", records=records, tell=lambda what: disk.log.append(("told", what)))
    assert len(disk.log) > 80
    for end in range(1, len(disk.log) + 1, 3):
        told = [entry[1] for entry in disk.log[:end] if entry[0] == "told"]
        way = power.WAYS[end // 3 % len(power.WAYS)]
        power.leave(disk.log[:end], tmp_path / "made", tmp_path / "left", way=way, seed=end)
        wrong = jobs.false_after_power_cut(tmp_path / "left" / "run", told)
        assert wrong == [], (end, way, disk.log[end - 1][:2])
