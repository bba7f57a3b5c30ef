"""Slopes of losses and gradient norms on token counts: recovered, covered, and what is made of them."""

import numpy as np
import pytest

from trueline.laws.unlike_workers.loss_weighting import LOSS_MIDDLE, NORM_MIDDLE, slope_on_tokens, weighting_of


def _rng():
    return np.random.default_rng(2)


@pytest.mark.parametrize("slope", [-0.5, 0.0, 1.0])
def test_a_slope_between_workers_is_recovered_whatever_steps_have_in_common(slope):
    rng = _rng()
    x = rng.normal(size=(200, 3))
    y = slope * x + 10 * rng.normal(size=(200, 1)) + 0.1 * rng.normal(size=(200, 3))
    found = slope_on_tokens(y, x)
    assert found.low < slope < found.high
    assert found.high - found.low < 0.2


def test_the_interval_covers_when_noise_is_shared_and_uneven():
    """300 short series of correlated, unequally noisy workers: 99.9 % nominal; at 8 steps or more, 97 % at least."""
    rng = _rng()
    covered = 0
    for _ in range(300):
        x = rng.normal(size=(20, 4))
        noise = rng.normal(size=(20, 4)) * np.exp(rng.normal(size=(20, 1)))
        slope = slope_on_tokens(0.3 * x + noise, x)
        covered += slope.low <= 0.3 <= slope.high
    assert covered >= 291


def test_steps_that_say_nothing_do_not_count():
    x, y = np.ones((50, 3)), _rng().normal(size=(50, 3))
    assert slope_on_tokens(y, x) is None
    x[:7, 0] = 2
    assert slope_on_tokens(y, x) is None
    x[7, 0] = 2
    assert slope_on_tokens(y, x).num_steps == 8
    y[0, 1:] = np.nan
    assert slope_on_tokens(y, x) is None


def test_the_middles_part_means_from_sums():
    """With tokens that pull alike (signal) or each its own way (noise), up to 1e4 of them."""
    rng = _rng()
    x = rng.uniform(0, 9, (100, 4))
    for signal, noise in ((1, 0), (0, 1), (1, 30)):
        means = np.log(signal**2 + noise**2 * np.exp(-x)) / 2
        assert slope_on_tokens(means, x).side_of(NORM_MIDDLE) == -1
        assert slope_on_tokens(means + x, x).side_of(NORM_MIDDLE) == 1
    losses = np.log(2 + 0.1 * rng.normal(size=x.shape))
    assert slope_on_tokens(losses, x).side_of(LOSS_MIDDLE) == -1
    assert slope_on_tokens(losses + x, x).side_of(LOSS_MIDDLE) == 1


@pytest.mark.parametrize(
    ("norm", "loss", "local", "averaging"),
    [
        (-0.3, 0, None, "equal"),
        (-0.3, None, None, "equal"),
        (0.8, 0, None, "by tokens"),
        (0.8, 1, True, "by tokens"),
        (-0.3, 1, True, None),
        (None, 0, None, "equal"),
        (None, 0, False, None),
        (None, 1, False, "by tokens"),
        (None, None, None, None),
    ],
)
def test_gradients_decide_then_losses_and_contradictions_do_not(norm, loss, local, averaging):
    rng = _rng()
    x = rng.normal(size=(100, 4))
    noise = 0.1 * rng.normal(size=(2, 100, 4))
    absent = np.full(x.shape, np.nan)
    log_norm = absent if norm is None else norm * x + noise[0]
    losses = absent if loss is None else np.exp(loss * x + noise[1])
    assert weighting_of(losses, log_norm, x, loss_is_local=local).averaging == averaging


def test_losses_that_are_not_positive_have_no_slope():
    x = _rng().normal(size=(100, 4))
    assert weighting_of(-np.exp(x), np.full(x.shape, np.nan), x, loss_is_local=True).loss_slope is None
