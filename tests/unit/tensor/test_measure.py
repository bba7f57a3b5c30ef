"""Every dtype, size and layout is measured as a plain loop over its numbers would, on the host and on a device."""

import math
import os
import shutil
import sysconfig
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.kernels import SETS, using
from tests.unit.projected import projected

from trueline.schema.columns.records import STAT_NAMES
from trueline.schema.stats import TensorStats
from trueline.tensor.lanes import CHUNK, MEASURABLE, PARTS, SMALL
from trueline.tensor.measure import (
    HostMeter,
    exponents_of,
    exponents_on_device,
    measure_on_device,
    num_measured,
    unmeasurable,
)
from trueline.tensor.native import NATIVE, SWITCH

NUMPY, KERNEL = HostMeter(None), HostMeter(NATIVE)
DTYPES = sorted(MEASURABLE, key=str)
FLOATS = [dtype for dtype in DTYPES if dtype.is_floating_point]
SHAPES = [(), (0,), (1,), (7,), (33, 130), (301, 450)]  # scalar, empty, one, few, more than SMALL, more than CHUNK
NUM_EXACT = STAT_NAMES.index("sum")


def parts(x):
    """The numbers of ``x`` as float64, a complex one being two."""
    x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
    return x.detach().resolve_neg().double().reshape(-1).clone().numpy()


def truth(x):
    """The statistics by NumPy in float64."""
    tiny = torch.finfo(x.dtype).smallest_normal if x.dtype.is_floating_point or x.dtype.is_complex else 0
    values = parts(x)
    finite = values[np.isfinite(values)]
    counts = [np.isnan(values).sum(), (values == np.inf).sum(), (values == -np.inf).sum(), (values == 0).sum()]
    subnormal = ((abs(values) < tiny) & (values != 0)).sum()
    extremes = [finite.min(), finite.max()] if finite.size else [np.nan, np.nan]
    with np.errstate(over="ignore", invalid="ignore"):
        sums = [finite.sum(), (finite**2).sum(), *projected(values, PARTS.get(x.dtype, x.dtype))]
    return np.array([*counts, subnormal, *extremes, *sums], dtype=np.float64)


def measured(x, **place):
    """By NumPy and, which must be within its rounding, by the kernel, which must not depend on the machine."""
    by_numpy_S = taken(NUMPY, x, **place)
    for name in SETS:
        with using(name):
            by_kernel_S = taken(KERNEL, x, **place)
        if name == SETS[0]:
            first_S = by_kernel_S
            assert_close(by_kernel_S, by_numpy_S, x)
        np.testing.assert_array_equal(by_kernel_S, first_S)
    return by_numpy_S


def taken(meter, x, **place):
    out_S = np.full(len(STAT_NAMES), 123.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        meter.stats_into(x, out_S, **place)
    return out_S


def assert_same(got_S, x):
    assert_close(got_S, truth(x), x)


def assert_close(got_S, want_S, x):
    """Counts and extremes equal; sums to 1e-6 of the square sum, the room of float32 within a row of 1,024."""
    np.testing.assert_array_equal(got_S[:NUM_EXACT], want_S[:NUM_EXACT])
    total, square = want_S[7:9]
    if np.isfinite(square):
        assert abs(got_S[8] - square) <= 1e-6 * square
        assert abs(got_S[7] - total) <= 1e-6 * math.sqrt(square * max(x.numel(), 1))
        np.testing.assert_allclose(got_S[9:], want_S[9:], rtol=0, atol=4 * 2**-24 * math.sqrt(square) + 1e-44)


def random_bits(shape, dtype, seed=0):
    """Any bits at all: NaNs of all kinds, infinities, subnormals."""
    generator = torch.Generator().manual_seed(seed)
    numel = math.prod(shape)
    bits = torch.randint(0, 256, ((numel + 1) * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    if dtype == torch.bool:
        return (bits[:numel] & 1).bool().reshape(shape)
    return bits.view(dtype)[:numel].reshape(shape)


def ordinary(shape, dtype):
    """Numbers around one, with zeros."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(shape, generator=generator).mul(3).clamp(min=-1).to(dtype)


def layouts(x):
    yield x
    yield x[None].expand(3, *x.shape)
    if x.dim() == 2:
        yield from (x.t(), x[:, 1::2], x[::2, 3:], x.flip(0).t()[None], x[:, :1].expand(-1, 5))
    if x.is_complex():
        yield from (x.conj(), x.conj().imag)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("make", [random_bits, ordinary])
def test_every_dtype_and_layout_is_measured_as_by_numpy(dtype, make):
    for shape in SHAPES:
        for x in layouts(make(shape, dtype)):
            assert_same(measured(x), x)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_device_measures_what_the_host_does(dtype):
    for shape in SHAPES[:-1]:
        for x in layouts(random_bits(shape, dtype)):
            assert_same(measure_on_device(x).numpy(), x)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("numel", [5, SMALL + 5, CHUNK + 5])
@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_on_one_side_of_zero_keep_their_extremes_beside_what_is_not_finite(dtype, numel, sign):
    x = torch.full((numel,), 2.0 * sign).to(dtype)
    x[1] = 4.0 * sign
    for odd in (math.nan, math.inf, -math.inf):
        y = x.clone()
        y[-1] = odd
        assert_same(measured(y), y)
        assert_same(measure_on_device(y).numpy(), y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("numel", [5, SMALL + 5])
def test_one_nan_of_either_sign_or_signalling_wipes_nothing_else(dtype, numel):
    width = dtype.itemsize
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[width]
    inf = torch.tensor(math.inf, dtype=dtype).view(integer).item()
    for bits in (inf + 1, inf + 1 - (1 << (8 * width - 1)), -1):  # signalling, the same negative, quiet with all bits
        x = torch.ones(numel, dtype=dtype)
        x.view(integer)[2] = bits
        assert_same(measured(x), x)
        assert measured(x)[0] == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("sign", [1, -1])
def test_zeros_and_subnormals_are_counted_wherever_they_lie(dtype, sign):
    numel = 9 * SMALL + 5
    tiny = torch.finfo(dtype).smallest_normal * 0.5 * sign
    for places in ([0], [3 * SMALL], [numel - 1], [5, 4 * SMALL - 1, 4 * SMALL, numel - 2], range(1, numel, 700)):
        for other in (1.0, -1.0):
            x = torch.full((numel,), 1.5).to(dtype)
            x[::2] = other
            x[list(places)] = 0.0 * sign
            assert_same(measured(x), x)
            x[places[-1]] = tiny
            assert_same(measured(x), x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("numel", [5, SMALL + 5, CHUNK + 5])
@pytest.mark.parametrize("odd", [1.0, 0.0, 1e-7, 6e4, math.nan, -math.inf])
def test_measuring_floats_leaves_their_storage_as_it_was(dtype, numel, odd):
    x = torch.full((numel,), odd).to(dtype)
    for y in (x, x[::2], x.expand(3, numel)):
        assert_same(measured(y), y)
    assert x.untyped_storage().resizable()


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool, torch.complex64], ids=str)
def test_measuring_other_numbers_leaves_their_storage_as_it_was(dtype):
    x = torch.arange(3 * SMALL).reshape(3, -1).to(dtype)
    for y in (x, x.t(), x[:, ::2], x[2, 5], x[1:2].expand(4, -1)):
        assert_same(measured(y), y)
        assert NUMPY.all_into(y, np.zeros(len(STAT_NAMES))) == KERNEL.all_into(y, np.zeros(len(STAT_NAMES)))
    assert x.untyped_storage().resizable()


@pytest.mark.parametrize("value", [1e-30, 1e-13, 3e-5, 1e18, 3e38])
def test_squares_that_float32_cannot_hold_are_summed_in_float64(value):
    x = torch.linspace(-value, value, 3 * SMALL)
    assert_same(measured(x), x)
    assert_same(measure_on_device(x).numpy(), x)


def test_equal_numbers_whose_roundings_do_not_cancel_are_summed_to_six_digits():
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x = torch.full((CHUNK + 77,), 0.1234567).to(dtype)
        assert_same(measured(x), x)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40), st.booleans())
def test_any_bits_of_float32_are_measured_as_by_numpy_alone_and_among_many(words, many):
    x = torch.from_numpy(np.array(words, dtype=np.uint32).view(np.float32))
    x = x.repeat(SMALL // len(words) + 1) if many else x
    assert_same(measured(x), x)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_stats_of_shards_cut_anywhere_merge_to_those_of_the_whole(data):
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float64, torch.int32, torch.complex64]))
    shape = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    x = (
        random_bits(shape, dtype, seed=data.draw(st.integers(0, 1000)))
        if dtype != torch.float64
        else ordinary(shape, dtype)
    )
    if dtype != torch.int32:
        flat = (torch.view_as_real(x) if dtype.is_complex else x).view(-1)
        flat[::4], flat[1::5], flat[2::5], flat[3::7] = math.nan, math.inf, -math.inf, 0.0
    dim = data.draw(st.integers(0, len(shape) - 1))
    cuts = sorted(data.draw(st.lists(st.integers(0, shape[dim]), max_size=3)))
    shards = [(shard, at) for shard, at in zip(torch.tensor_split(x, cuts, dim=dim), [0, *cuts], strict=True)]
    stats = [
        TensorStats.from_row(
            measured(shard, whole_shape=shape, offsets=[at if each == dim else 0 for each in range(len(shape))]),
            dtype=str(dtype),
            shape=tuple(shard.shape),
            numel=num_measured(shard),
            exponents=exponents_of(shard).tolist(),
        )
        for shard, at in data.draw(st.permutations(shards))
    ]
    total = sum(stats[1:], stats[0])
    row_S = [*(getattr(total, name) for name in STAT_NAMES[:9]), *total.projections]
    assert_same(np.array([math.nan if value is None else value for value in row_S], dtype=np.float64), x)
    assert total.numel == parts(x).size
    assert total.exponents == tuple(exponents(parts(x)))


def exponents(values):
    counts = np.zeros(256, np.int64)
    for value in values:
        if value != 0 and math.isfinite(value):
            counts[min(max(math.frexp(value)[1] - 1 + 127, 0), 255)] += 1
    return counts


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_exponents_are_those_of_frexp(dtype):
    zeros = torch.zeros(9, dtype=dtype)
    for x in (*layouts(random_bits((33, 40), dtype)), random_bits((0,), dtype), random_bits((), dtype), zeros):
        want = exponents(parts(x))
        np.testing.assert_array_equal(exponents_of(x, None).numpy(), want)
        for name in SETS:
            with using(name):
                np.testing.assert_array_equal(exponents_of(x, NATIVE).numpy(), want)
        np.testing.assert_array_equal(exponents_on_device(x).numpy(), want)


def test_the_device_functions_need_no_value_of_the_tensor():
    """On a meta tensor every look at a value, and every shape that depends on one, raises."""
    for dtype in (torch.float32, torch.bfloat16, torch.complex64, torch.int64, torch.bool):
        x = torch.empty(33, 40, dtype=dtype, device="meta")
        assert measure_on_device(x).shape == (len(STAT_NAMES),)
        assert exponents_of(x).shape == (256,)


def test_measuring_changes_neither_the_tensor_nor_torch():
    x = torch.randn(SMALL + 9, requires_grad=True)
    y = x * 2
    before = (y.detach().clone(), y._version, torch.get_rng_state(), torch.is_grad_enabled(), y.grad_fn)
    measured(y)
    measured(x)
    exponents_of(y)
    measure_on_device(y)
    after = (y.detach(), y._version, torch.get_rng_state(), torch.is_grad_enabled(), y.grad_fn)
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[2], after[2])
    assert (before[1], *before[3:]) == (after[1], *after[3:])
    assert not measure_on_device(y).requires_grad
    float(y.sum().backward() or 0)
    with torch.inference_mode():
        z = torch.ones(SMALL + 9)
        assert_same(measured(z), z)


@pytest.mark.in_turn
@pytest.mark.parametrize("make", [lambda x: x, lambda x: x.t(), lambda x: x[:, ::2], lambda x: x.to(torch.bfloat16)])
def test_nothing_of_the_size_of_the_tensor_is_allocated(make):
    x = make(torch.ones(2048, 2048))
    measured(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        measured(x)
    largest = max((event.cpu_memory_usage for event in profile.events()), default=0)
    assert largest <= 8 * CHUNK < x.numel() * x.element_size() / 2


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_what_cannot_be_measured_is_named():
    x = torch.randn(4, 4)
    assert unmeasurable(x) is unmeasurable(torch.nn.Parameter(x)) is unmeasurable(x.conj()) is None
    assert unmeasurable(x.to("meta")) == "a meta tensor has no values"
    assert unmeasurable(x.to_sparse()) == "layout sparse_coo is not measured"
    assert unmeasurable(torch.quantize_per_tensor(x, 0.1, 0, torch.qint8)) == "dtype qint8 is not measured"
    assert "functional" in (unmeasurable(torch._to_functional_tensor(x)) or "")
    with torch._subclasses.FakeTensorMode():
        assert unmeasurable(torch.ones(2)) == "a FakeTensor has its values in other tensors"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        nested = torch.nested.nested_tensor([x, x[:2]])
        jagged = torch.nested.nested_tensor([x, x[:2]], layout=torch.jagged)
    assert unmeasurable(nested) == "a nested tensor is not measured"
    assert unmeasurable(jagged) == "a NestedTensor has its values in other tensors"


def test_a_subclass_that_only_adds_names_is_measured():
    class Named(torch.Tensor):
        pass

    x = torch.randn(5).as_subclass(Named)
    assert unmeasurable(x) is None
    assert_same(measured(x), x.as_subclass(torch.Tensor))


@pytest.mark.skipif(os.environ.get(SWITCH) == "0", reason="it is turned off")
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no compiler")
@pytest.mark.skipif(not Path(sysconfig.get_path("include"), "Python.h").exists(), reason="Python has no headers here")
def test_the_kernel_is_built_where_it_can_be():
    """Or all tests of it would pass by being skipped."""
    assert NATIVE is not None
