"""The compiled kernel against the slowest truth, where its blocks, pages and vectors begin and end."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.kernels import SETS, using
from tests.unit.projected import projected

from trueline.schema.columns.records import STAT_NAMES
from trueline.tensor import native
from trueline.tensor.fingerprint import HostFingerprint
from trueline.tensor.measure import HostMeter
from trueline.tensor.native import NATIVE, packed_weights
from trueline.tensor.weights import PAGE

BLOCK = 2048  # numbers that the kernel takes at a time, and LANES sums in each
LANES = 16
NUM_STATS = len(STAT_NAMES)
EDGES = sorted({1, 2, 3, 15, 17, *(edge + more for edge in (LANES, BLOCK, 3 * BLOCK, PAGE) for more in (-1, 0, 1))})

pytestmark = pytest.mark.skipif(
    NATIVE is None, reason="the package was built without a compiler, or with it turned off"
)


def measure(x, **place):
    """Statistics and fingerprint in one pass, which every instruction set finds alike."""
    found = []
    for name in SETS:
        out_S = np.full(NUM_STATS, 123.0)
        with using(name):
            fingerprint = HostMeter(NATIVE).all_into(x, out_S, **place)
        found.append((out_S, fingerprint))
    for out_S, fingerprint in found[1:]:
        assert out_S.tobytes() == found[0][0].tobytes()
        assert fingerprint == found[0][1]
    return found[0]


def values(numel, dtype, seed=0):
    """Numbers of many sizes and both signs, with all that is special among them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(numel, generator=generator, dtype=torch.float64)
    x = (x * 10 ** torch.randint(-3, 4, (numel,), generator=generator)).to(dtype)
    if dtype.is_floating_point:
        tiny = torch.finfo(dtype).smallest_normal / 4
        for place, odd in enumerate((math.nan, math.inf, -math.inf, 0.0, -0.0, tiny, -tiny)):
            x[7 + place :: 97 + place] = odd
    return x


def summed(x):
    """Sum and sum of squares without any rounding but the last."""
    finite = [value for value in x.double().tolist() if math.isfinite(value)]
    return math.fsum(finite), math.fsum(value * value for value in finite), math.fsum(map(abs, finite))


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64]
)
def test_sums_are_those_of_float64_whatever_the_dtype_and_the_machine(dtype):
    for numel in EDGES:
        x = values(numel, dtype, seed=numel)
        out_S, _ = measure(x)
        total, square, size = summed(x)
        # Each of 16 lanes rounds numel / 16 times, and each rounding is at most 2⁻⁵³ of what the lane has by then.
        room = 2**-53 * (numel / LANES + 5)
        assert abs(out_S[7] - total) <= room * size
        assert abs(out_S[8] - square) <= room * square * (1 + 1e-15) + 2**-53 * square


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_one_pass_finds_what_two_by_numpy_find(data):
    dtype = data.draw(st.sampled_from(list(native.WORTH)))
    dims = data.draw(st.integers(1, 4))
    shape = [data.draw(st.integers(0, 9)) for _ in range(dims - 1)] + [data.draw(st.sampled_from([1, 2, 5, 40, 700]))]
    x = values(math.prod(shape) + 3, torch.float64).nan_to_num(3).to(dtype)[3:].reshape(shape)
    x = x.permute(data.draw(st.permutations(range(dims))))
    for dim in range(dims):
        step = data.draw(st.integers(1, 3))
        x = x[(slice(None),) * dim + (slice(data.draw(st.integers(0, 2)), None, step),)]
    if data.draw(st.booleans()):
        x = x[None].expand(data.draw(st.integers(1, 3)), *x.shape)
    out_S, fingerprint = measure(x)
    want_S = np.zeros(NUM_STATS)
    HostMeter(None).stats_into(x, want_S)
    np.testing.assert_array_equal(out_S[:7], want_S[:7])
    if math.isfinite(want_S[8]):
        np.testing.assert_allclose(out_S[7:], want_S[7:], rtol=1e-6, atol=1e-6 * math.sqrt(want_S[8] * x.numel()))
    assert fingerprint == HostFingerprint(None).of(x)
    alone_S = np.zeros(NUM_STATS)
    HostMeter(NATIVE).stats_into(x, alone_S)
    np.testing.assert_array_equal(alone_S, out_S)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int8])
@pytest.mark.parametrize("offset", [1, 2, 3, 5])
def test_memory_at_any_address_is_read(dtype, offset):
    x = values(BLOCK + 21, dtype)
    raw = np.zeros(x.numel() * x.element_size() + offset, np.uint8)
    raw[offset:] = x.view(torch.uint8).numpy() if dtype != torch.uint8 else x.numpy()
    moved = torch.frombuffer(raw, dtype=dtype, offset=offset)
    assert moved.data_ptr() % 2 == (raw.ctypes.data + offset) % 2
    for got, want in zip(measure(moved), measure(x), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("numel", EDGES)
def test_nothing_behind_the_last_number_is_read(dtype, numel):
    """What lies there is NaN, and would show."""
    beyond = torch.full((numel + 64,), math.nan, dtype=dtype)
    beyond[:numel] = 1.5
    out_S, fingerprint = measure(beyond[:numel])
    assert out_S[:9].tolist() == [0, 0, 0, 0, 0, 1.5, 1.5, 1.5 * numel, 2.25 * numel]
    assert out_S[9:].tolist() == projected(np.full(numel, 1.5), dtype).tolist()
    assert fingerprint == HostFingerprint(None).of(torch.full((numel,), 1.5, dtype=dtype))


@pytest.mark.parametrize("start", [0, 1, PAGE - 1, PAGE, 5 * PAGE - 3, PAGE * PAGE - 2])
def test_a_shard_is_fingerprinted_where_it_lies_in_the_whole(start):
    x = values(PAGE + 10, torch.float32)
    whole = (PAGE * PAGE + 10 * PAGE,)
    place = {"whole_shape": whole, "offsets": (start,)}
    assert measure(x, **place)[1] == HostFingerprint(None).of(x, **place)


def test_memory_that_was_freed_is_not_read():
    """FSDP2 frees the storage of parameters that are not in use, and their tensors keep their shapes."""
    x = torch.ones(40)
    x.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="40 elements are to be read, and their memory is freed"):
        HostMeter(NATIVE).stats_into(x, np.zeros(NUM_STATS))


def test_results_go_nowhere_but_into_a_row_of_numbers_for_all():
    x = torch.ones(3)
    for out_S in (np.zeros(NUM_STATS - 1), np.zeros(NUM_STATS, np.float32), np.zeros(NUM_STATS, np.int64)):
        with pytest.raises(ValueError, match="12 float64"):
            HostMeter(NATIVE).stats_into(x, out_S)
    with pytest.raises(ValueError, match=r"contiguous|buffer"):
        HostMeter(NATIVE).stats_into(x, np.zeros(2 * NUM_STATS)[::2])


def test_calls_that_make_no_sense_are_refused():
    kernel, out_S, weights = NATIVE.kernel, np.zeros(NUM_STATS), packed_weights()
    with pytest.raises(TypeError, match="2 arguments given, 7 expected"):
        kernel.measure_dense(kernel.FLOAT32, 0)
    with pytest.raises(ValueError, match="no kind"):
        kernel.measure_dense(99, 0, 0, out_S, weights, 0, True)
    with pytest.raises(ValueError, match="less than 0"):
        kernel.measure_dense(kernel.FLOAT32, 0, -1, out_S, weights, 0, True)
    with pytest.raises(ValueError, match="weights are"):
        kernel.measure_dense(kernel.FLOAT32, 0, 0, out_S, weights[1:], 0, True)
    x = np.zeros(3, np.float32)
    with pytest.raises(ValueError, match="3 numbers are not 2 runs of equal length"):
        kernel.measure_dense(kernel.FLOAT32, x.ctypes.data, 3, out_S, weights, np.zeros(2, np.int64), True)
    with pytest.raises(ValueError, match="unlike lengths"):
        kernel.measure_strided(kernel.FLOAT32, 0, (0, 2), (1,), out_S, weights, 0, True)
    with pytest.raises(ValueError, match="no instruction set"):
        kernel.use("mmx")


def test_the_environment_turns_it_off(monkeypatch):
    monkeypatch.setenv(native.SWITCH, "0")
    assert native._load() is None


def test_another_build_than_the_sources_is_not_used(monkeypatch):
    monkeypatch.setattr(NATIVE.kernel, "INTERFACE", native.INTERFACE + 1)
    assert native._load() is None
