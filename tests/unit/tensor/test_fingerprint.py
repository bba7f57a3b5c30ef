"""The fingerprint sees every flipped bit and every swap, adds up over shards, and is one number everywhere."""

import functools
import math
import operator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.kernels import SETS, using

from trueline.tensor.fingerprint import HostFingerprint, fingerprint_on_device
from trueline.tensor.native import NATIVE
from trueline.tensor.weights import BOOKS, NEAR_PAGES, PAGE, host_weights

NUMPY, KERNEL = HostFingerprint(None), HostFingerprint(NATIVE)
MOD = 2**64
INTEGERS = {1: "<i1", 2: "<i2", 4: "<i4", 8: "<i4", 16: "<i4"}
DTYPES = [
    *(torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64, torch.complex128),
    *(torch.bool, torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.uint32, torch.float8_e5m2),
]
SHAPES = [(), (0,), (1,), (5,), (3, 7, 11), (301, 301)]  # the last is longer than a page


def truth(x):
    """The formula in Python's integers, one word at a time."""
    dense = x.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).reshape(-1)
    words = np.frombuffer(dense.view(torch.uint8).numpy().tobytes(), dtype=INTEGERS[x.dtype.itemsize])
    place, page, book = factors()
    total = 0
    for n in range(0, len(words), PAGE):
        of_page = sum(map(operator.mul, words[n : n + PAGE].tolist(), place))
        total += of_page * page[n // PAGE % PAGE] * book[n // PAGE**2]
    return total % MOD


@functools.cache
def factors():
    """Those of places in a page, of pages in a book and of books."""
    return [some.tolist() for some in vars(host_weights()).values()]


def on_host(x, **place):
    """By NumPy and by the kernel with every instruction set; they must agree."""
    by_numpy = NUMPY.of(x, **place)
    for name in SETS:
        with using(name):
            assert KERNEL.of(x, **place) == by_numpy
    return by_numpy


def of(x):
    """On the host and by the device's algorithm; they must agree."""
    found = on_host(x)
    assert int(fingerprint_on_device(x)) % MOD == found
    return found


def random_bits(shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    numel = math.prod(shape)
    bits = torch.randint(0, 256, ((numel + 1) * dtype.itemsize,), generator=generator, dtype=torch.uint8)
    bits = bits & 1 if dtype == torch.bool else bits
    return bits.view(dtype)[:numel].reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_it_is_the_formula_for_every_dtype_and_layout(dtype):
    for shape in SHAPES:
        x = random_bits(shape, dtype)
        assert of(x) == truth(x)
        for y in (x.transpose(0, -1), x[..., ::2], x[None].expand(2, *shape)) if shape else ():
            assert of(y) == truth(y) == of(y.contiguous())
        if dtype.is_complex:
            assert of(x.conj()) == truth(x.conj())


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_parts_of_a_tensor_cut_along_any_dims_add_up_to_the_whole(data):
    dtype = data.draw(st.sampled_from(DTYPES))
    shape = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=4))
    x = random_bits(shape, dtype, seed=data.draw(st.integers(0, 99)))
    parts = [(x, [0] * x.dim())]
    for _ in range(data.draw(st.integers(0, 3))):
        dim = data.draw(st.integers(0, x.dim() - 1))
        parts = [piece for part in parts for piece in split(*part, dim, data.draw(st.integers(0, 7)))]
    total = on_device = 0
    for part, offsets in data.draw(st.permutations(parts)):
        total += on_host(part, whole_shape=shape, offsets=offsets)
        on_device += int(fingerprint_on_device(part, whole_shape=shape, offsets=offsets))
    assert total % MOD == on_device % MOD == truth(x)


def split(x, offsets, dim, at):
    at = min(at, x.shape[dim])
    second = [offset + at * (position == dim) for position, offset in enumerate(offsets)]
    return (x.narrow(dim, 0, at), offsets), (x.narrow(dim, at, x.shape[dim] - at), second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("dim", [0, 1])
def test_large_uneven_shards_add_up_across_pages(dtype, dim):
    x = random_bits((300, 1500), dtype)
    total = start = 0
    for shard in torch.tensor_split(x, [1, 123, 123], dim=dim):
        offsets = [start, 0] if dim == 0 else [0, start]
        part = on_host(shard, whole_shape=x.shape, offsets=offsets)
        assert part == int(fingerprint_on_device(shard, whole_shape=x.shape, offsets=offsets)) % MOD
        total, start = total + part, start + shard.shape[dim]
    assert total % MOD == truth(x)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_flipped_bit_anywhere_changes_it(dtype):
    x = random_bits((12,), dtype)
    before = of(x)
    raw = x.view(torch.uint8) if dtype != torch.bool else x
    for byte in range(raw.numel()):
        for bit in range(1 if dtype == torch.bool else 8):
            raw.view(torch.uint8)[byte] ^= 1 << bit
            assert of(x) != before
            raw.view(torch.uint8)[byte] ^= 1 << bit
    assert of(x) == before


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 5 * PAGE - 1),
    st.integers(0, 5 * PAGE - 1),
    st.integers(0, 2**32 - 1),
    st.just(31) | st.integers(0, 30),
)
def test_two_different_numbers_that_change_places_change_it(first, second, word, bit):
    """Also where they differ in their sign alone, which odd weights mod 2³² never see."""
    x = torch.zeros(5 * PAGE, dtype=torch.int32)
    words = np.array([word, word ^ (1 << bit)], dtype=np.uint32).view(np.int32).tolist()
    x[first], x[second] = words
    before = on_host(x)
    x[second], x[first] = words
    assert (on_host(x) != before) == (first != second)


def test_weights_are_odd_and_tell_all_near_places_apart_mod_two_to_the_33():
    """What the proof in the docstring needs."""
    weights = host_weights()
    place, page, book = (some.view(np.uint64) for some in (weights.word, weights.page, weights.book))
    assert (place.size, page.size, book.size) == (PAGE, PAGE, BOOKS)
    assert np.unique(place % 2**21).size == PAGE
    assert (place % 2 == 1).all()
    assert (page % 2**21 == 1).all()
    assert (book % 2**33 == 1).all()
    near = page % 2**33
    assert np.unique(near[:NEAR_PAGES]).size == NEAR_PAGES
    assert (near[NEAR_PAGES:] == near[:-NEAR_PAGES]).all()  # so every window of as many is a permutation of the first


def test_weights_are_those_of_splitmix64_for_ever():
    """If a number changed here, Runs of two versions could not be compared."""

    def splitmix(state, count):
        for _ in range(count):
            state = (state + 0x9E3779B97F4A7C15) % MOD
            z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % MOD
            z = (z ^ (z >> 27)) * 0x94D049BB133111EB % MOD
            yield z ^ (z >> 31)

    assert next(splitmix(0, 1)) == 0xE220A8397B1DCDAF  # the published first output
    assert [int(w) % MOD >> 21 for w in host_weights().word[:5]] == [z % 2**43 for z in splitmix(0, 5)]
    assert on_host(torch.arange(100)) == 4290888920346462326


def test_negating_or_reversing_a_tensor_changes_it():
    for shape in ((PAGE,), (16, PAGE), (1000,), (3, 5, 7)):
        x = random_bits(shape, torch.float32, seed=3)
        prints = {on_host(y) for y in (x, -x, x.flip(0), x.roll(1, -1), x.flatten().flip(0))}
        assert len(prints) == 5 - (x.dim() == 1)


def test_payloads_of_nan_and_the_sign_of_zero_count():
    quiet = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)
    assert of(quiet[0]) != of(quiet[1])
    assert of(torch.tensor(0.0)) == 0 != of(torch.tensor(-0.0))


def test_it_depends_on_values_in_row_major_order_and_not_on_shape():
    x = random_bits((6, 4), torch.float32)
    assert of(x) == of(x.reshape(2, 12)) == of(x.t().contiguous().t())
    assert of(x) != of(x.t())


def test_the_device_needs_no_value_of_the_tensor():
    for place in ({}, {"whole_shape": (40, 50), "offsets": (1, 2)}):
        x = torch.empty(33, 40, device="meta")
        assert fingerprint_on_device(x, **place).shape == ()


def test_a_shard_outside_of_the_whole_is_refused_with_its_numbers():
    x = torch.ones(3, 4)
    with pytest.raises(ValueError, match=r"shape \[3, 4\] at \[2, 0\] does not lie within a tensor of shape \[4, 4\]"):
        HostFingerprint().of(x, whole_shape=(4, 4), offsets=(2, 0))
    with pytest.raises(ValueError, match="one number of dims"):
        HostFingerprint().of(x, whole_shape=(4,), offsets=(0,))
    with pytest.raises(ValueError, match="more than"):
        HostFingerprint().of(x, whole_shape=(2**30, 2**30), offsets=(0, 0))


def test_taking_it_changes_neither_the_tensor_nor_torch():
    x = (torch.randn(70_000, requires_grad=True) * 2).view(700, 100)
    before = (x.detach().clone(), x._version, torch.get_rng_state(), x.grad_fn)
    of(x)
    of(x.t())
    assert torch.equal(before[0], x.detach())
    assert torch.equal(before[2], torch.get_rng_state())
    assert (before[1], before[3]) == (x._version, x.grad_fn)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64], ids=str)
def test_a_fingerprint_leaves_the_storage_as_it_was(dtype):
    x = torch.arange(6 * 40_000).reshape(6, 40_000).to(dtype)
    for view in (x, x.T, x[1::2], x[:, ::3], x[2, 5]):
        assert on_host(view) == on_host(view.clone())
    assert x.untyped_storage().resizable()
