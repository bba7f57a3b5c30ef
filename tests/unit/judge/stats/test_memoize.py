"""What was worked out of an object is kept while it lives, and no longer."""

import gc
import weakref

import pytest
from tests.unit.healthy_run import healthy_rows, write_run
from tests.unit.noisy_workers import noisy_workers, scaled

from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.judge.stats.memoize import memoized
from trueline.laws.unlike_workers.gradient_scale import scales
from trueline.laws.unlike_workers.outliers import find_outliers
from trueline.laws.unlike_workers.series import series_of


class Thing:
    """Any object that can be weakly referred to."""


def test_work_is_done_once_for_each_object_and_argument():
    calls = []

    @memoized
    def work(of, by):
        calls.append((of, by))
        return [by]

    one, other = Thing(), Thing()
    assert work(one, 2) is work(one, 2)
    assert work(one, 3) == [3]
    assert work(other, 2) is not work(one, 2)
    assert calls == [(one, 2), (one, 3), (other, 2)]


def test_an_error_is_raised_each_time():
    @memoized
    def work(of):
        raise ValueError(of)

    one = Thing()
    for _ in range(2):
        with pytest.raises(ValueError, match="Thing"):
            work(one)


def test_a_run_is_read_and_judged_once_and_freed(tmp_path):
    run = write_run(tmp_path, healthy_rows(3, 6))
    assert series_of(run) is series_of(run)
    series = scaled(noisy_workers(4, 300, num_groups=3), 1, 2.0, since=100, loss_too=True)
    assert find_outliers(series, AlarmBudget(), "norm") is find_outliers(series, AlarmBudget(), "norm")
    assert find_outliers(series, AlarmBudget(1.0), "norm") is not find_outliers(series, AlarmBudget(), "norm")
    assert scales(series, AlarmBudget()) is scales(series, AlarmBudget())
    gone = [weakref.ref(each) for each in (run, series_of(run), series)]
    del run, series
    gc.collect()
    assert [each() for each in gone] == [None, None, None]
