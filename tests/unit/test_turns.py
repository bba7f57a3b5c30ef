"""Tests that run in turn: in any one turn a quarter, in all together each once."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from tests.turns import ALL, TURNS, of_other_turns, turn_of_commit


def made_up(test, *, variants, in_turn=True):
    """Tests of one function, a variant each."""
    marker = pytest.mark.in_turn.mark if in_turn else None
    return [
        SimpleNamespace(nodeid=f"{test}[{number}]", get_closest_marker=lambda name: marker)
        for number in range(variants)
    ]


def in_turn(items, turn):
    others = {item.nodeid for item in of_other_turns(items, str(turn))}
    return [item.nodeid for item in items if item.nodeid not in others]


@pytest.mark.parametrize("variants", [1, 4, 7])
def test_each_test_is_in_one_turn_and_of_four_variants_one_is_in_each(variants):
    items = made_up("a.py::test", variants=variants)
    turns = [in_turn(items, turn) for turn in range(TURNS)]
    assert sorted(test for turn in turns for test in turn) == sorted(item.nodeid for item in items)
    assert min(map(len, turns)) == variants // TURNS


def test_what_is_not_marked_is_in_every_turn_and_all_turns_leave_nothing_out():
    assert of_other_turns(made_up("a.py::test", variants=9, in_turn=False), "2") == []
    assert of_other_turns(made_up("a.py::test", variants=9), ALL) == []


def test_tests_that_stand_alone_are_spread_over_the_turns():
    items = [item for number in range(40) for item in made_up(f"a.py::test_{number}", variants=1)]
    assert all(len(in_turn(items, turn)) >= 4 for turn in range(TURNS))


def test_a_folder_without_commits_takes_all(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert turn_of_commit(tmp_path) == ALL
