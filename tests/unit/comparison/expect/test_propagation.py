"""The laws of how calls pass differences on, against differences that are planted into their inputs in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from trueline.comparison.expect.propagation import Operand, backward_rel, factors_first, forward_rel
from trueline.comparison.op_names import function_of

REL = 1e-6
BAND = (0.12, 3.4)
"""Measured over predicted, with room above for rounding before ``judge.values.LIMIT``, which is 8 for stored values.
Chosen, not measured."""

BACKWARD_BAND = (0.05, 3.4)
"""The same of gradients: statistics do not show the weights that a softmax multiplies them by."""


def normal(*shape: int, seed: int = 0, mean: float = 0.0) -> Tensor:
    """Normal numbers, float64."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + mean


def moved(x: Tensor, rel: float, seed: int) -> Tensor:
    """``x`` with unrelated normal errors of ``rel`` in the L2 norm."""
    noise = normal(*x.shape, seed=100 + seed)
    return x + noise * (rel * x.norm() / noise.norm())


def operand(x: Tensor, rel: float, slot: str) -> Operand:
    """What a record would know of ``x``."""
    rms = float(x.square().mean().sqrt())
    std = float(x.std(unbiased=False)) if x.numel() > 1 else rms
    spread, least = max(rms / std, 1.0) if std else 1.0, float(x.min())
    excess = max(rms / least, 1.0) if least > 0 else 1.0
    return Operand(rel, rms or None, tuple(x.shape), spread=spread, slot=slot, excess=excess)


def apart(one: Tensor, other: Tensor) -> float:
    return float((one - other).norm() / other.norm())


def operands(ins: Sequence[Tensor], rel: float = REL) -> list[Operand]:
    return [operand(x, rel, f"in{place}") for place, x in enumerate(ins)]


ROWS = torch.randint(0, 24, (96,), generator=torch.Generator().manual_seed(7))
PLACES = torch.randint(0, 40, (400,), generator=torch.Generator().manual_seed(8))

Case = tuple[str, Callable[..., Tensor], Sequence[Tensor]]

FORWARD: Mapping[str, Case] = {
    "linear": ("linear", functional.linear, (normal(32, 64), normal(48, 64, seed=1), normal(48, seed=2))),
    "index_add to zeros": (
        "index_add",
        lambda to, x: to.index_add(0, ROWS, x),
        (torch.zeros(24, 32, dtype=torch.float64), normal(96, 32)),
    ),
    "index_add": ("index_add", lambda to, x: to.index_add(0, ROWS, x), (normal(24, 32), normal(96, 32, seed=1))),
    "scatter_add": ("scatter_add", lambda to, x: to.scatter_add(0, PLACES, x), (normal(40), normal(400, seed=1))),
    "sqrt of squares": ("sqrt", torch.sqrt, (normal(64, 32).pow(4) + 1e-3,)),
    "rsqrt with small numbers": ("rsqrt", torch.rsqrt, (normal(64, 32).square() + 1e-2,)),
    "matmul of batches": ("matmul", torch.matmul, (normal(4, 8, 16), normal(4, 16, 8, seed=1))),
    "addmm": ("addmm", torch.addmm, (normal(48), normal(32, 64, seed=1), normal(64, 48, seed=2))),
    "conv": ("conv2d", functional.conv2d, (normal(2, 4, 8, 8), normal(8, 4, 3, 3, seed=1))),
    "add": ("add", torch.add, (normal(64, 32), normal(64, 32, seed=1))),
    "sub that cancels": ("sub", torch.sub, (normal(64, 32, mean=50.0), normal(64, 32, seed=1, mean=50.0))),
    "mul": ("mul", torch.mul, (normal(64, 32), normal(64, 32, seed=1))),
    "div": ("div", torch.div, (normal(64, 32), normal(64, 32, seed=1).abs() + 1)),
    "rsqrt": ("rsqrt", torch.rsqrt, (normal(64, 32).abs() + 1,)),
    "gelu": ("gelu", functional.gelu, (normal(64, 32),)),
    "silu": ("silu", functional.silu, (normal(64, 32),)),
    "layer norm": ("layer_norm", lambda x: functional.layer_norm(x, (64,)), (normal(32, 64),)),
    "layer norm of a mean": ("layer_norm", lambda x: functional.layer_norm(x, (64,)), (normal(32, 64, mean=20.0),)),
    "rms norm": ("rms_norm", lambda x: functional.rms_norm(x, (64,)), (normal(32, 64),)),
    "softmax": ("softmax", lambda x: torch.softmax(x, -1), (3 * normal(64, 32),)),
    "attention": (
        "scaled_dot_product_attention",
        functional.scaled_dot_product_attention,
        tuple(normal(2, 4, 16, 8, seed=seed) for seed in range(3)),
    ),
    "transpose": ("transpose", lambda x: x.transpose(0, 1), (normal(64, 32),)),
    "norm of a few numbers": ("norm", torch.linalg.vector_norm, (normal(3),)),
    "sum of columns": ("sum", lambda x: x.sum(0), (normal(256, 32),)),
    "mean of squares": ("mean", lambda x: x.mean(-1), (normal(64, 256).square(),)),
    "second moment": (
        "addcmul",
        lambda v, a, b: v + 0.001 * a * b,
        (normal(64, 32).square() * 1e-3, normal(64, 32, seed=1), normal(64, 32, seed=2)),
    ),
}


@pytest.mark.parametrize("name", FORWARD)
def test_what_a_call_returns_differs_as_its_law_says(name: str) -> None:
    function, call, ins = FORWARD[name]
    plain = call(*ins)
    measured = apart(call(*(moved(x, REL, place) for place, x in enumerate(ins))), plain)
    predicted = forward_rel(function, operands(ins), operand(plain, 0.0, "out0"))
    assert BAND[0] <= measured / predicted <= BAND[1]


def test_a_norm_is_as_far_off_as_numbers_that_are_off_by_one_factor() -> None:
    ins = operands([normal(32, 32)], 1e-3)
    assert forward_rel("norm", ins, operand(normal(32, 32).norm(), 0.0, "out0")) == 1e-3


BACKWARD: Mapping[str, tuple[str, Callable[..., Tensor], Sequence[Tensor]]] = {
    "linear": FORWARD["linear"],
    "addmm": FORWARD["addmm"],
    "gelu": FORWARD["gelu"],
    "layer norm": FORWARD["layer norm"],
    "softmax": FORWARD["softmax"],
    "exp": ("exp", torch.exp, (normal(64, 32),)),
    "attention": FORWARD["attention"],
    "add to all rows": ("add", torch.add, (normal(64, 32), normal(32, seed=1))),
    "transpose": FORWARD["transpose"],
}


def gradients(call: Callable[..., Tensor], ins: Sequence[Tensor], given: Tensor) -> tuple[Tensor, ...]:
    leaves = [x.clone().requires_grad_() for x in ins]
    return torch.autograd.grad(call(*leaves), leaves, given)


@pytest.mark.parametrize("name", BACKWARD)
def test_gradients_differ_as_the_law_of_the_backward_says(name: str) -> None:
    function, call, ins = BACKWARD[name]
    given = normal(*call(*ins).shape, seed=9)
    plain = gradients(call, ins, given)
    other = gradients(call, [moved(x, REL, place) for place, x in enumerate(ins)], moved(given, REL, 50))
    for place, (one, two) in enumerate(zip(other, plain, strict=True)):
        out = operand(two, 0.0, f"in{place}")
        predicted = backward_rel(function, operand(given, REL, "out0"), operands(ins), out)
        assert BACKWARD_BAND[0] <= apart(one, two) / predicted <= BACKWARD_BAND[1], (name, place)


def test_the_gradient_of_a_bias_that_cancels_may_be_noise_altogether() -> None:
    given = normal(512, 16)
    given = given - given.mean(0)
    noisy = moved(given, REL, 1)
    plain = given.sum(0)
    ins = operands((normal(512, 8), normal(16, 8), normal(16)), 0.0)
    predicted = backward_rel("linear", operand(given, REL, "out0"), ins, operand(plain, 0.0, "in2"))
    assert BAND[0] <= apart(noisy.sum(0), plain) / predicted <= BAND[1]


def test_differences_larger_than_the_values_multiply() -> None:
    v, g = normal(64, 32).square() * 1e-9, normal(64, 32, seed=1)
    plain = v + 0.001 * g * g
    noisy = v + 0.001 * (100 * g) * (100 * g)
    ins = [operand(v, 0.0, "in0"), operand(g, 99.0, "in1"), operand(g, 99.0, "in2")]
    predicted = forward_rel("addcmul", ins, operand(plain, 0.0, "out0"))
    assert BAND[0] <= apart(noisy, plain) / predicted <= BAND[1]


def test_adams_quotient_turns_where_its_numerator_is_as_small_as_its_difference() -> None:
    g = normal(400, 50)
    noisy = moved(g, 1e-4, 1)
    p = normal(400, 50, seed=3)
    plain, other = p - 0.1 * g / g.abs(), p - 0.1 * noisy / noisy.abs()
    ins = [operand(p, 0.0, "in0"), operand(0.1 * g, 1e-4, "in1"), operand(g.abs(), 1e-4, "in2")]
    predicted = forward_rel("addcdiv", ins, operand(plain, 0.0, "out0"))
    assert 0.1 <= apart(other, plain) / predicted <= 2.0


def test_equal_inputs_have_nothing_to_pass_on() -> None:
    for function, call, ins in FORWARD.values():
        assert forward_rel(function, operands(ins, 0.0), operand(call(*ins), 0.0, "out0")) == 0.0


def test_an_addend_that_comes_first_is_no_factor() -> None:
    addend, a, b = operands((normal(4), normal(4, 3), normal(3, 4)))
    assert factors_first("addmm", [addend, a, b]) == [a, b, addend]
    assert factors_first("linear", [a, b, addend]) == [a, b, addend]


@pytest.mark.parametrize(
    ("api", "name"),
    [
        ("torch.Tensor.__iadd__", "add"),
        ("torch.Tensor.mul_", "mul"),
        ("torch._foreach_addcdiv_", "addcdiv"),
        ("torch.nn.modules.normalization.LayerNorm", "layer_norm"),
        ("torch.Tensor.__rsub__", "sub"),
    ],
)
def test_ways_to_write_a_call_are_one_function(api: str, name: str) -> None:
    assert function_of(api) == name


def test_predictions_are_finite_where_nothing_was_measured() -> None:
    bare = Operand(REL, None, (4, 4), slot="in0")
    for function, _, ins in FORWARD.values():
        assert math.isfinite(forward_rel(function, [bare] * len(ins), Operand(0.0, None, (4, 4))))


@pytest.mark.parametrize("rel", [1e-3, 1e-2, 1e-1])
def test_gradients_turn_where_rounding_moves_the_input_of_a_relu_through_zero(rel: float) -> None:
    x, given = normal(200, 200), normal(200, 200, seed=3)
    one, other = given * (moved(x, rel, 0) > 0), given * (x > 0)
    expected = backward_rel("relu", operand(given, 0.0, "out0"), [operand(x, rel, "in0")], operand(other, 0.0, "in0"))
    assert 0.7 < apart(one, other) / expected < 1.5


def test_hardly_a_gradient_turns_where_an_input_of_a_relu_is_exact_enough() -> None:
    x = normal(200, 200)
    known = operand(x, 1e-7, "in0")
    assert backward_rel("relu", operand(x, 0.0, "out0"), [known], known) < 2e-7
