"""The benchmark asks both tools for the same, and its tables say what was measured."""

from fractions import Fraction

import pytest
from benchmarks.recording import tables
from benchmarks.recording.measure import Measured
from benchmarks.recording.parts import NOT_SELECTED, RECORDED, Part
from benchmarks.recording.turns import Left, Turn

from trueline.compat.msprobe.config import settings_of
from trueline.schema.plan import Plan


@pytest.mark.parametrize("part", [*RECORDED, NOT_SELECTED], ids=lambda part: part.name)
def test_both_tools_are_asked_for_the_same_level_depth_and_steps(part):
    theirs, ours = settings_of(part.msprobe), Plan.load(part.trueline)
    assert (theirs.preset, theirs.depth) == (ours.preset, ours.depth)
    first, end = ours.steps
    assert theirs.steps == (None if end is None else frozenset(range(first, end)))


def test_the_share_is_what_we_add_over_what_they_add_and_the_larger_of_wall_and_cpu_decides():
    turns = {
        "bare": [Turn(1.0, 2.0), Turn(2.0, 4.0)],
        "msprobe": [Turn(5.0, 10.0), Turn(10.0, 20.0)],
        "trueline": [Turn(2.0, 6.0), Turn(4.0, 12.0)],
    }
    left = {name: Left(1e6, 3.0, 10.0, 2**20) for name in turns}
    for aim, met in ((Fraction(1, 2), "yes"), (Fraction(1, 3), "no")):
        one = Measured(Part("x", {}, {}, aim), turns, left)
        assert one.shares("wall_s") == [0.25, 0.25]
        assert one.shares("cpu_s") == [0.5, 0.5]
        row = tables.added_time([one]).splitlines()[-1]
        assert row == (f"| x | 5.00 (CPU 5.00) | 2.00 (CPU 3.00) | 0.25 (0.25 – 0.25; CPU 0.50) | ≤ {aim} | {met} |")


def test_more_memory_than_msprobe_is_said():
    left = {name: Left(1.0, 1.0, 1.0, peak * 2**20) for name, peak in (("bare", 1), ("msprobe", 2), ("trueline", 3))}
    assert tables.memory([Measured(Part("x", {}, {}), {}, left)]).endswith("| x | 1 MiB | 2 MiB | 3 MiB | no |")
