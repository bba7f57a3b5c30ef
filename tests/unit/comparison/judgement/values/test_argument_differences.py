"""Calls whose arguments differ from a step on: which are reported, and which may differ by rounding."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from trueline.comparison.judgement.values.argument_differences import ChangedArguments, first_changed_arguments


def call_of(index: int, **kwargs: Any) -> Any:
    first = SimpleNamespace(index=index, args=json.dumps({"args": [], "kwargs": kwargs}))
    return SimpleNamespace(phase="fwd", first=first, values=[first])


def found(mine: list[Any], theirs: list[Any], *, phase: str = "fwd") -> ChangedArguments | None:
    """Of one call, by its argument at each step."""
    steps: list[Any] = []
    for step, (one, other) in enumerate(zip(mine, theirs, strict=True)):
        pair = call_of(3, way=one), call_of(3, way=other)
        pair[0].phase = phase
        untouched = call_of(1, way="a"), call_of(1, way="a")
        calls = {(0, "fwd", "x", 0): untouched, (0, "fwd", "y", 0): pair, (0, "fwd", "z", 0): (call_of(5), None)}
        steps.append(SimpleNamespace(step=step, rank=0, calls=calls))
    return first_changed_arguments(cast(Any, steps))


def test_a_setting_that_changes_in_one_run_is_told_at_its_step() -> None:
    other = found(["none", "none", "tanh", "tanh"], ["none"] * 4)
    assert other is not None
    assert (other.at, other.call.first.index, other.num_steps) == (2, 3, 2)
    assert other.arguments == {"way": ('"tanh"', '"none"')}
    assert found([True, False], [True, True]) is not None


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (["tanh"] * 4, ["none"] * 4),
        (["none", "none", "tanh", "none"], ["none"] * 4),
        ([0.5, 0.6, 0.6, 0.6], [0.5] * 4),
        ([4, 4, 5, 5], [4, 4, 4, 4]),
        ([[4, 4], [4, 4], [5, 3], [5, 3]], [[4, 4]] * 4),
        (["none", "none", "tanh", "tanh"], ["none", "none", "tanh", "tanh"]),
    ],
    ids=["from the start", "once", "a number after one step", "a whole number", "whole numbers", "in both runs"],
)
def test_what_may_differ_by_itself_is_silent(mine: list[Any], theirs: list[Any]) -> None:
    assert found(mine, theirs) is None


def test_a_number_that_agreed_for_two_steps_is_told() -> None:
    other = found([1e-5, 1e-5, 1e-2], [1e-5] * 3)
    assert other is not None
    assert other.at == 2


def test_updates_are_left_out() -> None:
    assert found(["none", "none", "tanh"], ["none"] * 3, phase="opt") is None
