"""Projections estimate how far apart two tensors are, and add up over shards whatever measures them."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.projected import projected

from trueline.schema.formats import MASKS
from trueline.tensor.measure import HostMeter, measure_on_device
from trueline.tensor.native import NATIVE
from trueline.tensor.projections import MASKS_OF, projections_on_device, signs_of_places
from trueline.tensor.shard import ShardRuns
from trueline.tensor.weights import PAGE

METERS = [HostMeter(None), *([HostMeter(NATIVE)] if NATIVE is not None else [])]


def projections(x, meter=METERS[-1], **place):
    out_S = np.zeros(12)
    meter.stats_into(x, out_S, **place)
    return out_S[9:]


def estimated(x, y):
    return math.sqrt(np.mean((projections(x) - projections(y)) ** 2))


def at(x):
    """A row that depends on how many there are: what is one place's sign must not decide for all trials."""
    return torch.tensor(len(x) * 7 % 37)


ERRORS = {
    "independent": lambda x, draw: draw(*x.shape),
    "one element": lambda x, draw: torch.zeros_like(x).index_put_((at(x), torch.tensor(5)), torch.ones(())),
    "all alike": lambda x, draw: torch.ones_like(x),
    "one column": lambda x, draw: torch.zeros_like(x).index_fill_(1, at(x) % x.shape[1], 1.0),
    "one row": lambda x, draw: torch.zeros_like(x).index_fill_(0, at(x), 1.0),
    "the scale": lambda x, draw: x,
    "rows by columns": lambda x, draw: draw(len(x), 1) * draw(1, x.shape[1]),
    "every row alike": lambda x, draw: draw(1, x.shape[1]).expand_as(x),
}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("width", [16, 48, 64])
def test_they_estimate_the_size_of_any_difference(error, width):
    """Within a factor of 3 in nineteen of twenty cases, as ``judge.distance`` counts on."""
    generator = torch.Generator().manual_seed(1)

    def draw(*shape):
        return torch.randn(shape, generator=generator)

    ratios = []
    for trial in range(60):
        x = draw(40 + trial, width)
        e = 1e-2 * ERRORS[error](x, draw)
        ratios.append(estimated(x + e, x) / e.norm().item())
    assert np.mean(np.array(ratios) > 1 / 3) >= 0.85
    assert np.mean(np.array(ratios) < 3) >= 0.95


@pytest.mark.parametrize("move", ["roll", "flip", "transpose", "heads"])
def test_they_show_that_numbers_changed_places(move):
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(2))
    moved = {
        "roll": x.roll(1, dims=1),
        "flip": x.flip(1),
        "transpose": x.reshape(64, 32).t().reshape(32, 64),
        "heads": x.view(32, 4, 16).flip(1).reshape(32, 64),
    }[move]
    assert estimated(moved, x) == pytest.approx((moved - x).norm().item(), rel=0.9)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_shards_cut_anywhere_add_up_to_the_whole(data):
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))
    x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
    dim = data.draw(st.integers(0, len(shape) - 1))
    cut = data.draw(st.integers(0, shape[dim]))
    offsets = [cut if each == dim else 0 for each in range(len(shape))]
    for first, second in [torch.tensor_split(x, [cut], dim=dim)]:
        for meter in METERS:
            total = projections(first, meter, whole_shape=shape, offsets=[0] * len(shape))
            total = total + projections(second, meter, whole_shape=shape, offsets=offsets)
            np.testing.assert_allclose(total, projected(x.double().reshape(-1).numpy(), x.dtype), atol=1e-5)
        on_device = projections_on_device(second, ShardRuns(second, shape, offsets)).numpy()
        host = projections(second, whole_shape=shape, offsets=offsets)
        np.testing.assert_allclose(on_device, host, atol=1e-5)


@pytest.mark.parametrize("start", [1, 63, 64, PAGE - 1, PAGE - 64, 3 * PAGE + 17, PAGE * PAGE - 5])
def test_the_place_in_the_whole_is_that_of_the_definition(start):
    x = torch.randn(2 * PAGE + 100, generator=torch.Generator().manual_seed(4))
    want = projected(x.double().numpy(), x.dtype, start)
    place = {"whole_shape": (PAGE * PAGE + 9 * PAGE,), "offsets": (start,)}
    room = 4 * 2**-24 * x.norm().item()
    for meter in METERS:
        np.testing.assert_allclose(projections(x, meter, **place), want, rtol=0, atol=room)
    np.testing.assert_allclose(measure_on_device(x, ShardRuns(x, **place))[9:].numpy(), want, rtol=0, atol=room)


@pytest.mark.parametrize("dtype", MASKS_OF, ids=str)
def test_masks_are_left_out(dtype):
    x = torch.randn(8, 64, generator=torch.Generator().manual_seed(5)).to(dtype)
    masked = x.masked_fill(torch.arange(64) > 40, torch.finfo(dtype).min)
    want = projections(x.masked_fill(torch.arange(64) > 40, 0))
    room = 4 * 2**-24 * x.norm().item()
    for meter in METERS:
        np.testing.assert_allclose(projections(masked, meter), want, rtol=0, atol=room)
    np.testing.assert_allclose(measure_on_device(masked)[9:].numpy(), want, rtol=0, atol=room)
    assert MASKS_OF[dtype] == MASKS[str(dtype).removeprefix("torch.")]


def test_signs_are_balanced_and_unlike():
    signs = signs_of_places()
    np.testing.assert_allclose(signs.T @ signs / PAGE, np.eye(3), atol=0.02)
    assert np.abs(signs.mean(axis=0)).max() < 0.02
