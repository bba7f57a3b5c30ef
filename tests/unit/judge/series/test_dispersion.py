"""Dispersions against NumPy and brute force; bands and standard errors against simulation."""

import numpy as np
import pytest
from tests.unit.healthy_run import K, healthy_rows, rank_env, write_run

from trueline.judge.series.dispersion import (
    chance_band,
    cosine_matrices,
    dispersion,
    sketched_cosines,
    steps_with_cosines,
)
from trueline.schema.errors import CannotTell


def test_spreads_are_those_of_numpy(tmp_path):
    rows = healthy_rows(4, 5)
    found = dispersion(write_run(tmp_path, rows))
    losses, norms = (
        np.array([[rows[step, rank][name] for rank in range(4)] for step in range(5)]) for name in ("loss", "grad_norm")
    )

    np.testing.assert_allclose(found.loss_std, losses.std(axis=1, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(found.loss_range, np.ptp(losses, axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.norm_std, norms.std(axis=1, ddof=1), rtol=1e-12)
    np.testing.assert_allclose(found.norm_range, np.ptp(norms, axis=1), rtol=1e-12)
    np.testing.assert_allclose(found.norm_cv, norms.std(axis=1, ddof=1) / norms.mean(axis=1), rtol=1e-12)
    np.testing.assert_array_equal(found.losses, losses)


def test_cosines_are_passed_on(tmp_path):
    rows = healthy_rows(3, 2)
    for rank in range(3):
        rows[1, rank] |= {
            "cosine_mean": 0.25,
            "cosine_se": 0.01,
            "cosine_pairs": 0.2 + 0.1 * rank,
            "cosine_others": 0.5,
        }
    found = dispersion(write_run(tmp_path, rows))

    assert np.isnan(found.cosine_mean[0])
    assert (found.cosine_mean[1], found.cosine_se[1], found.cosine_smallest[1]) == (0.25, 0.01, 0.2)
    np.testing.assert_allclose(found.cosine_pairs[1], [0.2, 0.3, 0.4])


def test_a_worker_alone_has_no_spread(tmp_path):
    rows = {key: row for key, row in healthy_rows(2, 4).items() if key[1] == 0 or key[0] < 2}
    found = dispersion(write_run(tmp_path, rows))

    assert np.isfinite(found.loss_std[:2]).all()
    assert np.isnan(found.loss_std[2:]).all()
    assert np.isnan(found.loss_range[2:]).all()


@pytest.mark.filterwarnings("error")
def test_losses_that_are_infinite_on_all_workers_say_nothing_on_the_screen(tmp_path):
    rows = healthy_rows(2, 3)
    rows[1, 0]["loss"] = rows[1, 1]["loss"] = float("inf")
    assert np.isnan(dispersion(write_run(tmp_path, rows)).loss_range[1])


def test_workers_that_did_not_measure_are_left_out(tmp_path):
    rows = healthy_rows(3, 1)
    del rows[0, 1]["loss"]
    found = dispersion(write_run(tmp_path, rows))
    expected = abs(rows[0, 0]["loss"] - rows[0, 2]["loss"]) / np.sqrt(2)
    assert found.loss_std[0] == pytest.approx(expected)


def test_an_empty_run_has_empty_arrays(tmp_path):
    run = write_run(tmp_path, {})
    assert dispersion(run).loss_std.shape == (0,)
    assert steps_with_cosines(run).shape == (0,)


@pytest.mark.parametrize("num_workers", [2, 4, 8, 64])
def test_the_band_holds_what_it_says_of_equal_workers(num_workers):
    rng = np.random.default_rng(num_workers)
    std = 3.0 * rng.normal(size=(20_000, num_workers)).std(axis=1, ddof=1)
    band = chance_band(std, num_workers, level=0.9)

    assert band is not None
    # The median of 20,000 values moves sigma by 1.5 % at most (four standard deviations, two workers).
    assert band.pooled_std == pytest.approx(3.0, rel=0.03)
    inside = np.mean((std >= band.low) & (std <= band.high))
    assert inside == pytest.approx(0.9, abs=0.015)


def test_odd_steps_do_not_move_the_band():
    std = np.random.default_rng(0).normal(size=(2000, 4)).std(axis=1, ddof=1)
    odd = std.copy()
    odd[:200] *= 100
    one, other = chance_band(std, 4), chance_band(odd, 4)
    assert one is not None
    assert other is not None
    assert other.high == pytest.approx(one.high, rel=0.1)


def test_a_band_needs_steps_and_workers():
    assert chance_band(np.array([np.nan]), 4) is None
    assert chance_band(np.array([1.0]), 1) is None
    with pytest.raises(ValueError, match="between 0 and 1"):
        chance_band(np.array([1.0]), 4, level=1.0)


def gradients(rng, *, num_workers, shares, cosine):
    """[N, G, D] gradients with a common part, of which group g has the share ``shares[g]`` of the squared norm."""
    common, own = rng.normal(size=(len(shares), 40_000)), rng.normal(size=(num_workers, len(shares), 40_000))
    mixed = np.sqrt(cosine) * common + np.sqrt(1 - cosine) * own
    return mixed * np.sqrt(np.array(shares))[:, None]


def sketched(values, k, rng):
    """The sketch by its definition: rows of k elements with one random sign each, summed."""
    padded = np.zeros((*values.shape[:-1], -(-values.shape[-1] // k) * k))
    padded[..., : values.shape[-1]] = values
    rows = padded.reshape(*values.shape[:-1], -1, k)
    signs = rng.choice([-1.0, 1.0], size=(values.shape[-2], rows.shape[-2], 1))
    return (rows * signs).sum(axis=-2)


@pytest.mark.in_turn
@pytest.mark.parametrize("shares", [(1.0,), (0.6, 0.3, 0.1)])
@pytest.mark.parametrize("cosine", [0.0, 0.5, 0.9])
def test_sketched_cosines_err_as_much_as_they_say(shares, cosine):
    rng = np.random.default_rng(1)
    deviations = []
    for _ in range(30):
        values = gradients(rng, num_workers=4, shares=shares, cosine=cosine)
        flat = values.reshape(4, -1)
        norms = np.linalg.norm(flat, axis=1)
        exact = flat @ flat.T / np.outer(norms, norms)
        cosines, errors = sketched_cosines(sketched(values, 257, rng))
        pairs = np.triu_indices(4, 1)
        deviations.append((cosines[pairs] - exact[pairs]) / errors[pairs])
    # 180 deviations of which those of one draw depend on each other: their rms is 1 within some 15 %.
    assert np.sqrt(np.mean(np.square(deviations))) == pytest.approx(1.0, abs=0.2)


def test_matrix_from_recorded_sketches(tmp_path):
    rows = healthy_rows(3, 4)
    for (step, _), row in rows.items():
        if step % 2:
            del row["sketch"]
    run = write_run(tmp_path, rows)
    (found,) = cosine_matrices(run, [2])
    flat = np.array([rows[2, rank]["sketch"] for rank in range(3)], dtype=np.float64)

    assert steps_with_cosines(run).tolist() == [0, 2]
    norms = np.linalg.norm(flat, axis=1)
    np.testing.assert_allclose(found.cosines, flat @ flat.T / np.outer(norms, norms), rtol=1e-12)
    assert not found.exact
    assert np.diag(found.standard_errors).tolist() == [0, 0, 0]


def test_exact_cosines_come_first(tmp_path):
    rows = healthy_rows(2, 1)
    for rank in range(2):
        rows[0, rank]["exact_cosines"] = [1.0, 0.3] if rank == 0 else [0.3, 1.0]
    (found,) = cosine_matrices(write_run(tmp_path, rows), [0])

    assert found.exact
    assert found.cosines.tolist() == [[1.0, 0.3], [0.3, 1.0]]
    assert found.standard_errors.tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_a_gradient_of_zero_has_no_cosine(tmp_path):
    rows = healthy_rows(2, 1)
    rows[0, 1]["sketch"] = np.zeros(3 * K, dtype=np.float32)
    (found,) = cosine_matrices(write_run(tmp_path, rows), [0])
    assert np.isnan(found.cosines[0, 1])
    assert np.isnan(found.cosines[1, 1])


def test_steps_without_sketches_cannot_tell(tmp_path):
    run = write_run(
        tmp_path, {(0, 0): {"loss": 1.0}, (0, 1): {"loss": 1.0}}, envs={r: rank_env(r, 2) for r in range(2)}
    )
    with pytest.raises(CannotTell, match="step 0 has no sketches"):
        cosine_matrices(run, [0])
