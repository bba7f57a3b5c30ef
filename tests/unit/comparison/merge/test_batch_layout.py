"""Shares of a sequence as tokens, and calls of the optimizer on stages of a pipeline, on Runs that are made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tests.unit.comparison.test_arrange import draw, merged, record, row

from trueline.comparison.arrange import arrange

B, L, D = 3, 4, 2


def tokens(x):
    """A call that takes [B, L, D] apart into tokens, one that works on these, and the gradient of what it took."""
    flat = x.reshape(-1, D)
    rows = [
        row("m.flatten", x, slot="in0", kind="op", module="m"),
        row("m.flatten", flat * 2, kind="op", module="m"),
        row("m.linear", flat * 2, slot="in0", kind="op", module="m", call=1),
        row("m.linear", flat * 3, kind="op", module="m", call=1),
        row("m.mean", flat.mean(0), kind="op", module="m", call=2),
        row("m.flatten", flat * 5, phase="bwd", kind="op", module="m"),
    ]
    rows[2]["same_as"] = 1
    return rows


@pytest.mark.parametrize("cuts", [(2,), (1, 3), (3,)])
def test_tokens_of_a_sequence_that_ranks_share_are_in_the_order_of_samples(tmp_path, cuts):
    x = draw(B, L, D)
    parts = np.split(x, cuts, axis=1)
    run = record(tmp_path / "run", {rank: tokens(part) for rank, part in enumerate(parts)})
    ref = record(tmp_path / "ref", {0: tokens(x)})
    mine, theirs = arrange(run, ref)[0].read().sides
    compared = [(one, other) for one, other in zip(mine.values, theirs.values, strict=True) if one.load is not None]
    assert {one.site.name for one, _ in compared} == {"m.flatten", "m.linear"}
    for one, other in compared:
        scale = len(parts) if one.site.phase == "bwd" else 1  # of a loss that is the mean of those of the ranks
        assert np.allclose(np.asarray(one.load()) * scale, np.asarray(other.load())), one.site


def test_samples_that_ranks_share_stay_one_behind_the_other(tmp_path):
    x = draw(4, L, D)
    run = record(tmp_path / "run", {rank: tokens(part) for rank, part in enumerate(np.split(x, 2))})
    mine, theirs = merged(run, record(tmp_path / "ref", {0: tokens(x)}))
    for name in ("m.flatten", "m.linear"):
        assert np.array_equal(np.asarray(mine["fwd", name].load()), np.asarray(theirs["fwd", name].load()))


def test_tokens_of_transposed_samples_that_are_as_many_as_the_rows_are_in_their_order(tmp_path):
    """Each of two ranks has four samples of four classes: its share of the transpose has four rows of four samples."""
    x = draw(8, 4)

    def rows(part):
        turned = np.ascontiguousarray(part.T)
        made = [
            row("m.t", part, slot="in0", kind="op", module="m"),
            row("m.t", turned, kind="op", module="m"),
            row("m.flatten", turned, slot="in0", kind="op", module="m"),
            row("m.flatten", turned.reshape(-1), kind="op", module="m"),
        ]
        made[2]["same_as"] = 1
        return made

    run = record(tmp_path / "run", {rank: rows(part) for rank, part in enumerate(np.split(x, 2))})
    mine, _ = merged(run, record(tmp_path / "ref", {0: rows(x)}))
    assert np.array_equal(np.asarray(mine["fwd", "m.flatten"].load()), x.T.reshape(-1).astype(np.float32))


def stage(names):
    """The update of some parameters: each is scaled."""
    rows = [row(name, draw(3, seed=place), phase="param", kind="param", slot="value") for place, name in names.items()]
    for call, weight in enumerate(rows[: len(names)]):
        taken = row("Adam.mul_", weight["array"], phase="opt", kind="op", module="Adam", slot="in0", call=call)
        taken["same_as"] = call
        rows += [taken, row("Adam.mul_", weight["array"] * 2, phase="opt", kind="op", module="Adam", call=call)]
    return rows


def test_calls_of_the_optimizer_on_other_parameters_are_other_calls(tmp_path):
    names = {0: "a.weight", 1: "b.weight", 2: "c.weight"}
    ranks = {0: stage({0: names[0], 1: names[1]}), 1: stage({2: names[2]})}
    run = record(tmp_path / "run", ranks, adapter="sharded", workers=[0])
    mine, theirs = arrange(run, record(tmp_path / "ref", {0: stage(names)}))[0].read().sides
    calls = [[(value.site.name, value.site.call) for value in side.values] for side in (mine, theirs)]
    assert calls[0] == calls[1]
    for one, other in zip(mine.values, theirs.values, strict=True):
        assert one.note == ""
        assert np.array_equal(np.asarray(one.load()), np.asarray(other.load())), one.site
