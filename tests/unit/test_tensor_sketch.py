"""Norms and sketches against slow truths in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trueline.tensor.sketch import LENGTHS, SignBank, measure, signs_needed, sketch_length

K = 521


def slow_sketch(x, signs, k):
    flat = x.double().reshape(-1)
    out = torch.zeros(k, dtype=torch.float64)
    for row in range(-(-flat.numel() // k)):
        piece = flat[row * k : (row + 1) * k]
        out[: piece.numel()] += signs[row].double() * piece
    return out


def bank(numel, shards=1):
    return SignBank(capacity=signs_needed(numel, k=K, shards=shards), device=torch.device("cpu"))


@pytest.mark.parametrize("numel", [0, 1, 7, 520, 521, 522, 521 * 256, 521 * 600 + 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_measure_equals_slow_truth(numel, dtype):
    x = torch.randn(numel, generator=torch.Generator().manual_seed(numel)).to(dtype)
    signs = bank(numel).signs("w", signs_needed(numel, k=K))
    norm2, sketch = measure(x, signs, k=K)
    truth = slow_sketch(x, signs, K)
    assert norm2.item() == pytest.approx(x.double().square().sum().item(), rel=1e-6)
    # float32 inside blocks of 256 rows: 8 standard errors of 2^-24 * sqrt(128) of the norm (docs: rounding floors)
    floor = 8 * 2**-24 * math.sqrt(128) * math.sqrt(max(norm2.item(), 1e-30))
    assert (sketch - truth).norm().item() <= floor


def test_low_precision_is_widened_in_pieces(monkeypatch):
    monkeypatch.setattr("trueline.tensor.sketch.LOW_PRECISION_CHUNK", 3 * K)
    x = torch.randn(11 * K + 5).bfloat16()
    signs = bank(x.numel()).signs("w", signs_needed(x.numel(), k=K))
    norm2, sketch = measure(x, signs, k=K)
    torch.testing.assert_close(sketch, slow_sketch(x, signs, K), rtol=1e-5, atol=1e-4)
    assert norm2.item() == pytest.approx(x.double().square().sum().item(), rel=1e-6)


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 5000), st.floats(-3, 3), st.floats(-3, 3), st.integers(0, 10_000))
def test_sketch_is_linear(numel, a, b, offset):
    generator = torch.Generator().manual_seed(numel)
    x, y = torch.randn(2, numel, generator=generator, dtype=torch.float64)
    signs = bank(numel).signs("w", signs_needed(numel, k=K))
    both = measure(a * x + b * y, signs, k=K, offset=offset)[1]
    apart = a * measure(x, signs, k=K, offset=offset)[1] + b * measure(y, signs, k=K, offset=offset)[1]
    torch.testing.assert_close(both, apart, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("shards", [2, 3, 8])
def test_sketches_of_shards_add_up_to_the_sketch_of_the_whole(shards):
    width = 3 * K + 11
    buffer = torch.randn(shards, width + 40)
    x_WC = buffer[:, 5 : 5 + width]
    count = shards * (width // K + 1)
    signs = bank(shards * width, shards).signs("w", count)
    norm2, whole = measure(x_WC, signs, k=K, offset=9, shards=shards)
    rows = width // K + 1
    parts = [measure(x_WC[w].contiguous(), signs[w * rows :], k=K, offset=9) for w in range(shards)]
    torch.testing.assert_close(sum(part[1] for part in parts), whole, rtol=1e-5, atol=1e-4)
    assert sum(part[0].item() for part in parts) == pytest.approx(norm2.item(), rel=1e-9)


def test_a_transposed_gradient_is_read_in_logical_order():
    x = torch.randn(40, 60)
    signs = bank(x.numel()).signs("w", signs_needed(x.numel(), k=K))
    assert torch.equal(measure(x.t().contiguous().t(), signs, k=K)[1], measure(x, signs, k=K)[1])


def test_cosine_error_is_what_theory_says():
    generator = torch.Generator().manual_seed(1)
    errors = []
    numel = 40 * K
    for trial in range(200):
        a = torch.randn(numel, generator=generator)
        b = 0.5 * a + math.sqrt(0.75) * torch.randn(numel, generator=generator)
        signs = bank(numel).signs(f"w{trial}", signs_needed(numel, k=K))
        sa, sb = measure(a, signs, k=K)[1], measure(b, signs, k=K)[1]
        errors.append((sa @ sb / sa.norm() / sb.norm() - a @ b / a.norm() / b.norm()).item())
    measured = math.sqrt(sum(error**2 for error in errors) / len(errors))
    theory = (1 - 0.5**2) / math.sqrt(K)
    assert 0.8 * theory < measured < 1.2 * theory  # 200 trials: the standard error of a standard deviation is 5 %


def test_large_float32_norm_is_right_where_a_flat_one_is_wrong():
    x = torch.rand(9_000_000, generator=torch.Generator().manual_seed(0)) + 1
    signs = bank(x.numel()).signs("w", signs_needed(x.numel(), k=K))
    truth = x.double().square().sum().item()
    assert measure(x, signs, k=K)[0].item() == pytest.approx(truth, rel=1e-7)


def test_nan_and_inf_show_in_the_norm():
    signs = bank(2000).signs("w", signs_needed(2000, k=K))
    for bad in (math.nan, math.inf):
        x = torch.ones(2000)
        x[1999] = bad
        assert not math.isfinite(measure(x, signs, k=K)[0].item())


def test_signs_are_the_same_everywhere_and_differ_by_name():
    one, two = bank(521 * 300), bank(521 * 300)
    assert torch.equal(one.signs("a.weight", 300), two.signs("a.weight", 300))
    assert not torch.equal(one.signs("a.weight", 300), one.signs("b.weight", 300))
    with pytest.raises(ValueError, match="built for"):
        one.signs("a.weight", 10_000)


@pytest.mark.parametrize("groups", [1, 2, 4, 8, 16, 256])
def test_sketch_lengths_are_prime_and_shrink(groups):
    k = sketch_length(groups)
    assert k in LENGTHS
    assert all(k % divisor for divisor in range(2, math.isqrt(k) + 1))
