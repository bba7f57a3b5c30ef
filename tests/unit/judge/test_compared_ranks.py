"""Who, where and since when, in words."""

from types import SimpleNamespace

import numpy as np
import pytest

from trueline.judge.compared_ranks import Marked, differs, longest_run, marked, odd_ranks, sites_of


@pytest.mark.parametrize(
    ("values", "odd"),
    [
        ({0: "a", 1: "a", 2: "b"}, (2,)),
        ({0: "b", 1: "a", 2: "a", 3: "c"}, (0, 3)),
        ({0: "a", 1: "b"}, (0, 1)),
        ({0: "a", 1: "a", 2: "b", 3: "b"}, (0, 1, 2, 3)),
        ({0: "a", 1: "a"}, ()),
        ({}, ()),
    ],
)
def test_odd_ranks_are_those_off_the_most_common_value(values, odd):
    assert odd_ranks(values) == odd


def test_only_measured_values_differ():
    values = np.array([[1.0, 2.0, 1.0], [np.nan, np.nan, 1.0], [0.0, 5.0, 5.0]])
    measured = np.array([[True, False, True], [True, True, True], [False, True, True]])
    assert differs(values, measured).tolist() == [False, True, False]
    assert differs(np.full((1, 2), np.nan), np.ones((1, 2), dtype=bool)).tolist() == [False]


def test_longest_run():
    assert longest_run([True, True, False, True, True, True, False]) == 3
    assert longest_run([]) == 0


def test_sites_are_few():
    assert len(sites_of(0, range(20), phase="param", names=("a", "b"))) == 8


def test_a_mask_is_told_by_its_steps_and_ranks():
    mask_TN = np.zeros((4, 3), dtype=bool)
    mask_TN[1, 2] = mask_TN[3, 0] = True
    found = marked(SimpleNamespace(steps=np.array([0, 10, 20, 30])), [4, 5, 6], mask_TN)
    assert found == Marked(first=1, steps=[10, 30], first_ranks=(6,), ranks=(4, 6))
