"""Blocks of memory that were written over, told from rounding, rows, heads and single elements; and by whom."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import trueline
from trueline.comparison.judgement.values.block_pattern import (
    LEAST_BITS,
    block_pattern,
    together,
    writer_of,
    wrong_elements,
)


def wrong(shape, *runs, columns=None):
    made = np.zeros(shape, bool)
    for begin, end in runs:
        made.reshape(-1)[begin:end] = True
    if columns is not None:
        made[..., columns[0] : columns[1]] = True
    return made.reshape(-1)


@pytest.mark.parametrize(
    ("shape", "runs", "bits"),
    [
        ((64, 1000), [(4096, 6144)], 2 * 11),
        ((64, 1000), [(2048, 3072), (8192, 9216)], 4 * 10),
        ((3072,), [(0, 2048)], 11),
        ((100, 600), [(0, 2048)], 11),
    ],
)
def test_blocks_are_seen_with_the_probability_of_their_ends(shape, runs, bits):
    pattern = block_pattern(wrong(shape, *runs), shape)
    assert pattern is not None
    assert pattern.bits == bits
    assert pattern.runs == tuple(runs)


@pytest.mark.parametrize(
    ("shape", "runs", "columns"),
    [
        ((64, 1024), [(3072, 4096)], None),  # a row of an embedding
        ((8, 16, 256), [(4096, 8192)], None),  # a sample
        ((64, 768), [], (256, 512)),  # a part of all rows
        ((64, 768), [(4097, 4098)], None),  # one element
        ((64, 768), [(4001, 6100)], None),
        ((64, 768), [(4096, 4160)], None),  # one head of one token
    ],
)
def test_what_shape_or_chance_explains_is_no_block(shape, runs, columns):
    assert block_pattern(wrong(shape, *runs, columns=columns), shape) is None


def test_elements_that_happen_to_be_equal_do_not_break_a_block():
    mask = wrong((64, 1000), (4096, 6144))
    mask[[4500, 5001, 5002]] = False
    pattern = block_pattern(mask, (64, 1000))
    assert pattern is not None
    assert pattern.runs == ((4096, 6144),)


def test_random_blocks_are_hardly_ever_reported():
    """Blocks that lie anywhere: 2,000 draws, of which 1e-6 each may be reported, so none."""
    draw = np.random.default_rng(0)
    reported = 0
    for _ in range(2000):
        begin = int(draw.integers(0, 40_000))
        mask = wrong((64, 768), (begin, begin + int(draw.integers(1, 8_000))))
        pattern = block_pattern(mask, (64, 768))
        reported += pattern is not None and pattern.bits > LEAST_BITS
    assert reported == 0


def test_two_values_that_are_each_suggestive_decide_together():
    one = block_pattern(wrong((3072,), (0, 2048)), (3072,))
    assert together([(0, one)])[1] < LEAST_BITS
    assert together([(0, one), (1, one)]) == ([0, 1], 20.0)


def test_rounding_everywhere_is_not_wrong_and_a_block_among_it_is():
    draw = np.random.default_rng(1)
    x = draw.standard_normal(4096).astype(np.float32)
    y = x * (1 + draw.uniform(-1, 1, 4096) * 2.0**-24).astype(np.float32)
    assert not wrong_elements(x, y, "float32").any()
    y[1024:2048] = 7
    assert np.flatnonzero(wrong_elements(x, y, "float32")).tolist() == list(range(1024, 2048))


def test_the_writer_is_found_at_any_offset_and_a_constant_is_nobodys():
    draw = np.random.default_rng(2)
    other, mine = draw.standard_normal(5000).astype(np.float32), draw.standard_normal(4096).astype(np.float32)
    mine[1024:2048] = other[33:1057]
    writer = writer_of(mine, (1024, 2048), [(4, mine[:1000]), (7, other)])
    assert writer is not None
    assert (writer.number, writer.begin) == (7, 33)
    mine[1024:2048] = 0
    assert writer_of(mine, (1024, 2048), [(7, np.zeros(5000, np.float32))]) is None


def trained(out, change):
    """A Run of two recorded steps; ``change`` is done to the model between them."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(96, 200), nn.GELU(), nn.Linear(200, 96))
    optimizer, x = torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(8, 96)
    with trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "steps": [0, 2], "depth": "tensor"}):
        for step in range(2):
            if step == 1:
                with torch.no_grad():
                    change(model[0].weight.data.view(-1), model[2].weight.data.view(-1))
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return out


def overwritten(weight, other):
    weight[2048:6144] = other[512:4608]


CHANGES = {
    "written over": (overwritten, True),
    "one row": (lambda weight, other: weight[96 * 4 : 96 * 5].add_(1), False),
    "a flipped bit": (lambda weight, other: weight[2048:2049].mul_(-1), False),
    "rounding": (lambda weight, other: weight.mul_(1 + 2**-23), False),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", CHANGES)
def test_compare_names_the_block_and_whose_numbers_it_has(tmp_path, name):
    change, is_block = CHANGES[name]
    ref = trained(tmp_path / "ref", lambda weight, other: None)
    comparison = trueline.compare(trained(tmp_path / "run", change), ref)
    ours = [finding for finding in comparison.findings if finding.code == "corruption-pattern"]
    assert len(ours) == is_block
    if is_block:
        assert ours[0].evidence["runs"] == [[2048, 6144]]
        assert "2.weight" in ours[0].evidence["writer"] or "2.linear" in ours[0].evidence["writer"]
        assert "from element 512 on" in ours[0].claim
        assert ours[0].false_alarm_rate < 1e-6
