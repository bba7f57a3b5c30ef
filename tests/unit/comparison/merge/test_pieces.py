"""Parameters of which ranks hold pieces that nothing says, as of tensor parallelism by hand, on Runs made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.comparison.test_arrange import draw, record, row

from trueline.comparison.arrange import arrange

OUT, IN = 6, 4


def step(weight):
    """A module that was called, its weight and the gradient of that."""
    return [
        row("m", draw(3, IN), slot="out0"),
        row("m.weight", weight, slot="value", phase="param", kind="param"),
        row("m.weight", 2 * weight, slot="grad", phase="grad", kind="param"),
    ]


def merged(tmp_path, whole, parts):
    """What is made of the weight and its gradient on so many ranks, beside one that has the whole."""
    run = record(tmp_path / "run", {rank: step(part) for rank, part in enumerate(parts)})
    ref = record(tmp_path / "ref", {0: step(whole)})
    mine, _ = arrange(run, ref)[0].read().sides
    values = {value.site.phase: np.asarray(value.load()) for value in mine.values if value.load is not None}
    return values["param"], values["grad"]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("owners", [(0, 1), (0, 1, 0, 1), (0, 0, 1, 1)])
def test_pieces_and_their_copies_are_put_side_by_side(tmp_path, axis, owners):
    whole = draw(OUT, IN)
    pieces = np.split(whole, 2, axis=axis)
    weight, gradient = merged(tmp_path, whole, [pieces[owner] for owner in owners])
    assert np.array_equal(weight, whole)
    assert np.array_equal(gradient, 2 * whole)


def test_pieces_that_begin_equal_are_put_side_by_side(tmp_path):
    whole = np.zeros((OUT, IN), np.float32)
    weight, _ = merged(tmp_path, whole, np.split(whole, 2))
    assert weight.shape == (OUT, IN)


def test_replicas_stay_one(tmp_path):
    whole = draw(OUT, IN)
    weight, _ = merged(tmp_path, whole, [whole, whole])
    assert np.array_equal(weight, whole)


def test_copies_of_one_piece_are_not_taken_for_the_pieces(tmp_path):
    """The data-parallel ranks of one tensor-parallel place, which have a Run of their own."""
    whole = draw(OUT, IN)
    piece = np.split(whole, 2)[1]
    weight, _ = merged(tmp_path, whole, [piece, piece])
    assert np.array_equal(weight, piece)
