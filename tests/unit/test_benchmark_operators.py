"""The survey of operators in bfloat16: a planted kernel that adds up in bfloat16 is named, healthy ones are not."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch
from benchmarks.operators.allowance import worst_of
from benchmarks.operators.cases import KINDS, Case, with_kind
from benchmarks.operators.kernels import KernelCall, Kernels
from benchmarks.operators.survey import Survey

ROWS = 512

RIGHT_REPRODUCTIONS = """
import math, tomllib, torch
from benchmarks.operators.__main__ import REPRODUCTIONS, reproduced
from benchmarks.operators.allowance import LIMIT

torch.set_num_threads(1)
for kernel, reproduction in tomllib.loads(REPRODUCTIONS.read_text()).items():
    actual, exact = reproduced(reproduction)
    half_ulp = 2.0 ** (math.floor(math.log2(abs(exact))) - 8) if exact else 0.0
    if abs(actual - exact) <= LIMIT * half_ulp:  # one returns NaN
        print(kernel)
"""
"""Prints the kernels whose result is as exact as their sum allows."""


@pytest.fixture(scope="module")
def narrow_sum():
    """An operator that adds up rows in the dtype that it is given."""

    @torch.library.custom_op("surveyed::narrow_sum", mutates_args=())
    def narrow_sum(x: torch.Tensor) -> torch.Tensor:
        total = torch.zeros_like(x[0])
        for row in x:
            total = total + row
        return total

    yield narrow_sum
    narrow_sum._lib._destroy()


def rows(kind):
    torch.manual_seed(0)
    return with_kind(torch.randn(ROWS, 8).bfloat16(), kind)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_in_bfloat16_is_worse_and_one_in_float32_is_not(narrow_sum, kind):
    survey = Survey()
    healthy = {"sum": lambda x: x.sum(0), "mean": lambda x: x.mean(0), "mm": lambda x: x.t() @ x, "tanh": torch.tanh}
    survey.add(Case(name, kind, function, (rows(kind),), {}) for name, function in healthy.items())
    assert survey.worse() == []
    assert {"sum", "mean", "mm", "tanh_backward"} <= survey.kernels
    if kind == "cancelling":  # where partial sums stay small, so do errors of rounding
        return
    survey.add([Case("planted", kind, narrow_sum, (rows(kind),), {})])
    assert [(judged.call.name, judged.operator) for judged in survey.worse()] == [("narrow_sum", "planted")]


def test_the_allowance_of_a_sum_is_half_an_ulp_and_n_u_times_its_magnitudes():
    x = rows("cancelling")[:, :1]
    with Kernels() as kernels:
        x.sum(0)
    (call,) = kernels
    (worst,) = worst_of(call)
    exact = float(x.double().sum())
    half_ulp = 2.0 ** (math.floor(math.log2(abs(exact))) - 8)
    assert worst.allowance == pytest.approx(half_ulp + ROWS * 2**-24 * float(x.double().abs().sum()), rel=1e-3)


def test_what_a_derivative_does_not_know_is_allowed_as_if_each_number_were_a_term():
    x = torch.ones(64, dtype=torch.bfloat16)
    planted = KernelCall(torch.ops.aten.floor.default, (x * 0.5,), {})
    assert [worst.times for worst in worst_of(planted)] == [0.0]


def test_every_reproduction_shows_what_it_says():
    if not torch.__version__.startswith("2.13.0"):
        pytest.skip("the kernels of another torch may be right")
    # the page was measured with kernels for AVX2: on a processor with AVX-512 oneDNN takes a convolution that is right
    environ = {**os.environ, "ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    right = subprocess.run(
        [sys.executable, "-c", RIGHT_REPRODUCTIONS],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=200,
    )
    assert right.stdout == ""
