"""What is asked before each update: does the norm of its gradient jump by the law of `grad-spike`?"""

from __future__ import annotations

import numpy as np

from trueline.laws.jumps.norm_guard import NormGuard
from trueline.schema.plan import FALSE_ALARMS

NORMS = np.exp(0.05 * np.random.default_rng(0).normal(size=400)).tolist()


def guard_after(steps, *, rate=0.1, passes=1):
    guard = NormGuard(FALSE_ALARMS)
    assert not any(guard.why_not(norm, rate=rate, passes=passes) for norm in NORMS[:steps])
    return guard


def test_a_jump_is_told_with_its_numbers():
    says = guard_after(100).why_not(50.0, rate=0.1, passes=1)
    assert says.startswith("the norm of the gradient jumped from ")
    assert " to 50, " in says


def test_a_learning_rate_that_rises_at_once_begins_a_new_past():
    guard = guard_after(100)
    assert guard.why_not(50.0, rate=0.2, passes=1) == ""
    assert guard_after(100).why_not(50.0, rate=0.12, passes=1) != ""


def test_a_step_with_another_number_of_passes_is_not_judged_until_it_is_the_usual_one():
    guard = guard_after(100)
    assert guard.why_not(50.0, rate=0.1, passes=2) == ""
    assert guard.why_not(50.0, rate=0.1, passes=1) != ""
    # for good: a new past, of which the first steps are not judged
    assert not any(guard.why_not(norm, rate=0.1, passes=2) for norm in NORMS[:30])
    assert guard.why_not(50.0, rate=0.1, passes=2) == ""


def test_no_gradient_at_all_is_no_jump():
    assert guard_after(100).why_not(0.0, rate=0.1, passes=1) == ""
