"""The Triton kernels against NumPy and the host's fingerprint: interpreted where there is no CUDA device.

Skipped where Triton is not installed: PyTorch for the CPU comes without it.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from tests.unit.projected import projected

from trueline.tensor.fingerprint import HostFingerprint
from trueline.tensor.weights import PAGE, device_weights

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # read when the kernels are imported
pytest.importorskip("triton")

from trueline.tensor import triton_pass
from trueline.tensor.projections import MASKS_OF

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def mixture(num, dtype, seed=0):
    """Numbers of every kind: NaN, both infinities, zeros of both signs, subnormals, the smallest and largest normal."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(num, generator=generator, dtype=torch.float64).to(dtype)
    kind = torch.randint(0, 15, (num,), generator=generator)
    info = torch.finfo(dtype)
    tiny = info.smallest_normal / 4
    edges = (info.smallest_normal, -info.smallest_normal, info.max if dtype != torch.float64 else 1e150)
    for which, value in enumerate((float("nan"), float("inf"), -float("inf"), 0.0, -0.0, tiny, -tiny, *edges)):
        x[kind == which] = value
    return x


def truth(x):
    wide = x.double().numpy()
    size = np.abs(wide)
    finite = wide[np.isfinite(wide)]
    subnormal = (size > 0) & (size < torch.finfo(x.dtype).smallest_normal)
    counts = [np.isnan(wide), wide == np.inf, wide == -np.inf, wide == 0, subnormal]
    extremes = [finite.min(), finite.max()] if finite.size else [np.nan, np.nan]
    return [*(int(some.sum()) for some in counts), *extremes, float(finite.sum()), float(np.square(finite).sum())]


def measured(x, start=0):
    stats, print_ = triton_pass.measured(x.to(DEVICE), start, device_weights(DEVICE))
    return stats.cpu().tolist(), print_.item() % 2**64


@pytest.mark.parametrize("num", [1, 511, 513, 3000, PAGE + 700])
@pytest.mark.parametrize("dtype", sorted(triton_pass.DTYPES, key=str))
def test_statistics_are_those_of_numpy(dtype, num):
    x = mixture(num, dtype)
    stats, _ = measured(x)
    expected = truth(x)
    np.testing.assert_array_equal(stats[:7], expected[:7])
    np.testing.assert_allclose(stats[7:9], expected[7:], rtol=1e-12)
    assert_projected(stats, x)


@pytest.mark.parametrize("start", [PAGE - 1, 3 * PAGE + 77])
@pytest.mark.parametrize("dtype", sorted(triton_pass.DTYPES, key=str))
def test_projections_are_of_places_in_the_whole(dtype, start):
    x = mixture(PAGE + 700, dtype, seed=4)
    assert_projected(measured(x, start)[0], x, start)


def assert_projected(stats, x, start=0):
    want = projected(x.double().numpy(), x.dtype, start)
    sizes = x.double().nan_to_num(0, 0, 0)
    room = 1e-12 * sizes.where(sizes.abs() < MASKS_OF[x.dtype], 0.0).norm().item()
    np.testing.assert_allclose(stats[9:], want, rtol=0, atol=room)


def test_extremes_are_nan_where_nothing_is_finite():
    stats, _ = measured(torch.tensor([float("nan"), float("inf")]))
    np.testing.assert_array_equal(stats, [1, 1, 0, 0, 0, np.nan, np.nan, 0, 0, 0, 0, 0])


@pytest.mark.parametrize("dtype", sorted(triton_pass.DTYPES, key=str))
def test_fingerprint_is_that_of_the_host(dtype):
    x = mixture(PAGE + 700, dtype, seed=1)
    assert measured(x)[1] == HostFingerprint().of(x, whole_shape=x.shape, offsets=[0])


@pytest.mark.parametrize("cut", [1, 700, PAGE - 1, PAGE + 1])
def test_fingerprints_of_parts_add_up_to_that_of_the_whole(cut):
    x = mixture(PAGE + 900, torch.bfloat16, seed=2)
    whole = HostFingerprint().of(x, whole_shape=x.shape, offsets=[0])
    assert (measured(x[:cut])[1] + measured(x[cut:], start=cut)[1]) % 2**64 == whole


def test_several_slices_of_pages_give_the_same(monkeypatch):
    monkeypatch.setattr(triton_pass, "TILE", PAGE // 4)
    monkeypatch.setattr(triton_pass, "MOST_PROGRAMS", 8)
    x = mixture(5 * PAGE + 17, torch.float32, seed=3)
    stats, print_ = measured(x, start=PAGE // 2)
    np.testing.assert_array_equal(stats[:7], truth(x)[:7])
    np.testing.assert_allclose(stats[7:9], truth(x)[7:], rtol=1e-12)
    assert_projected(stats, x, start=PAGE // 2)
    assert print_ == HostFingerprint().of(x, whole_shape=[10 * PAGE], offsets=[PAGE // 2])
