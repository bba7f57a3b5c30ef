"""The first place that computes in another precision, where most of the model does not."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from tests.unit.made_steps import Making, by_statistics

from trueline.comparison.judgement.first_cause import conclude
from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values.precision import dtypes_part
from trueline.comparison.judgement.values.value_judgement import Divergence
from trueline.comparison.match.align import align
from trueline.comparison.match.names import NameMap

LAYERS = 3


def model(
    label: str,
    *,
    low: tuple[int, ...] = (),
    cast: int | None = None,
    ones: bool | None = None,
    weights: type = np.float32,
) -> Making:
    """Linears with a bias, and activations; linears of ``low`` return half precision, and what ``cast`` returns goes
    through it. The bias is ``ones``, computed (False), or given (None).
    """
    making, draw = Making(label), np.random.default_rng(0)
    x, bias = (draw.standard_normal((4, 4)).astype(np.float32) for _ in range(2))
    if ones:
        making.call("ones_like", "torch.ones_like", (bias,), bias := np.ones_like(bias))
    elif ones is not None:
        for op in ("sin", "cos"):
            making.call(op, f"torch.{op}", (bias,), bias := np.cos(bias))
    for layer in range(LAYERS):
        weight = draw.standard_normal((4, 4)).astype(np.float32).astype(weights)
        y = (x @ weight.astype(np.float32)).astype(np.float16 if layer in low else np.float32)
        making.call(f"m.{layer}.linear", "torch.nn.functional.linear", (x, weight), y)
        if layer == cast:
            half = y.astype(np.float16)
            making.call(f"m.{layer}.to", "torch.Tensor.to", (y,), half)
            y = half.astype(np.float32)
            making.call(f"m.{layer}.float", "torch.Tensor.float", (half,), y)
        making.call(f"m.{layer}.add", "torch.add", (y, bias), y := (y + bias).astype(y.dtype))
        x = np.tanh(y.astype(np.float32))
        making.call(f"m.{layer}.tanh", "torch.tanh", (y,), x)
        making.put("param", f"m.{layer}.weight", "value", weight, kind="param")
    return making


def compared(making: Making, ref_making: Making) -> Step:
    alignment = align(making.done, ref_making.done, NameMap())
    rows = Divergence(alignment, measure=by_statistics).rows
    run = SimpleNamespace(path="run", env={}, record_ranks=(), has_records=False)
    return Step(cast(Any, run), 0, 0, alignment, rows)


@pytest.mark.parametrize(
    ("run", "ref", "site"),
    [
        ({"low": (1,)}, {}, "0.0/r0/fwd/m.1.linear#0:out0"),
        ({"cast": 2}, {}, "0.0/r0/fwd/m.2.to#0:out0"),
        ({}, {"cast": 2}, "0.0/r0/fwd/m.2.to#0:out0"),
        ({}, {}, None),
        ({"low": (0, 1, 2)}, {}, None),
        ({"weights": np.float16}, {}, None),
        ({"low": (1,)}, {"low": (1,)}, None),
    ],
)
def test_dtypes_part_at_the_first_place_unless_most_of_the_model_has_others(
    run: dict[str, Any], ref: dict[str, Any], site: str | None
) -> None:
    part = dtypes_part([compared(model("run", **run), model("ref", **ref))])
    assert site == (None if part is None else str(part.row.value.site))
    if part is not None:
        assert {part.dtype, part.ref_dtype} == {"float16", "float32"}


def test_lower_precision_in_one_place_is_a_warning_with_both_dtypes() -> None:
    step = compared(model("run", low=(1,)), model("ref"))
    conclusion = conclude(step.run, step.run, [step])
    finding = conclusion.findings[0]
    assert (finding.code, finding.severity) == ("dtype-differs", "warning")
    assert "computes in float16 where the reference computes in float32" in finding.claim
    assert conclusion.first is not None
    assert conclusion.first.site.name == "m.1.linear"


def test_a_call_of_one_run_leads_where_it_comes_before_another_precision() -> None:
    step = compared(model("run", low=(1,), ones=True), model("ref", ones=False))
    assert conclude(step.run, step.run, [step]).findings[0].code == "structure-differs"


def test_swapped_addends_of_two_precisions_are_no_other_precision() -> None:
    def made(label: str, *, swapped: bool) -> Making:
        making, draw = Making(label), np.random.default_rng(0)
        x, w = (draw.standard_normal((4, 4)).astype(np.float32) for _ in range(2))
        half, full = (x @ w).astype(np.float16), np.tanh(x)
        making.call("m.linear", "torch.nn.functional.linear", (x, w), half).call("m.tanh", "torch.tanh", (x,), full)
        pair = (full, half) if swapped else (half, full)
        return making.call("m.add", "torch.add", pair, half.astype(np.float32) + full)

    assert dtypes_part([compared(made("run", swapped=True), made("ref", swapped=False))]) is None


def test_another_precision_throughout_is_information() -> None:
    step = compared(model("run", weights=np.float16), model("ref"))
    findings = {finding.code: finding.severity for finding in conclude(step.run, step.run, [step]).findings}
    assert findings["dtype-differs"] == "info"


def test_a_product_that_autocast_misses_is_a_warning_though_its_module_takes_half_precision() -> None:
    def made(label: str, *, missed: bool) -> Making:
        making, draw = Making(label), np.random.default_rng(0)
        x, w = (draw.standard_normal((4, 4)).astype(np.float16) for _ in range(2))
        for layer in range(LAYERS):
            if missed and layer == 1:
                making.call("m.1.float", "torch.Tensor.float", (x,), x := x.astype(np.float32))
            y = x @ w
            making.call(f"m.{layer}.linear", "torch.nn.functional.linear", (x, w), y)
            making.call(f"m.{layer}.half", "torch.Tensor.half", (y,), x := y.astype(np.float16))
        return making

    step = compared(made("run", missed=True), made("ref", missed=False))
    finding = conclude(step.run, step.run, [step]).findings[0]
    assert (finding.code, finding.severity) == ("dtype-differs", "warning")
    assert (
        "computes in float32 where the reference computes in float16, first at 0.0/r0/fwd/m.1.linear#0" in finding.claim
    )


def test_of_a_model_that_is_compiled_as_a_whole_no_precision_is_known() -> None:
    def made(label: str, dtype: type) -> Making:
        making, x = Making(label), np.ones((4, 4), np.float32)
        y = (x * 0.5).astype(dtype)
        for slot, array in (("in0", x), ("out0", y)):
            making.put("fwd", "Model", slot, array, api="a.Model", kind="module", module="")
        return making.call("float", "torch.Tensor.float", (y,), y.astype(np.float32))

    step = compared(made("run", np.float16), made("ref", np.float32))
    assert dtypes_part([step]) is not None
    rows = [
        replace(row, run_value=row.run_value and replace(row.run_value, flags=frozenset({"compiled"})))
        for row in step.rows
    ]
    assert dtypes_part([replace(step, rows=rows)]) is None
