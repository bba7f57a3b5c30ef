"""Gradients that end at a call that only one run makes."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from tests.unit.comparison.judgement.test_structure import API, array, call_pair, concluded, headline
from tests.unit.made_steps import Making, exactly

from trueline.comparison.judgement.cut_gradients import calls_behind
from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values.value_judgement import Divergence
from trueline.comparison.match.align import align
from trueline.comparison.match.names import NameMap


def trained(
    *, detached: bool = False, gradient: Any = None, of_y: int | None = 4, of_mean: type = np.float32
) -> Making:
    """t = y + x of y = linear(x, w), and its mean in the dtype ``of_mean``; ``gradient`` is that of w, None where none
    arrives, ``of_y`` the seed of y's.
    """
    making = Making()
    x, w, y = array(0), array(1, 6, 6), array(2)
    call_pair(making, "linear", x, w, out=y)
    branch = call_pair(making, "detach", y, out=y.copy()) if detached else y
    t = call_pair(making, "add", branch, x, out=branch + x)
    call_pair(making, "mean", t, out=of_mean(t.mean()).reshape(1))
    making.put("bwd", "m.sub.add", "out0", array(3), api=f"{API}add")
    making.put("bwd", "m.sub.add", "in0", array(4), api=f"{API}add")
    if gradient is not None and of_y is not None:
        making.put("bwd", "m.sub.linear", "out0", array(of_y), api=f"{API}linear")
    if gradient is not None:
        making.put("grad", "m.sub.weight", "grad", gradient, kind="param")
    making.put("grad", "m.sub.bias", "grad", array(6, 6), kind="param")
    making.put("param", "m.sub.weight", "param", w, kind="param")
    return making.put("param", "m.sub.bias", "param", array(7, 6), kind="param")


def test_the_call_at_which_gradients_end_is_named() -> None:
    finding, site = headline(trained(detached=True), trained(gradient=array(5, 6, 6)))
    assert (finding.code, finding.severity) == ("structure-differs", "error")
    assert "only in RUN: `detach` in `m.sub`. 1 parameter has a gradient only in REF: m.sub.weight." in finding.claim
    assert site == "0.0/r0/fwd/m.sub.detach#0:out0"


@pytest.mark.parametrize("of_run", [True, False])
def test_a_later_change_of_precision_does_not_lead(of_run: bool) -> None:
    pair = [trained(detached=True, of_mean=np.float16), trained(gradient=array(5, 6, 6))]
    if not of_run:
        pair = [trained(gradient=array(5, 6, 6), of_mean=np.float16), trained(detached=True)]
    finding, site = headline(*pair)
    assert (finding.code, site) == ("structure-differs", "0.0/r0/fwd/m.sub.detach#0:out0")


def test_without_such_a_call_the_parameters_are_named() -> None:
    finding, site = headline(trained(gradient=array(5, 6, 6)), trained())
    assert finding.claim == "1 parameter has a gradient only in RUN: m.sub.weight."
    assert site == "0.0/r0/grad/m.sub.weight#0:grad"


def test_a_call_at_which_gradients_turn_is_named() -> None:
    wrong = trained(detached=True, gradient=array(8, 6, 6), of_y=9)
    finding, site = headline(wrong, trained(gradient=array(5, 6, 6)))
    assert "only in RUN: `detach` in `m.sub`. The values agree, and gradients do not" in finding.claim
    assert site == "0.0/r0/fwd/m.sub.detach#0:out0"


@pytest.mark.parametrize("gradient", [None, np.zeros((6, 6), np.float32)])
def test_no_gradient_is_one_of_zeros(gradient: Any) -> None:
    assert concluded(trained(gradient=gradient), trained()) == ([], "")


def test_numbers_passed_on_without_consequence_are_no_difference() -> None:
    gradient = array(5, 6, 6)
    assert concluded(trained(detached=True, gradient=gradient, of_y=None), trained(gradient=gradient)) == ([], "")


def test_calls_that_take_a_parameter_in_one_run_only_are_behind_its_gradient() -> None:
    def multiplied(op: str) -> Making:
        making, x, w = Making(), array(0), array(1, 6, 6)
        call_pair(making, op, x, w, out=x @ w)
        making.put("bwd", "m.sub.weight", "grad", array(2, 6, 6), kind="param")
        return making.put("param", "m.sub.weight", "param", w, kind="param")

    alignment = align(multiplied("einsum").done, multiplied("linear").done, NameMap())
    step = Step(cast(Any, None), 0, 0, alignment, Divergence(alignment, measure=exactly).rows)
    behind = calls_behind(step, next(row for row in step.rows if row.value.site.phase == "bwd"))
    assert behind is not None
    assert [call.name for calls in (behind[0].mine, behind[0].theirs) for call in calls] == [
        "m.sub.einsum",
        "m.sub.linear",
    ]
