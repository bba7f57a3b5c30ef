"""The rule of `trial batch`, on first steps that are made here."""

import numpy as np
import pytest

from trueline.trials.batch.first_steps import FirstStep
from trueline.trials.batch.laws import LIMIT, Rounding, judge_halves, judge_same, rounding_of

ROUNDING = Rounding(1e-6, 1e-6)
TOKENS = ((3.0, 1.0), (1.0, 1.0))


def step(losses, gradient=(1.0, 2.0), *, counts=({"rows": (4.0, 4.0)},), unit=2.0**-24, **more):
    batches = [{"counts": each, "elements": 64} for each in counts]
    facts = {"unit": unit, "batches": batches, "weighted": False, "normalises_batch": False, "problem": ""} | more
    return FirstStep(np.array(losses), {(0, "gradient/w"): np.array(gradient)}, [facts])


def test_rounding_is_the_largest_of_repeats_nudges_and_orders_of_a_sum():
    base, near = step([1.0]), step([1.0 + 1e-5], (1.0 + 1e-3, 2.0))
    quiet = rounding_of(base, base, base)
    assert 0 < quiet.losses == quiet.gradients < 1e-5
    for pair in ((base, near), (near, base)):
        seen = rounding_of(base, *pair)
        assert seen.losses == pytest.approx(LIMIT * 1e-5, rel=1e-3)
        assert seen.gradients == pytest.approx(LIMIT * 1e-3 / 5**0.5, rel=1e-3)
    coarse = step([1.0], unit=2.0**-8)
    assert rounding_of(coarse, coarse, coarse) == Rounding(LIMIT * 2.0**-8, LIMIT * 2.0**-8)


@pytest.mark.parametrize(("by", "holds"), [(0.5e-6, True), (2e-6, False)])
@pytest.mark.parametrize("of", ["loss", "gradient"])
def test_a_law_is_broken_by_loss_or_gradient_beyond_rounding(by, holds, of):
    moved = step([1.0 + by]) if of == "loss" else step([1.0], (1.0 + by * 5**0.5, 2.0))
    found = judge_same("permute", step([1.0]), moved, ROUNDING)
    assert found.holds is holds
    assert ("w (100%)" in found.says) == (of == "gradient" and not holds)


def test_a_parameter_without_a_gradient_in_one_run_is_no_answer():
    base = step([1.0])
    assert judge_same("permute", base, FirstStep(base.losses, {}, base.facts), ROUNDING).holds is None
    assert judge_same("permute", base, step([1.0, 1.0]), ROUNDING).holds is None


@pytest.mark.parametrize(
    ("whole", "name"),
    [
        ((3.0, (2.0, 3.0)), "rows"),
        ((2.5, (1.5, 2.5)), "what is 1 in `mask`"),
        ((2.8, (1.8, 2.8)), "weights of its own (0.6 "),
    ],
)
def test_halves_may_be_weighted_by_rows_by_tokens_or_by_weights_of_its_own(whole, name):
    counts = ({"rows": (4.0, 4.0), "what is 1 in `mask`": (3.0, 1.0)},)
    found = judge_halves(
        step([whole[0]], whole[1], counts=counts), step([2.0], (1.0, 2.0)), step([4.0], (3.0, 4.0)), ROUNDING
    )
    assert found.holds
    assert f"weighted by {name}" in found.says


def test_a_loss_between_its_halves_with_another_gradient_is_broken():
    found = judge_halves(step([3.0], (5.0, 3.0)), step([2.0], (1.0, 2.0)), step([4.0], (3.0, 4.0)), ROUNDING)
    assert (found.holds, "another gradient" in found.says) == (False, True)


def test_tokens_of_the_whole_step_are_told_from_those_of_each_micro_batch():
    counts = ({"rows": (4.0, 4.0), "tokens": (3.0, 1.0)}, {"rows": (4.0, 4.0), "tokens": (1.0, 1.0)})
    first, second = (step(losses, counts=counts) for losses in ([2.0, 6.0], [4.0, 8.0]))
    each = judge_halves(step([2.5, 7.0], counts=counts), first, second, ROUNDING)
    assert each.holds
    assert "the gradient was not compared" in each.says
    assert "tokens of those with fewer count more" in each.next[0]
    whole = judge_halves(step([2 + 2 / 3, 6 + 2 / 3], counts=counts), first, second, ROUNDING)
    assert whole.holds
    assert "tokens of the step" in whole.says
    assert whole.next == ()


def test_tokens_of_all_ranks_are_told_from_those_of_each():
    def on_two(losses):
        ranks = (
            step([loss], counts=({"rows": (4.0, 4.0), "tokens": of},)) for loss, of in zip(losses, TOKENS, strict=True)
        )
        return FirstStep(np.array(losses), {}, [each.facts[0] for each in ranks])

    first, second = on_two([2.0, 6.0]), on_two([4.0, 8.0])
    for whole, name in (([2 + 2 / 3, 6 + 2 / 3], "tokens of the step"), ([2.5, 7.0], "tokens")):
        found = judge_halves(on_two(whole), first, second, ROUNDING)
        assert found.holds
        assert f"weighted by {name} (" in found.says


def test_weights_of_classes_on_two_ranks_cannot_be_told_from_a_fault():
    counts = ({"rows": (4.0, 4.0)},) * 2
    first, second, whole = (step(each, counts=counts) for each in ([2.0, 6.0], [4.0, 8.0], [2.1, 7.7]))
    assert judge_halves(whole, first, second, ROUNDING).holds is False
    weighted = step([2.1, 7.7], counts=counts, weighted=True)
    assert judge_halves(weighted, first, second, ROUNDING).holds is None


def test_halves_that_add_up_are_a_sum():
    found = judge_halves(step([6.0], (4.0, 6.0)), step([2.0], (1.0, 2.0)), step([4.0], (3.0, 4.0)), ROUNDING)
    assert (found.holds, "add up" in found.says) == (False, True)
