"""Laws of rounding: against sums that are run step by step, and roundings that NumPy makes."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.rounded_sums import sum_sq_std, sum_std

from trueline.comparison.expect.ops import LAWS, op_rounding_rel
from trueline.comparison.expect.rounding import (
    KAPPA,
    UNIT_ROUNDOFF,
    dot_error_rel,
    explained_by_order,
    order_difference_rel,
    rounding_rel,
    stagnates,
    sum_error_rel,
    unit_roundoff,
)
from trueline.comparison.op_names import op_class_of
from trueline.schema.errors import InputError

U32 = 2.0**-24
U16 = 2.0**-11


def partial_sums(num_terms, order, block):
    """Sizes of all partial sums, by carrying the additions out on ones."""
    seen = []

    def add(terms):
        total = terms[0]
        for term in terms[1:]:
            total += term
            seen.append(total)
        return total

    def halve(terms):
        half = len(terms) // 2
        return add([halve(terms[:half]), halve(terms[half:])]) if half else terms[0]

    terms = [1] * num_terms
    if order == "sequential":
        add(terms)
    elif order == "tree":
        halve(terms)
    else:
        while len(terms) > block:
            terms = [add(terms[i : i + block]) for i in range(0, len(terms), block)]
            if order == "blocked":
                break
        add(terms)
    return seen


@pytest.mark.parametrize("mean_cosine", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("num_terms", [1, 2, 3, 7, 16, 64, 256, 4096])
@pytest.mark.parametrize(("order", "block"), [("sequential", 0), ("tree", 0), ("cascade", 16), ("blocked", 16)])
def test_error_of_a_sum_counts_every_partial_sum_that_its_order_forms(order, block, num_terms, mean_cosine):
    def square(k):
        return k + k * (k - 1) * mean_cosine

    told = math.sqrt(sum(square(k) for k in partial_sums(num_terms, order, block)) / square(num_terms))
    asked = {"block": block} if order == "blocked" else {}
    law = sum_error_rel(num_terms, order=order, u=U32, mean_cosine=mean_cosine, **asked)
    assert law == pytest.approx(KAPPA * U32 * told, rel=1e-9, abs=1e-30)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_unit_roundoff_is_half_of_what_torch_calls_eps(dtype):
    assert unit_roundoff(dtype) == unit_roundoff(f"torch.{dtype}") == torch.finfo(getattr(torch, dtype)).eps / 2


def test_one_rounding_has_kappa_u_on_average_over_the_scale_of_a_vector():
    rng = np.random.default_rng(0)
    for draw in (rng.standard_normal, rng.standard_exponential):
        vectors = draw(4000)[None] * 2.0 ** (np.arange(64)[:, None] / 64)
        errors = np.sum((vectors.astype(np.float32) - vectors) ** 2, axis=1) / np.sum(vectors**2, axis=1)
        assert np.sqrt(errors.mean()) == pytest.approx(rounding_rel(U32), rel=0.01)


def sums_of(terms_Nn, permutation):
    """One after the other, each partial sum rounded to the dtype of the terms."""
    total = terms_Nn[permutation[0]].copy()
    for n in permutation[1:]:
        total = total + terms_Nn[n]
    return total


def scaled(rng, shape):
    return rng.standard_normal(shape) * 2.0 ** rng.uniform(-2, 2, shape[-1])


@pytest.mark.parametrize(("dtype", "u"), [(np.float32, U32), (np.float16, U16)])
@pytest.mark.parametrize("num_terms", [4, 16, 64])
def test_measured_errors_and_differences_of_orders_are_the_expected_ones(dtype, u, num_terms):
    rng = np.random.default_rng(num_terms)
    terms = scaled(rng, (num_terms, 8000)).astype(dtype)
    exact = terms.astype(np.float64).sum(0)
    first, second = (sums_of(terms, rng.permutation(num_terms)).astype(np.float64) for _ in range(2))
    norm = np.linalg.norm(exact)

    error, difference = np.linalg.norm(first - exact) / norm, np.linalg.norm(first - second) / norm
    # Eight thousand elements leave 1 %; what is left is the law's own error, mantissas not being log-uniform.
    assert error == pytest.approx(sum_error_rel(num_terms, order="sequential", u=u), rel=0.12)
    assert difference == pytest.approx(order_difference_rel(num_terms, u=u), rel=0.12)


@pytest.mark.parametrize("mean_cosine", [-0.9, 0.0, 0.1, 0.3, 0.7])
def test_two_terms_have_one_order(mean_cosine):
    assert order_difference_rel(2, u=U32, mean_cosine=mean_cosine) == 0
    assert explained_by_order(1e-9, 2, "float32").explained is False
    assert explained_by_order(0.0, 2, "float32").explained is True


@pytest.mark.parametrize("ratio", [0.01, 0.1, 0.3, 0.9])
def test_numbers_that_are_apart_come_out_a_step_of_the_coarse_grid_apart_or_equal(ratio):
    u_out, u = 2.0**-8, 2.0**-8 * ratio
    apart = KAPPA * u * math.sqrt(2 * 5 / 3)  # three terms: (e(2) + e(3))/e(3) = 5/3, twice
    rng = np.random.default_rng(0)
    x = 2.0 ** rng.uniform(0, 1, 400_000)
    steps = 2 * u_out
    pair = [np.round(x * (1 + apart / math.sqrt(2) * rng.standard_normal(len(x))) / steps) * steps for _ in range(2)]
    simulated = math.sqrt(np.mean(((pair[0] - pair[1]) / x) ** 2))
    assert order_difference_rel(3, u=u, u_out=u_out) == pytest.approx(simulated, rel=0.03)


@pytest.mark.parametrize("positive", [False, True])
def test_error_of_a_product_is_that_of_its_sums_under_its_condition(positive):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((60, 64)).astype(np.float32) for _ in range(2))
    if positive:
        a, b = np.abs(a), np.abs(b)
    exact = a.astype(np.float64) @ b.T.astype(np.float64)
    products = (a.astype(np.float64)[:, None, :] * b.astype(np.float64)[None]).reshape(-1, 64)
    total = np.zeros(len(products), dtype=np.float32)
    for k in range(64):
        total = (total.astype(np.float64) + products[:, k]).astype(np.float32)  # fused: one rounding a term
    condition = np.linalg.norm(a) * np.linalg.norm(b) / (8 * np.linalg.norm(exact))
    measured = np.linalg.norm(total - exact.ravel()) / np.linalg.norm(exact)
    law = dot_error_rel(64, u_accumulate=U32, u_out=0.0, condition=condition, order="sequential")
    assert measured == pytest.approx(law, rel=0.1)


def test_products_that_cancel_have_the_error_of_what_cancelled():
    one, hundred = (dot_error_rel(64, u_accumulate=U32, u_out=0.0, condition=c) for c in (1.0, 100.0))
    assert 50 * one < hundred < 100 * one


@pytest.mark.parametrize(
    ("num_terms", "dtype", "mean_cosine", "order", "told"),
    [
        (1024, "bfloat16", 0.1, "sequential", True),
        (1024, "bfloat16", 0.1, "ring", True),
        (1024, "bfloat16", 0.1, "tree", False),
        (64, "bfloat16", 0.0, "sequential", False),
        (1024, "float32", 1.0, "sequential", False),
        (2, "bfloat16", 1.0, "sequential", False),
    ],
)
def test_low_precision_added_one_after_the_other_stagnates(num_terms, dtype, mean_cosine, order, told):
    assert stagnates(num_terms, u=UNIT_ROUNDOFF[dtype], mean_cosine=mean_cosine, order=order) is told


def test_a_difference_is_explained_by_order_not_explained_or_cannot_be_told():
    expected = order_difference_rel(8, u=UNIT_ROUNDOFF["bfloat16"])
    within = explained_by_order(expected, 8, "bfloat16")
    assert (within.explained, within.expected_rel) == (True, expected)
    assert explained_by_order(2 * expected, 8, "bfloat16").explained is False
    assert explained_by_order(expected, 8, "bfloat16", accumulate="float32").explained is False
    assert explained_by_order(0.4, 1024, "bfloat16", mean_cosine=0.1).explained is None
    assert explained_by_order(0.4, 1024, "bfloat16", mean_cosine=0.1, order="tree").explained is False


@given(seed=st.integers(0, 2**32 - 1), heavy=st.booleans(), shift=st.sampled_from([0.0, 1.0]))
@settings(max_examples=20, deadline=None)
def test_sums_of_rounded_numbers_move_as_far_as_independent_errors_make_them(seed, heavy, shift):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((300, 400)) * (2.0 ** rng.standard_normal((300, 400)) if heavy else 1.0) + shift
    rounded = x.astype(np.float16).astype(np.float64)
    square = np.sum(x**2, axis=1)
    error = np.linalg.norm(rounded - x, axis=1) / np.sqrt(square)
    largest = np.abs(x).max(axis=1)

    moved = np.sum(rounded - x, axis=1) / [sum_std(*pair) for pair in zip(error, square, strict=True)]
    limits = [sum_sq_std(*triple) for triple in zip(error, square, largest, strict=True)]
    moved_sq = np.sum(rounded**2 - x**2, axis=1) / limits
    # The root mean square of 300 draws is known to 1/sqrt(600) = 4 %; four of these.
    assert np.sqrt(np.mean(moved**2)) == pytest.approx(1.0, abs=0.17)
    assert np.sqrt(np.mean(moved_sq**2)) < 1.0


def test_ops_that_only_move_numbers_are_exact_and_unknown_ones_are_given_most():
    told = {each: op_rounding_rel(each, "bfloat16", "bfloat16", 1024) for each in LAWS}
    assert told["exact"] == 0
    assert told["rounded"] == pytest.approx(rounding_rel(UNIT_ROUNDOFF["bfloat16"]))
    assert all(told["unknown"] >= rel for each, rel in told.items() if each not in ("scatter", "unknown"))


@pytest.mark.parametrize(
    ("api", "op_class"),
    [
        ("torch.nn.functional.linear", "matmul"),
        ("torch.Tensor.__getitem__", "exact"),
        ("torch.Tensor.add_", "rounded"),
        ("torch.nn.functional.scaled_dot_product_attention", "attention"),
        ("my_package.MyKernel", "unknown"),
    ],
)
def test_a_call_has_the_class_of_its_name(api, op_class):
    assert op_class_of(api) == op_class


def test_a_product_with_one_row_is_a_class_of_its_own():
    assert (op_class_of("torch.nn.functional.linear", rows=1), op_class_of("torch.relu", rows=1)) == ("matvec", "exact")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: unit_roundoff("int8"), "'int8' has no known rounding"),
        (lambda: sum_error_rel(0, order="tree", u=U32), "from 1 on"),
        (lambda: sum_error_rel(4, order="tree", u=U32, mean_cosine=-0.5), "above -0.333333"),
        (lambda: sum_error_rel(4, order="star", u=U32), "'star' is no order"),
        (lambda: dot_error_rel(4, u_accumulate=U32, u_out=U32, condition=0.0), "condition of 0"),
        (lambda: op_rounding_rel("magic", "float32", "float32"), "'magic' is no class of ops"),
        (lambda: op_rounding_rel("matmul", "float32", "float32", 4, math.inf), "condition of inf"),
        (lambda: explained_by_order(math.nan, 4, "float32"), "nan cannot be"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(call, words):
    with pytest.raises(InputError, match=words):
        call()
