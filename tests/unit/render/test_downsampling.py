"""What is drawn of a long or wide series keeps what matters: spikes, gaps, NaN, extremes."""

import numpy as np
import pytest

from trueline.render.charts.downsampling import MAX_BINS, Series, bin_starts, binned, singled_out, spread


def series_of(values_TN: np.ndarray, measured_TN: np.ndarray | None = None) -> Series:
    num_steps, num_ranks = values_TN.shape
    measured_TN = np.ones(values_TN.shape, dtype=bool) if measured_TN is None else measured_TN
    return Series(np.arange(num_steps), values_TN, measured_TN, tuple(range(num_ranks)))


@pytest.mark.parametrize("num_steps", [1, 2 * MAX_BINS, 2 * MAX_BINS + 1, 10_000, 99_999])
def test_bins_cover_every_step_once_and_are_few(num_steps: int) -> None:
    starts = bin_starts(num_steps)

    assert starts[0] == 0
    assert (np.diff(starts) > 0).all()
    assert starts[-1] < num_steps
    assert len(starts) <= 2 * MAX_BINS


@pytest.mark.parametrize("at", [0, 4_321, 9_999])
def test_one_step_spike_survives_binning(at: int) -> None:
    values = np.random.default_rng(0).normal(size=(10_000, 2))
    values[at, 1] = 50.0
    values[(at + 5_000) % 10_000, 1] = -70.0

    bins = binned(series_of(values))

    assert np.nanmax(bins.hi_BN[:, 1]) == 50.0
    assert np.nanmin(bins.lo_BN[:, 1]) == -70.0
    hit = int(np.nanargmax(bins.hi_BN[:, 1]))
    assert bins.first_B[hit] <= at <= bins.last_B[hit]


def test_bins_equal_a_slow_loop() -> None:
    rng = np.random.default_rng(1)
    values = rng.normal(size=(1_000, 3))
    values[rng.random(values.shape) < 0.05] = np.nan
    measured = rng.random(values.shape) < 0.9

    bins = binned(series_of(values, measured))

    for row, (first, last) in enumerate(zip(bins.first_B, bins.last_B, strict=True)):
        for column in range(3):
            inside = values[first : last + 1, column][measured[first : last + 1, column]]
            finite = inside[np.isfinite(inside)]
            assert bins.nonfinite_BN[row, column] == (len(finite) < len(inside))
            assert bins.lo_BN[row, column] == pytest.approx(finite.min() if len(finite) else np.nan, nan_ok=True)
            assert bins.mean_BN[row, column] == pytest.approx(finite.mean() if len(finite) else np.nan, nan_ok=True)
            assert bins.hi_BN[row, column] == pytest.approx(finite.max() if len(finite) else np.nan, nan_ok=True)


def test_nan_and_not_measured_stay_apart() -> None:
    values = np.array([[1.0, np.nan], [2.0, np.nan]])
    bins = binned(series_of(values, np.array([[True, True], [True, False]])))

    assert bins.nonfinite_BN.tolist() == [[False, True], [False, False]]
    assert np.isnan(bins.lo_BN[:, 1]).all()


def test_steps_that_nobody_measured_are_left_out() -> None:
    measured = np.zeros((10, 2), dtype=bool)
    measured[::5] = True

    assert binned(series_of(np.ones((10, 2)), measured)).first_B.tolist() == [0, 5]


def test_spread_names_the_extreme_ranks_and_ignores_what_is_not_finite() -> None:
    values = np.array([[3.0, 1.0, np.nan, 2.0, np.inf]])
    over = spread(series_of(values))

    assert (over.lowest_T[0], over.median_T[0], over.highest_T[0]) == (1.0, 2.0, 3.0)
    assert (over.lowest_rank_T[0], over.highest_rank_T[0]) == (1, 0)


def test_spread_without_any_finite_value_is_nan() -> None:
    assert np.isnan(spread(series_of(np.full((1, 3), np.nan))).median_T).all()


def test_shifted_and_spiking_ranks_are_singled_out_and_healthy_ones_are_not() -> None:
    values = np.random.default_rng(2).normal(size=(300, 32))
    assert singled_out(series_of(values), ()) == ()

    values[:, 7] += 6.0
    values[150, 20] = 40.0
    assert set(singled_out(series_of(values), ())) == {7, 20}


def test_ranks_that_a_finding_names_come_first_and_are_not_crowded_out() -> None:
    values = np.random.default_rng(3).normal(size=(100, 32))
    values[:, 10:20] += 9.0

    assert singled_out(series_of(values), (2, 99))[0] == 2
    assert len(singled_out(series_of(values), (2,))) == 4
