"""What a row owes the others, against plain formulas on the same sketches."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from trueline.capture.step import shared_columns
from trueline.capture.step.shared_columns import Measurement

G, K = 3, 521


def team(gradients_NGK, *, reduced=None, used=None, local_norm=None):
    """Every worker's Own, and the sums they would all receive. Sketch and gradient are the same thing here."""
    workers = len(gradients_NGK)
    mean = gradients_NGK.mean(axis=0)
    reduced = [mean] * workers if reduced is None else reduced
    used = reduced if used is None else used
    owns = [
        Measurement(local_norm=np.linalg.norm(g, axis=1), local=g, reduced=r, used=u)
        for g, r, u in zip(gradients_NGK, reduced, used, strict=True)
    ]
    flat = sum(
        shared_columns.pack(own, reduced_norm2=(own.reduced**2).sum(axis=1), sharded=False, replicas=1) for own in owns
    )
    scalars = np.array([shared_columns.scalars(own, step=4) for own in owns])
    return owns, shared_columns.unpack(scalars, flat, groups=G, k=K)


def columns(own, sums):
    arrived = own.used if own.reduced is None else own.reduced
    return shared_columns.columns(
        own,
        sums,
        reduced_norm2=(arrived**2).sum(axis=1),
        sharded=False,
        numel=np.full(G, 1000.0),
        dtype="torch.float32",
        roundings=5,
    )


def random(workers, seed=0, scale=1.0):
    return scale * np.random.default_rng(seed).standard_normal((workers, G, K))


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_cosines_equal_their_definitions(workers):
    g = random(workers) + 0.7 * random(1, seed=9)
    g *= np.linspace(1, 2, workers)[:, None, None]
    owns, sums = team(g)
    flat = g.reshape(workers, -1)
    unit = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    gram = unit @ unit.T
    mean = (gram.sum() - workers) / workers / (workers - 1)
    for rank, own in enumerate(owns):
        row = columns(own, sums)
        others = np.delete(flat, rank, axis=0).mean(axis=0)
        assert row["cosine_others"] == pytest.approx(unit[rank] @ others / np.linalg.norm(others))
        assert row["cosine_pairs"] == pytest.approx((gram[rank].sum() - 1) / (workers - 1))
        assert row["cosine_mean"] == pytest.approx(mean, abs=1e-12)


def test_a_healthy_reduction_has_no_residual():
    owns, sums = team(random(4))
    row = columns(owns[0], sums)
    assert max(row["group_reduce_residual"]) < min(row["group_reduce_floor"])
    assert max(row["group_used_residual"]) < min(row["group_used_floor"])
    assert row["group_reduce_factor"] == pytest.approx([1.0] * G)


@pytest.mark.parametrize("clipped", [None, 0.3])
@pytest.mark.parametrize("counts", [0.0, 0.4])
def test_a_gradient_that_did_not_count_shows_on_its_rank_alone(clipped, counts):
    g = random(4)
    given = g.copy()
    given[2, 1] *= counts
    arrived = [given.mean(axis=0)] * 4 if clipped is None else [None] * 4
    owns, sums = team(g, reduced=[given.mean(axis=0)] * 4, used=[given.mean(axis=0) * (clipped or 1)] * 4)
    owns = [dataclasses.replace(own, reduced=reduced) for own, reduced in zip(owns, arrived, strict=True)]
    rows = [columns(own, sums) for own in owns]
    left = [row["group_reduce_own_residual"][1] <= row["group_reduce_floor"][1] for row in rows]
    assert left == [False, False, True, False]
    assert rows[2]["group_reduce_own_factor"][1] == pytest.approx(counts)


def test_two_ranks_of_which_either_may_not_have_counted_name_none():
    g = random(2)
    owns, sums = team(g, reduced=[g[0]] * 2)
    assert "group_reduce_own_factor" not in columns(dataclasses.replace(owns[1], reduced=None), sums)


def test_a_healthy_reduction_needs_no_look_at_what_did_not_count():
    owns, sums = team(random(4))
    assert "group_reduce_own_factor" not in columns(owns[0], sums)


def test_a_zeroed_result_shows_on_its_rank_and_group_alone():
    g = random(4)
    mean = g.mean(axis=0)
    broken = mean.copy()
    broken[1] = 0
    owns, sums = team(g, reduced=[mean, broken, mean, mean])
    healthy, bad = columns(owns[0], sums), columns(owns[1], sums)
    assert max(healthy["group_reduce_residual"]) < min(healthy["group_reduce_floor"])
    assert bad["group_reduce_residual"][1] > 0.1
    assert bad["group_reduce_residual"][0] < bad["group_reduce_floor"][0]
    assert bad["group_used_residual"][1] > bad["group_used_floor"][1]


def test_a_scaled_mean_shows_its_factor_and_no_shape():
    g = random(4)
    owns, sums = team(g, reduced=[g.mean(axis=0) / 4] * 4)
    row = columns(owns[2], sums)
    assert row["group_reduce_factor"] == pytest.approx([0.25] * G)
    assert max(row["group_reduce_shape_residual"]) < min(row["group_reduce_floor"]) < 0.1
    assert min(row["group_reduce_residual"]) > 0.1


def test_the_local_gradient_used_as_it_is_shows():
    g = random(3)
    owns, sums = team(g, reduced=list(g))
    row = columns(owns[0], sums)
    assert max(row["group_used_local"]) < 1e-12
    assert min(row["group_used_residual"]) > 0.1


def test_clipping_is_a_factor_and_nothing_else():
    g = random(3)
    mean = g.mean(axis=0)
    owns, sums = team(g, used=[0.3 * mean] * 3)
    row = columns(owns[0], sums)
    assert row["group_used_factor"] == pytest.approx([0.3] * G)
    assert max(row["group_used_shape_residual"]) < 1e-12
    assert max(row["group_used_residual"]) < min(row["group_used_floor"])


def unseen(owns):
    """The same workers on a step at which the result of the reduction was not looked at."""
    return [Measurement(local_norm=own.local_norm, local=own.local, reduced=None, used=own.used) for own in owns]


def test_where_the_mean_was_used_the_reduction_need_not_be_seen():
    owns, sums = team(random(4))
    for seen, blind in zip(owns, unseen(owns), strict=True):
        whole, row = columns(seen, sums), columns(blind, sums)
        assert row.keys() == whole.keys()
        for name, value in whole.items():
            np.testing.assert_allclose(row[name], value, atol=1e-12)
        assert shared_columns.is_mean(row) == (True, True)


def test_a_factor_where_the_reduction_was_not_seen_is_no_verdict_on_it():
    g = random(4)
    owns, sums = team(g, used=[0.25 * g.mean(axis=0)] * 4)
    whole, row = columns(owns[0], sums), columns(unseen(owns)[0], sums)
    assert "group_reduce_residual" not in row
    assert "group_used_factor" not in row
    assert max(row["group_reduce_shape_residual"]) < 1e-12
    assert row["reduced_norm"] == pytest.approx(whole["reduced_norm"])
    assert row["cosine_mean"] == pytest.approx(whole["cosine_mean"])
    assert shared_columns.is_mean(row) == (False, True)


def test_something_else_than_the_mean_shows_without_the_reduction():
    g = random(4)
    owns, sums = team(g, used=[g.mean(axis=0), g.mean(axis=0), np.zeros((G, K)), g[3]])
    rows = [columns(own, sums) for own in unseen(owns)]
    assert [shared_columns.is_mean(row) for row in rows] == [(True, True), (True, True), (False, False), (False, False)]
    for row in rows[2:]:
        assert min(row["group_reduce_shape_residual"]) > max(row["group_reduce_floor"])


def test_a_worker_that_is_not_finite_leaves_the_sums_usable():
    g = random(3)
    g[1, 0, 0] = math.nan
    owns, sums = team(g, reduced=[np.zeros((G, K))] * 3)
    assert np.isfinite(sums.local).all()
    assert sums.scalars[:, shared_columns.SCALARS.index("finite")].tolist() == [1.0, 0.0, 1.0]
    assert "group_reduce_residual" not in columns(owns[0], sums)
    assert "cosine_others" not in columns(owns[1], sums)


def test_zero_gradients_make_no_numbers_up():
    g = random(2)
    g[:, 2] = 0
    owns, sums = team(g)
    row = columns(owns[0], sums)
    assert row["group_reduce_residual"][2] is None
    assert row["group_cosine_others"][2] is None


def test_the_reduction_floor_covers_real_rounding_in_every_dtype():
    """Sums formed in float32 and float16, in sequence, stay under the floor that is stated for them."""
    rng = np.random.default_rng(0)
    for dtype, name in ((np.float32, "torch.float32"), (np.float16, "torch.float16")):
        for workers in (2, 4, 16):
            g = rng.standard_normal((workers, G, K)) * 1e-2
            total = np.zeros((G, K), dtype=dtype)
            for one in g:
                total = total + (one.astype(dtype) / dtype(workers)).astype(dtype)
            mean_norm = np.linalg.norm(g, axis=2).mean(axis=0)
            residual = np.linalg.norm(total.astype(np.float64) - g.mean(axis=0), axis=1) / mean_norm
            floor = shared_columns._reduce_floor(
                mean_norm, numel=np.full(G, float(K)), k=K, dtype=name, roundings=workers + 2
            )
            assert (residual < floor).all()
            assert (floor < 1).all()


def test_underflow_in_float16_is_part_of_the_floor():
    g = np.full((2, G, K), 1e-9)
    mean_norm = np.linalg.norm(g, axis=2).mean(axis=0)
    floor = shared_columns._reduce_floor(mean_norm, numel=np.full(G, float(K)), k=K, dtype="torch.float16", roundings=4)
    assert (floor > 1).all(), "values that float16 flushes to zero cannot be judged"


def sketched_team(rng, norms_N, *, cosine, rows):
    """The gradients [N, n] of workers with these norms and pairwise cosine, sketched: Own, sums, and the true mean."""
    workers, common = len(norms_N), math.sqrt(cosine / (1 - cosine))
    g = rng.standard_normal((workers, rows * K)) + common * rng.standard_normal(rows * K)
    g *= np.array(norms_N)[:, None]
    signs = rng.choice([-1.0, 1.0], size=rows)
    sketches = (g.reshape(workers, rows, K) * signs[:, None]).sum(axis=1)[:, None, :]
    owns = [
        Measurement(local_norm=np.linalg.norm(g[i], keepdims=True), local=sketches[i], reduced=None, used=None)
        for i in range(workers)
    ]
    flat = sum(shared_columns.pack(own, reduced_norm2=None, sharded=False, replicas=1) for own in owns)
    sums = shared_columns.unpack(np.array([shared_columns.scalars(own, step=0) for own in owns]), flat, groups=1, k=K)
    unit = g / np.linalg.norm(g, axis=1, keepdims=True)
    truth = ((unit @ unit.T).sum() - workers) / workers / (workers - 1)
    return owns, sums, truth, float(np.linalg.norm(g.mean(axis=0)))


def test_the_standard_error_of_the_mean_cosine_is_honest():
    """Sketch 300 teams of known gradients; the error over its stated standard error must spread like a unit normal."""
    rng, ratios = np.random.default_rng(1), []
    for _ in range(300):
        owns, sums, truth, reduced_norm = sketched_team(rng, [1, 2, 4, 1], cosine=0.2, rows=40)
        row = shared_columns.cosines(owns[0], sums, reduced_norm=reduced_norm)
        ratios.append((row["cosine_mean"] - truth) / row["cosine_se"])
    spread = float(np.std(ratios))
    assert 0.5 < spread < 1.2, f"errors are {spread:.2f} stated standard errors"


@pytest.mark.in_turn
@pytest.mark.parametrize("cosine", [0.0, 0.2, 0.5, 0.9])
@pytest.mark.parametrize("workers", [2, 8])
def test_the_standard_error_is_honest_where_sketches_are_all_that_is_known(workers, cosine):
    """As above; of 200 teams, a standard deviation has a standard error of 5 % (1 / sqrt(2 n)): four of them."""
    rng, ratios = np.random.default_rng(1), []
    for _ in range(200):
        owns, sums, truth, _ = sketched_team(rng, [1.0] * workers, cosine=cosine, rows=10)
        row = shared_columns.cosines(owns[0], sums, reduced_norm=None)
        ratios.append((row["cosine_mean"] - truth) / row["cosine_se"])
    spread = float(np.std(ratios))
    assert 0.8 < spread < 1.2, f"errors are {spread:.2f} stated standard errors"


def test_workers_whose_parts_are_of_different_iterations_are_told():
    def scalars(*places):
        rows = [
            shared_columns.scalars(shared_columns.NOT_MEASURED, step=step, passes=passes) for step, passes in places
        ]
        return np.array(rows)

    assert shared_columns.iterations_differ(scalars((4, 9), (4, 9))) is None
    assert (
        shared_columns.iterations_differ(scalars((4, 9), (5, 9)))
        == "workers were at the steps 4, 5; some left out or repeated an update"
    )
    assert "after the reduced backward passes 9, 10" in shared_columns.iterations_differ(scalars((4, 9), (4, 10)))
