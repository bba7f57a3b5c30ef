"""The bets on sampled tokens have an expectation of at most 1: shown by adding up over all words, without chance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trueline.laws.rollouts import e_values


def _laws(p: np.ndarray, q: np.ndarray) -> dict[str, np.ndarray]:
    """The expectation [B] under q of every bet of each law, for one token over V words."""
    d, surprise = np.log(q) - np.log(p), -np.log(p)
    entropy = np.full(len(p), (p * surprise).sum())
    varentropy = np.full(len(p), (p * (surprise - entropy) ** 2).sum())
    x, slack = np.exp(-d), np.zeros(len(p))
    each = {
        "above": e_values.mean_above_one(x, slack),
        "below": e_values.mean_below_one(x, slack),
        "cut": e_values.cut(x, slack),
        "sharper": e_values.sharper(d, surprise, entropy, varentropy),
        "flatter": e_values.flatter(d, surprise, entropy, varentropy),
    }
    return {name: (q[:, None] * np.exp(logs)).sum(axis=0) for name, logs in each.items()}


def _drawn(random: np.random.Generator, words: int, spread: float) -> np.ndarray:
    logits = spread * random.normal(size=words)
    p = np.exp(logits - logits.max())
    return p / p.sum()


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("words", [2, 30, 2000])
def test_bets_against_any_two_policies_win_nothing_on_average(spread: float, words: int) -> None:
    random = np.random.default_rng(int(10 * spread) + words)
    for _ in range(20):
        means = _laws(_drawn(random, words, spread), _drawn(random, words, spread))
        for law in ("above", "sharper", "flatter"):
            assert means[law].max() <= 1 + 1e-9, law


def test_bets_on_a_mean_below_one_win_nothing_where_the_tail_is_within_the_allowance() -> None:
    random = np.random.default_rng(0)
    tried = {"below": 0, "cut": 0}
    for _ in range(200):
        p = _drawn(random, 200, 2.0)
        q = p * np.exp(0.5 * random.normal(size=200))
        q /= q.sum()
        means, x = _laws(p, q), p / q
        for law, clip, tail in (("below", e_values.CLIP, e_values.TAIL), ("cut", e_values.CUT_CLIP, e_values.CUT_TAIL)):
            if (q * np.maximum(x - clip, 0)).sum() <= tail:
                tried[law] += 1
                assert means[law].max() <= 1 + 1e-9, law
    assert min(tried.values()) > 100


@pytest.mark.parametrize("words", [2, 3, 30, 2000, 151_936])
def test_no_distribution_has_more_varentropy_than_the_bound_by_its_words(words: int) -> None:
    """The largest is of one word that is likelier than the others, which are alike: scanned over its probability."""
    p = 1 / (1 + np.exp(-np.linspace(-20, 20, 40_001)))
    largest = (p * (1 - p) * np.log(p * (words - 1) / (1 - p)) ** 2).max()
    assert e_values.most_varentropy(words) - 1 <= largest <= e_values.most_varentropy(words)
    random = np.random.default_rng(words)
    for spread in (0.5, 3.0, 10.0):
        q = _drawn(random, words, spread)
        surprise = -np.log(np.maximum(q, 1e-300))
        assert (q * (surprise - (q * surprise).sum()) ** 2).sum() <= e_values.most_varentropy(words)


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 8.0])
def test_bets_against_the_trainers_own_distribution_win_nothing_by_the_bound_either(spread: float) -> None:
    random = np.random.default_rng(int(10 * spread))
    for words in (2, 30, 2000):
        p = _drawn(random, words, spread)
        surprise, none = -np.log(p), np.zeros(words)
        entropy, bound = np.full(words, (p * surprise).sum()), np.full(words, e_values.most_varentropy(words))
        for law in (e_values.sharper, e_values.flatter):
            assert (p[:, None] * np.exp(law(none, surprise, entropy, bound))).sum(axis=0).max() <= 1 + 1e-9


def test_a_temperature_that_was_not_recorded_wins_what_it_is_worth() -> None:
    p = _drawn(np.random.default_rng(1), 500, 2.5)
    sampled = p ** (1 / 0.7) / (p ** (1 / 0.7)).sum()
    surprise = -np.log(p)
    entropy = np.full(500, (p * surprise).sum())
    varentropy = np.full(500, (p * (surprise - entropy) ** 2).sum())
    gains = (sampled[:, None] * e_values.sharper(np.zeros(500), surprise, entropy, varentropy)).sum(axis=0)
    assert gains.max() > 0.02  # nats a token: 700 tokens at most


def test_events_rarer_than_allowed_win_nothing() -> None:
    bets = (3.0, 6.0, 9.0)
    hit, miss = np.exp(e_values.more_often(np.array([True, False]), 0.1, bets))
    assert np.allclose(0.1 * hit + 0.9 * miss, 1)
    assert (0.05 * hit + 0.95 * miss < 1).all()


@pytest.mark.parametrize("scale", [0.3, 2.0, 6.0])
@pytest.mark.parametrize("words", [8, 300])
def test_bets_on_the_tokens_own_spread_gain_nothing_on_average_in_healthy_sampling(scale: float, words: int) -> None:
    """Exactly: the mean over all words of what each bet multiplies by."""
    random = np.random.default_rng(0)
    for _ in range(20):
        p = np.exp(scale * random.normal(size=words))
        p /= p.sum()
        surprise = -np.log(p)
        entropy, zero = np.full(words, (p * surprise).sum()), np.zeros(words)
        sharper = e_values.sharper_by_own_spread(zero, surprise, entropy, np.full(words, math.log(words)))
        flatter = e_values.flatter_by_own_spread(zero, surprise, entropy, zero)
        likeliest = int(p.argmax())
        avoiding = e_values.avoiding(zero, np.arange(words) == likeliest, np.full(words, p[likeliest]))
        for logs in (sharper, flatter, avoiding):
            assert ((p[:, None] * np.exp(logs)).sum(0) <= 1 + 1e-9).all()


def test_bets_on_the_tokens_own_spread_win_where_the_bound_by_a_vocabulary_does_not() -> None:
    """Sampled at temperature 0.75, of entropies alone and nothing declared."""
    random = np.random.default_rng(0)
    logits = 2.5 * random.normal(size=(4000, 300))
    p, q = (np.exp(logits / t) / np.exp(logits / t).sum(-1, keepdims=True) for t in (1.0, 0.75))
    ids = (np.cumsum(q, -1) < random.random((4000, 1))).sum(-1)
    surprise, entropy, zero = -np.log(p[np.arange(4000), ids]), -(p * np.log(p)).sum(-1), np.zeros(4000)
    own = e_values.sharper_by_own_spread(zero, surprise, entropy, np.full(4000, e_values.log_words(None)))
    bound = e_values.sharper(zero, surprise, entropy, np.full(4000, e_values.most_varentropy(None)))
    assert own.sum(0).max() > 50
    assert bound.sum(0).max() < own.sum(0).max() / 2


@pytest.mark.in_turn
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0, 8.0])
@pytest.mark.parametrize("words", [2, 30, 2000])
def test_bets_on_words_that_are_hardly_sampled_win_nothing_on_average(spread: float, words: int) -> None:
    random = np.random.default_rng(int(10 * spread) + words)
    for _ in range(20):
        p, q = _drawn(random, words, spread), _drawn(random, words, spread)
        tail = np.array([p[p <= own].sum() for own in p])
        logs = e_values.hardly_sampled(np.log(q) - np.log(p), tail)
        assert (q[:, None] * np.exp(logs)).sum(axis=0).max() <= 1 + 1e-9
    assert e_values.hardly_sampled(np.zeros(1), np.array([1e-4])).tolist()[0] == pytest.approx([0.38, 1.73], abs=0.01)
