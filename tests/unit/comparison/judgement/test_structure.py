"""Which difference of two call graphs is to blame, and how it is named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.unit.made_steps import Making, by_statistics, exactly, judged

from trueline.comparison.judgement.first_cause import Conclusion, conclude
from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values.value_judgement import Divergence
from trueline.comparison.match.align import align
from trueline.comparison.match.names import NameMap
from trueline.schema.finding import Finding

API = "torch."


def headline(mine: Making, theirs: Making, *, measure: Any = exactly) -> tuple[Finding, str]:
    """The leading finding, and the site of the first difference."""
    findings, site = concluded(mine, theirs, measure=measure)
    return findings[0], site


def concluded(mine: Making, theirs: Making, *, measure: Any = exactly) -> tuple[list[Finding], str]:
    """Findings that are no mere information, and the site of the first difference."""
    result = conclusion(mine, theirs, measure=measure)
    grave = [finding for finding in result.findings if finding.is_grave]
    return grave, "" if result.first is None else str(result.first.site)


def all_findings(mine: Making, theirs: Making) -> Sequence[Finding]:
    """Information, too."""
    return conclusion(mine, theirs).findings


def conclusion(mine: Making, theirs: Making, *, measure: Any = exactly) -> Conclusion:
    """What is concluded of one step of each."""
    alignment = align(mine.done, theirs.done, NameMap())
    run: Any = SimpleNamespace(path="runs/a", env={}, record_ranks=(), has_records=False)
    step = Step(run, 0, 0, alignment, Divergence(alignment, measure=measure).rows)
    return conclude(run, run, [step])


def array(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape or (8, 6)).astype(np.float32)


def call_pair(making: Making, op: str, *ins: Any, out: Any) -> Any:
    making.call(f"m.sub.{op}", f"{API}{op}", ins, out)
    return out


def activated(op: str, *, z: Any) -> Making:
    """t = op(y) + y of y = linear(x), where op returns ``z``."""
    making = Making(op)
    y = call_pair(making, "linear", array(0), array(1, 6, 6), out=array(2))
    call_pair(making, op, y, out=z)
    call_pair(making, "add", z, y, out=z + y)
    return making


def test_calls_of_one_run_are_named_and_come_before_what_they_change() -> None:
    finding, site = headline(activated("tanh", z=array(3)), activated("gelu", z=array(4)))
    assert (finding.code, finding.severity) == ("structure-differs", "error")
    assert "only in RUN: `tanh` in `m.sub`; only in REF: `gelu` in `m.sub`" in finding.claim
    assert site == "0.0/r0/fwd/m.sub.tanh#0:out0"


def test_another_way_to_compute_the_same_is_no_difference() -> None:
    z = array(3)
    assert concluded(activated("tanh", z=z), activated("gelu", z=z * np.float32(1 + 1e-7))) == ([], "")


def test_calls_of_one_run_are_named_where_they_change_nothing() -> None:
    z = array(3)
    (finding,) = all_findings(activated("tanh", z=z), activated("gelu", z=z))
    assert (finding.code, finding.severity) == ("site-missing", "info")
    assert "In the forward pass only in RUN: `tanh` in `m.sub`; only in REF: `gelu` in `m.sub`." in finding.claim


def test_repeated_modules_of_another_class_are_named_once() -> None:
    def made(name: str, op: str, *more: str) -> Making:
        making, x = Making(), array(0)
        for layer in range(3):
            module, seed = f"h.{layer}.act", 3 * layer
            making.put("fwd", module, "in0", x, api=f"torch.nn.{name}", kind="module", module=module)
            z = x
            for place, finding in enumerate((op, *more)):
                y, z = z, array(seed + place + len(more))
                making.put("fwd", f"{module}.{finding}", "in0", y, api=f"{API}{finding}", module=module)
                making.put("fwd", f"{module}.{finding}", "out0", z, api=f"{API}{finding}", module=module)
            making.put("fwd", module, "out0", z, api=f"torch.nn.{name}", kind="module", module=module)
            x = z
        return making

    finding, _ = headline(made("GELU", "gelu"), made("Tanh", "mul", "tanh"))
    assert "modules `h.0.act` and 2 like it are GELU in RUN and Tanh in REF; only in RUN: `gelu`; " in finding.claim
    assert "only in REF: `mul` and `tanh`. The values after it differ" in finding.claim


def test_a_call_that_was_left_out_is_named_where_only_the_reference_has_it() -> None:
    left_out = Making()
    y = call_pair(left_out, "linear", array(0), array(1, 6, 6), out=array(2))
    call_pair(left_out, "add", y, y, out=y + y)
    finding, site = headline(left_out, activated("gelu", z=array(3)))
    assert "different operations: only in REF: `gelu` in `m.sub`. " in finding.claim
    assert site == "0.0/r0/fwd/m.sub.gelu#0:out0"


def joined(*, exchanged: bool, sums: str = "cat") -> Making:
    making = Making()
    x = array(0)
    up, skip = call_pair(making, "gelu", x, out=array(1)), call_pair(making, "tanh", x, out=array(2))
    one, other = (skip, up) if exchanged else (up, skip)
    both = np.concatenate([one, other]) if sums == "cat" else up + skip
    call_pair(making, sums, one, other, out=both)
    weights = array(5, len(both)).reshape(-1, 1)
    call_pair(making, "linear", both, weights, out=both * weights)
    return making


@pytest.mark.parametrize("measure", [exactly, by_statistics])
def test_an_input_from_another_call_is_named_with_both(measure: Any) -> None:
    finding, site = headline(joined(exchanged=True), joined(exchanged=False), measure=measure)
    assert finding.code == "structure-differs"
    assert finding.claim.startswith("The two runs connect the same operations differently: input 0 of `cat` in `m.sub`")
    assert "comes from `m.sub.tanh`, in REF from `m.sub.gelu`" in finding.claim
    assert site == "0.0/r0/fwd/m.sub.cat#0:in0"


def test_operands_in_another_order_are_not_to_blame() -> None:
    mine, theirs = joined(exchanged=True, sums="add"), joined(exchanged=False, sums="add")
    assert concluded(mine, theirs) == ([], "")
    for making, off in ((mine, 0.1), (theirs, 0.0)):
        product = making.values[-1].load
        assert product is not None
        call_pair(making, "relu", product(), out=array(9) * np.float32(1 + off))
    finding, site = headline(mine, theirs)
    assert (finding.code, site) == ("first-divergence", "0.0/r0/fwd/m.sub.relu#0:out0")


def test_a_fault_behind_calls_that_agree_is_not_theirs() -> None:
    """What moves numbers in another way leads to a sum that agrees and, with the fault, to a product that does not."""

    def made(op: str, off: float) -> Making:
        making = Making()
        x = call_pair(making, "linear", array(0), array(1, 6, 6), out=array(2))
        angle = call_pair(making, op, x, out=array(3))
        call_pair(making, "add", angle, x, out=angle + x)
        y = call_pair(making, "relu", x, out=array(4) * np.float32(1 + off))
        call_pair(making, "mul", angle, y, out=angle * y)
        return making

    finding, site = headline(made("roll", 0.1), made("flip", 0.0), measure=by_statistics)
    assert (finding.code, site) == ("first-divergence", "0.0/r0/fwd/m.sub.relu#0:out0")


def test_calls_without_a_twin_that_take_what_is_off_are_a_consequence() -> None:
    def made(op: str, off: float) -> Making:
        making = Making()
        factor = call_pair(making, f"{op}_factor", array(6), out=array(7))
        x = call_pair(making, "linear", array(0), array(1, 6, 6), out=array(2) * np.float32(1 + off))
        y = call_pair(making, op, x, factor, out=x * factor)
        call_pair(making, "add", y, x, out=y + x)
        return making

    finding, site = headline(made("double", 0.1), made("twice", 0.0))
    assert (finding.code, site) == ("first-divergence", "0.0/r0/fwd/m.sub.linear#0:out0")


@pytest.mark.parametrize("draw", ["rand", "rand_like"])
def test_random_numbers_of_one_run_explain_nothing(draw: str) -> None:
    """Rows that a drawn mask drops in one run: what is decided by a draw is no decision that rounding may turn."""

    def made(*, dropped: bool) -> Making:
        making = Making()
        x = call_pair(making, "linear", array(0), array(1, 6, 6), out=array(2) * np.float32(1 + 1e-7 * dropped))
        y = call_pair(making, "gelu", x, out=array(3) * np.float32(1 + 1e-7 * dropped))
        if dropped:
            mask = call_pair(
                making,
                "ge",
                call_pair(making, draw, *([x] if draw == "rand_like" else []), out=array(4)),
                out=array(4) >= 0,
            )
            y = call_pair(making, "mul", y, mask, out=y * mask)
        call_pair(making, "add", y, x, out=y + x)
        return making

    finding, site = headline(made(dropped=True), made(dropped=False), measure=by_statistics)
    assert f"only in RUN: `{draw}`, `ge` and `mul` in `m.sub`" in finding.claim
    assert site == f"0.0/r0/fwd/m.sub.{draw}#0:out0"


def positions(*, rolled: bool, off: float, handed_on: float = 0.0) -> Making:
    """h = x + p of half precision, where p is small and may be rolled; another module then takes h."""
    making = Making()
    x, p = (
        array(0).astype(np.float16),
        call_pair(making, "embedding", array(1), out=(array(2) * 1e-3).astype(np.float16)),
    )
    if rolled:
        p = call_pair(making, "roll", p, out=np.roll(p, 1, axis=0))
    h = call_pair(making, "add", x, p, out=(x + off * array(3)).astype(np.float16))
    if handed_on:
        making.put("fwd", "m.next", "in0", h, api="torch.nn.ReLU", kind="module", module="m.next")
        y = (array(4) * (1 + handed_on)).astype(np.float16)
        making.put("fwd", "m.next.relu", "in0", h, api=f"{API}relu", module="m.next")
        making.put("fwd", "m.next.relu", "out0", y, api=f"{API}relu", module="m.next")
        making.put("fwd", "m.next", "out0", y, api="torch.nn.ReLU", kind="module", module="m.next")
        call_pair(making, "sigmoid", y, out=array(5).astype(np.float16))
    return making


@pytest.mark.parametrize("handed_on", [0.0, 1.5e-3])
def test_a_difference_that_rounding_might_explain_is_rather_that_of_other_inputs(handed_on: float) -> None:
    """It is four times what rounding makes, and just what the rolled summand does; later it is lost in rounding."""
    mine = positions(rolled=True, off=1.5e-3, handed_on=handed_on)
    theirs = positions(rolled=False, off=0.0, handed_on=handed_on and 1e-9)
    finding, site = headline(mine, theirs)
    assert "only in RUN: `roll` in `m.sub`" in finding.claim
    assert site == "0.0/r0/fwd/m.sub.roll#0:out0"


def test_a_difference_as_rounding_makes_it_is_not_that_of_other_inputs() -> None:
    rows = judged(positions(rolled=True, off=3e-4).done, positions(rolled=False, off=0.0).done)
    assert rows["fwd/add:out0"].judgement == "within"


@pytest.mark.parametrize(
    ("mine", "theirs", "changed", "said"),
    [("tanh", "none", 0.0, True), ("torch.float16", "torch.float32", 0.0, False), ("tanh", "none", 0.1, False)],
    ids=["a word", "a dtype", "told as the cause"],
)
def test_words_among_arguments_that_differ_are_told_once(mine: str, theirs: str, changed: float, *, said: bool) -> None:
    def made(word: str, off: float = 0.0) -> Making:
        args = json.dumps({"args": [], "kwargs": {"way": word}})
        making, x = Making(), array(0)
        making.put("fwd", "m.sub.gelu", "in0", x, api=f"{API}gelu", args=args)
        return making.put("fwd", "m.sub.gelu", "out0", array(1) * np.float32(1 + off), api=f"{API}gelu")

    claims = [
        finding.claim for finding in all_findings(made(mine, changed), made(theirs)) if finding.severity == "info"
    ]
    claim = 'than in the reference: at 0.0/r0/fwd/m.sub.gelu#0:in0 way is "tanh" and not "none".'
    assert [each.endswith(claim) for each in claims] == [True] * said
