"""The rule of `trial layouts`: what differs by more than rounding makes of it, and what comes first."""

import math
from dataclasses import replace

import pytest

from trueline.trials.layouts import judged
from trueline.trials.layouts.judged import Floors, judged_arm
from trueline.trials.layouts.measured import MeasuredStep, NamedDifference

UNIT = 2.0**-24


class Arm:
    """What an arm left, made up."""

    def __init__(self, losses, samples=(1, 2, 3)):
        self.losses, self.steps, self.has_loss = losses, [0, 4], True
        self._samples = frozenset(samples)

    def samples(self, step):
        return self._samples


REF = Arm(dict.fromkeys(range(5), 2.0))


def difference(kind, name, rel, position=0, **more):
    return NamedDifference(kind, name, "Linear", position, rel, UNIT, **more)


def healthy(**rels):
    """One step, in the order of execution: two modules, and their gradients and weights."""
    values = [
        ("weight", "a.weight", 0.0),
        ("weight", "b.weight", 0.0),
        ("output", "a", 1e-7),
        ("output", "b", 1e-7),
        ("gradient", "a.weight", 1e-7),
        ("gradient", "b.weight", 1e-7),
    ]
    return MeasuredStep(
        [
            difference(kind, name, rels.get(f"{kind}_{name[0]}", rel), position, ratio=rels.get("ratio"))
            for position, (kind, name, rel) in enumerate(values)
        ]
    )


@pytest.fixture
def judge(monkeypatch):
    """Judge an arm of which this was measured at the first and at the last step."""

    def call(first, last=None, arm=REF):
        steps = {0: first, 4: healthy() if last is None else last}
        monkeypatch.setattr(judged, "measure_step", lambda arm, ref, step: steps[step])
        kinds = {(step, kind): 1e-7 for step in (0, 4) for kind in ("output", "gradient", "weight")}
        floors = Floors({(0, "gradient", "a.weight"): 1e-3}, kinds, dict.fromkeys(range(5), 1e-7))
        return judged_arm("two", arm, REF, [REF, REF], floors)

    return call


def test_what_rounding_makes_as_large_is_no_difference(judge):
    verdict = judge(healthy(gradient_a=7e-3))
    assert (verdict.parting, verdict.other_job, verdict.unclear) == (None, "", "")
    assert verdict.largest.startswith("the largest of 8 differences is 7 times what rounding makes, of the gradient of")


@pytest.mark.parametrize(
    ("rels", "where"),
    [
        ({"output_b": 1e-5, "gradient_b": 1.0}, "forward: b"),
        ({"output_a": 1e-5, "output_b": 1.0}, "forward: a"),
        ({"gradient_a": 1.0, "gradient_b": 0.5}, "backward: b.weight"),
        ({"gradient_a": 9e-3}, "backward: a.weight"),
        ({"output_b": math.inf}, "forward: b"),
    ],
)
def test_the_first_place_in_the_order_of_execution_is_named(judge, rels, where):
    assert judge(healthy(**rels)).parting.where == where


def test_a_loss_that_is_another_is_named_where_gradients_differ_too(judge):
    arm = Arm({**REF.losses, 0: 1.0})
    assert judge(healthy(gradient_b=0.5), arm=arm).parting.where == "forward: the loss"
    # it is scaled for the backward pass, or shown otherwise
    assert judge(healthy(), arm=arm).parting is None


def test_a_loss_that_is_not_finite_is_named(judge):
    arm = Arm({step: loss for step, loss in REF.losses.items() if step})
    verdict = judge(healthy(gradient_b=math.inf), arm=arm)
    assert verdict.parting.where == "forward: the loss"
    assert verdict.parting.says[0].startswith("the loss is nan and not 2, and gradients differ too")


def test_gradients_that_are_scaled_are_no_suspects_beside_others(judge):
    first, last = difference("gradient", "a.weight", 0.5, 4), difference("gradient", "b.weight", 0.1, 5, rest=1e-4)
    others = [value for value in healthy().differences if value.kind != "gradient"]
    verdict = judge(MeasuredStep([*others, first, last]))
    assert verdict.parting.where == "backward: a.weight"
    assert "(1 of 2; 1 more are scaled" in verdict.parting.says[0]
    verdict = judge(MeasuredStep([*others, last, replace(first, rest=1e-4, ratio=1.5)]))
    assert verdict.parting.says[1].startswith("Each rank has multiplied its own by another number")
    # what rounding leaves of a factor is as large as what it makes of any
    rounded = replace(last, rest=7e-7, rel=8e-7 + 1e-9)
    verdict = judge(MeasuredStep([*others, replace(first, rest=9e-3), rounded]))
    assert verdict.parting.where == "backward: a.weight"


def test_of_an_update_by_a_closure_raw_gradients_are_taken(judge):
    outputs = [value for value in healthy().differences if value.kind == "output"]

    def step(rel, **more):
        return MeasuredStep([*outputs, difference("raw gradient", "a.weight", rel, 4, **more)])

    agrees = judge(step(1e-7))
    assert agrees.parting is None
    assert agrees.not_compared.startswith("Not compared: weights before the first update")
    assert "differs as the backward pass leaves them" in judge(step(0.5)).parting.says[0]
    # by how much a sum is divided, and where, is of the layout, unless the loss is another too
    assert judge(step(0.5, rest=1e-4, ratio=0.5)).parting is None
    half = Arm({number: loss / 2 for number, loss in REF.losses.items()})
    assert judge(step(0.5, rest=1e-4, ratio=0.5), arm=half).parting.where == "forward: the loss"
    assert judge(MeasuredStep(outputs)).unclear == "no gradient was recorded in both"


def test_a_loss_that_only_clipping_makes_equal_is_said(judge):
    arm = Arm({step: 2 * loss for step, loss in REF.losses.items()})
    raw = [difference("raw gradient", f"{name}.weight", 1.0, ratio=2.0) for name in "ab"]
    verdict = judge(MeasuredStep([*healthy().differences, *raw]), arm=arm)
    assert verdict.parting is None
    assert verdict.losses.startswith("The loss is 2 times that of the reference, and so are gradients until")
    assert judge(healthy(), arm=arm).losses.endswith("and no gradient is: it is shown otherwise.")


def test_a_factor_that_all_gradients_share_is_said(judge):
    verdict = judge(healthy(gradient_a=0.5, gradient_b=0.5, ratio=0.5))
    assert "Each is 0.5 times that of the reference" in verdict.parting.says[1]


def test_ranks_that_take_other_gradients_are_said(judge):
    step = healthy(gradient_a=0.5, gradient_b=0.5)
    notes = [difference("gradient", "c.weight", 0.5, 9, note="replicas differ: rank 2 (shown) from rank 0, 1")]
    verdict = judge(MeasuredStep([*step.differences, *notes]))
    assert "Ranks do not take the same gradient (replicas differ: rank 2" in verdict.parting.says[1]


def test_weights_that_part_after_a_first_step_that_agrees_are_named(judge):
    verdict = judge(healthy(), healthy(weight_b=1e-3))
    assert (verdict.parting.where, verdict.parting.step) == ("update: b.weight", 4)


def test_other_weights_and_other_samples_are_another_job(judge):
    assert judge(healthy(weight_a=1e-3, gradient_b=1.0)).other_job.startswith("weight a.weight differs by 0.001")
    other = judge(healthy(), arm=Arm(REF.losses, samples=(3, 4)))
    assert other.other_job == "the first step reads 2 samples, of which 1 are among the 3 of the reference"


def test_pieces_of_a_sequence_are_the_same_samples_once_they_are_put_together(judge):
    whole = [difference("input", "model", 0.0), *healthy().differences]
    assert judge(MeasuredStep(whole), arm=Arm(REF.losses, samples=(7, 8))).other_job == ""


def test_too_few_gradients_are_no_agreement(judge):
    missing = {("gradient", f"{number}.weight"): "cut otherwise" for number in range(9)}
    verdict = judge(MeasuredStep(healthy().differences, missing))
    assert verdict.unclear.startswith("of 11 gradients 2 could be compared. Not compared: gradients 0.weight")
