"""Who, where and since when, in words."""

from types import SimpleNamespace

import numpy as np
import pytest

from trueline.analyze.evidence import (
    Marked,
    and_text,
    differs,
    longest_run,
    marked,
    named_some,
    odd_ranks,
    ranks_text,
    sites_of,
    steps_text,
)


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


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((3,), "rank 3"),
        ((0, 1), "ranks 0 and 1"),
        ((0, 1, 2, 3, 5), "ranks 0-3 and 5"),
        ((4, 2, 0), "ranks 0, 2 and 4"),
    ],
)
def test_ranks_in_words(ranks, text):
    assert ranks_text(ranks) == text


@pytest.mark.parametrize(
    ("steps", "among", "text"),
    [
        ([5], None, "step 5"),
        (range(50), None, "steps 0-49"),
        ([3, 7, 9], None, "steps 3, 7 and 9"),
        ([0, 10, 20, 30], range(0, 50, 10), "steps 0-30"),
        ([0, 10, 30], range(0, 50, 10), "steps 0, 10 and 30"),
        ([1, 3, 5, 7, 9], None, "5 steps between 1 and 9"),
    ],
)
def test_steps_in_words(steps, among, text):
    assert steps_text(steps, among=among) == text


def test_lists_in_words():
    assert (and_text([]), and_text(["a"]), and_text(["a", "b", "c"])) == ("", "a", "a, b and c")
    assert named_some(["a", "b", "c", "d"]) == "a, b, c and 1 more"


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
