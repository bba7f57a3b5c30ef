"""Norms and sketches against slow truths in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.kernels import SETS, using

from trueline.tensor import sketch as module
from trueline.tensor.native import NATIVE
from trueline.tensor.sketch import LENGTHS, NORM_CHUNK, SMALL, SignBank, sketch_length

K = 521
# 8 standard errors of the rounding of a signed sum of BLOCK_ROWS float32 terms, against its norm
FLOOR = 8 * 2**-24 * math.sqrt(module.BLOCK_ROWS / 2)


BY_TORCH = pytest.param(None, id="torch")
BY_KERNEL = pytest.param(NATIVE, id="kernel", marks=pytest.mark.skipif(NATIVE is None, reason="it was not built"))


@pytest.fixture(autouse=True, params=[BY_TORCH, BY_KERNEL])
def _reader(request, monkeypatch):
    """What reads host memory in a test."""
    monkeypatch.setattr(Sketcher, "by", request.param)


class Sketcher(module.Sketcher):
    by = None

    def __init__(self, *args, **options):
        super().__init__(*args, **{"native": self.by} | options)


def random(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def one(numel, **options):
    return Sketcher(["w"], [numel], [0], k=K, **options)


def as_matrix(sketcher, numel):
    """float64 [k, n]: the sketch of every unit vector. What the sketch does, by asking it n times."""
    return torch.stack([sketcher.measure([(0, row)]).sketches[0] for row in torch.eye(numel)], dim=1)


@pytest.mark.parametrize("numel", [1, 7, 520, 521, 1500])
def test_every_element_lands_in_one_cell_with_one_sign(numel):
    matrix = as_matrix(one(numel), numel)
    assert torch.equal(matrix.abs().sum(dim=0), torch.ones(numel, dtype=torch.float64))
    assert torch.equal(matrix.abs().argmax(dim=0), torch.arange(numel) % K)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("numel", [5, SMALL, SMALL + 1, 521 * 1024, 521 * 1500 + 17])
def test_sketches_and_norms_equal_slow_truth(numel, dtype):
    x = random(numel, seed=numel, dtype=dtype)
    sketcher = one(numel)
    measured = sketcher.measure([(0, x)])
    truth = slow_sketch(sketcher, x)
    norm = x.double().norm()
    wide = dtype in (torch.float32, torch.float64)
    assert measured.norm2.item() == pytest.approx(norm.item() ** 2, rel=1e-6 if wide else 1e-5)
    assert (measured.sketches[0] - truth).norm() <= FLOOR * norm


def slow_sketch(sketcher, x):
    out = torch.zeros(K, dtype=torch.float64)
    rows = sketcher._rows[0]
    signs = torch.cat([sketcher._signs[0][:rows], sketcher._rest_signs[0]]).double()
    numbers = x.double()
    for row, start in enumerate(range(0, x.numel(), K)):
        piece = numbers[start : start + K]
        out[: piece.numel()] += signs[row] * piece
    return out


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 9000), min_size=1, max_size=6), st.floats(-3, 3), st.floats(-3, 3), st.integers(1, 3))
def test_sketches_are_linear(sizes, a, b, groups):
    names = [f"p{index}" for index in range(len(sizes))]
    sketcher = Sketcher(names, sizes, [index % groups for index in range(len(sizes))], k=K)
    xs = [random(size, seed=index, dtype=torch.float64) for index, size in enumerate(sizes)]
    ys = [random(size, seed=99 + index, dtype=torch.float64) for index, size in enumerate(sizes)]

    def total(tensors):
        return sketcher.measure(list(enumerate(tensors))).sketches

    both = total([a * x + b * y for x, y in zip(xs, ys, strict=True)])
    apart_x, apart_y = total(xs), total(ys)
    for group, value in both.items():
        # tails are held in float32
        torch.testing.assert_close(value, a * apart_x[group] + b * apart_y[group], rtol=1e-5, atol=1e-4)


def test_the_sketch_does_not_depend_on_how_calls_are_cut():
    """A bucket or a parameter at a time: the sums are the same, or phases of one step could not be compared."""
    sizes = [100, 5000, 521 * 20 + 3, 64, 9000]
    sketcher = Sketcher([f"p{i}" for i in range(5)], sizes, [0, 0, 1, 1, 1], k=K)
    pairs = [(index, random(size, seed=index)) for index, size in enumerate(sizes)]
    whole = sketcher.measure(pairs)
    for cut in ([pairs[:2], pairs[2:]], [[pair] for pair in reversed(pairs)]):
        parts = [sketcher.measure(part) for part in cut]
        for group in (0, 1):
            total = sum(part.sketches[group] for part in parts if group in part.sketches)
            torch.testing.assert_close(total, whole.sketches[group], rtol=1e-6, atol=1e-5)
        norm2 = {index: float(value) for part in parts for index, value in zip(part.indices, part.norm2, strict=True)}
        assert [norm2[index] for index in range(5)] == pytest.approx(whole.norm2.tolist())


@pytest.mark.parametrize("shards", [2, 3, 8])
@pytest.mark.parametrize("width", [40, 3 * K + 11, 1100 * K])
def test_sketches_of_shards_add_up_to_the_sketch_of_the_whole(shards, width):
    buffer = random(shards, width + 40)
    x_WC = buffer[:, 5 : 5 + width]
    sketcher = one(width, shards=shards)
    whole = sketcher.measure([(0, x_WC)])
    parts = [sketcher.measure([(0, x_WC[w].contiguous())], shard=w) for w in range(shards)]
    total = sum(part.sketches[0] for part in parts)
    assert (total - whole.sketches[0]).norm() <= 2 * FLOOR * x_WC.norm()
    assert sum(part.norm2.item() for part in parts) == pytest.approx(whole.norm2.item(), rel=1e-6)
    assert whole.norm2.item() == pytest.approx(x_WC.double().square().sum().item(), rel=1e-6)


def test_a_transposed_gradient_is_read_in_logical_order():
    x = random(400, 60)
    sketcher = one(x.numel())
    turned = sketcher.measure([(0, x.t().contiguous().t())])
    assert torch.equal(turned.sketches[0], sketcher.measure([(0, x)]).sketches[0])


def test_cosine_error_is_what_theory_says():
    generator = torch.Generator().manual_seed(1)
    errors = []
    numel = 40 * K
    for trial in range(200):
        a = torch.randn(numel, generator=generator)
        b = 0.5 * a + math.sqrt(0.75) * torch.randn(numel, generator=generator)
        sketcher = Sketcher([f"w{trial}"], [numel], [0], k=K)
        sa, sb = (sketcher.measure([(0, x)]).sketches[0] for x in (a, b))
        errors.append((sa @ sb / sa.norm() / sb.norm() - a @ b / a.norm() / b.norm()).item())
    measured = math.sqrt(sum(error**2 for error in errors) / len(errors))
    theory = (1 - 0.5**2) / math.sqrt(K)
    assert 0.8 * theory < measured < 1.2 * theory  # 200 trials: the standard error of a standard deviation is 5 %


def test_large_float32_norm_is_right_where_a_flat_one_is_wrong():
    x = torch.rand(9_000_000, generator=torch.Generator().manual_seed(0)) + 1
    truth = x.double().square().sum().item()
    assert one(x.numel()).measure([(0, x)]).norm2.item() == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("numel", [10, NORM_CHUNK + 2000])
def test_nan_and_inf_show_in_the_norm_and_the_sketch(numel, dtype):
    for bad in (math.nan, math.inf, -math.inf):
        x = torch.ones(numel, dtype=dtype)
        x[-1] = bad
        measured = one(numel).measure([(0, x)])
        assert not math.isfinite(measured.norm2.item())
        assert (~measured.sketches[0].isfinite()).nonzero().tolist() == [[(numel - 1) % K]]


def test_signs_are_the_same_everywhere_and_differ_by_name():
    first, second = (SignBank(capacity=301, device=torch.device("cpu")) for _ in range(2))
    assert torch.equal(first.signs("a.weight", 300), second.signs("a.weight", 300))
    assert not torch.equal(first.signs("a.weight", 300), first.signs("b.weight", 300))
    with pytest.raises(ValueError, match="built for"):
        first.signs("a.weight", 10_000)


@pytest.mark.parametrize("groups", [1, 2, 4, 8, 16, 256])
def test_sketch_lengths_are_prime_and_shrink(groups):
    k = sketch_length(groups)
    assert k in LENGTHS
    assert all(k % divisor for divisor in range(2, math.isqrt(k) + 1))


@pytest.mark.parametrize("shards", [1, 3])
def test_few_large_calls_find_what_many_small_ones_in_the_cache_find(shards):
    """What runs on a device, on the CPU: the same sums in other pieces."""
    widths = [40, 3 * K + 11, 2100 * K + 5, 700 * K]
    pairs = [(index, random(shards, width, seed=index)) for index, width in enumerate(widths)]
    cached, few = (Sketcher(["a", "b", "c", "d"], widths, [0, 1, 1, 0], k=K, shards=shards) for _ in range(2))
    few._in_cache, few._height, few._native = False, module.BLOCK_ROWS, None
    for shard in [None, *range(shards)]:
        seen = pairs if shard is None else [(index, x[shard].contiguous()) for index, x in pairs]
        one_way, other = cached.measure(seen, shard=shard), few.measure(seen, shard=shard)
        # vector_norm adds a million squares up in few lanes on the CPU; in the cache they are chunked
        torch.testing.assert_close(other.norm2, one_way.norm2, rtol=2e-3, atol=0)
        norm = one_way.norm2.sum().sqrt()
        assert all((other.sketches[group] - one_way.sketches[group]).norm() <= 2 * FLOOR * norm for group in (0, 1))


def test_autocast_around_an_update_changes_nothing():
    x = random(300 * K + 9)
    plain = one(x.numel()).measure([(0, x)])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = one(x.numel()).measure([(0, x)])
    assert torch.equal(plain.norm2, cast.norm2)
    assert torch.equal(plain.sketches[0], cast.sketches[0])


def test_a_parameter_without_elements_has_norm_zero():
    measured = Sketcher(["a", "b"], [0, 5], [0, 1], k=K).measure([(0, torch.empty(0, 7)), (1, torch.ones(5))])
    assert measured.norm2.tolist() == [0.0, 5.0]


def test_gradients_in_ever_new_company_do_not_pile_up():
    sketcher = Sketcher([f"p{i}" for i in range(12)], [50] * 12, [0] * 12, k=K)
    for bits in range(1, 200):
        sketcher.measure([(index, torch.ones(50)) for index in range(12) if bits >> index & 1])
    assert sum(len(call.parts) for call in sketcher._calls.values()) <= module.MAX_PREPARED * 12
    if sketcher._native is not None:
        assert sum(map(len, sketcher._native._prepared)) <= (module.MAX_PREPARED + 1) * 12


def test_a_call_about_one_parameter_holds_no_place_for_the_others():
    sketcher = Sketcher([f"p{i}" for i in range(100)], [3000] * 100, [0] * 100, k=K, native=None)
    sketcher.measure([(57, torch.ones(3000))])
    (call,) = sketcher._calls.values()
    assert call.rest.numel() <= 3000 + 2 * K


@pytest.mark.skipif(NATIVE is None, reason="the kernel was not built")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_the_kernel_finds_the_same_bits_on_every_machine_and_nearly_what_is_true(dtype):
    for numel in (SMALL - 1, 9 * K, 9 * K + 7, 8 * K + K - 1, 200_003):
        x = random(numel, seed=numel, dtype=dtype)
        sketcher = one(numel, native=NATIVE)
        found = []
        for name in SETS:
            with using(name):
                found.append(sketcher.measure([(0, x)]))
        for other in found[1:]:
            assert torch.equal(other.norm2, found[0].norm2)
            assert torch.equal(other.sketch, found[0].sketch)
        norm2 = math.fsum(value * value for value in x.double().tolist())
        assert found[0].norm2.item() == pytest.approx(norm2, rel=1e-12)  # 2e5 roundings of 2⁻⁵³, were they all alike
        # four numbers are added up in float32, each rounding at most 2⁻²⁴ of a partial sum
        room = 4 * 2**-24 * x.double().abs().max() * math.sqrt(4 * numel / K) if dtype != torch.float64 else 1e-12
        assert (found[0].sketches[0] - slow_sketch(sketcher, x)).abs().max() <= room


@pytest.mark.skipif(NATIVE is None, reason="the kernel was not built")
def test_tiny_and_huge_gradients_have_a_norm_where_their_squares_do_not_fit_float32():
    for size in (1e-30, 1e30):
        x = torch.full((9 * K + 5,), size)
        assert one(x.numel(), native=NATIVE).measure([(0, x)]).norm2.item() == pytest.approx(
            x.numel() * x[0].double().item() ** 2, rel=1e-12
        )


@pytest.mark.skipif(NATIVE is None, reason="the kernel was not built")
def test_a_gradient_of_another_size_than_announced_is_not_read():
    sketcher = one(9 * K, native=NATIVE)
    with pytest.raises(ValueError, match="gradient 0 of 100 elements is not what was prepared for"):
        sketcher.measure([(0, torch.ones(100))])
    freed = torch.ones(9 * K)
    freed.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="not what was prepared for"):
        sketcher.measure([(0, freed)])
