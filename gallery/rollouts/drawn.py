"""Rollouts drawn from distributions that are made up: B sequences of L tokens over V words, with everything known."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Made:
    """Logits [B, L, V] of the trainer at each step, ``scale`` large, and of the engine: these plus an error of size
    ``error``, one for all or an array. Where a cut is ``reproduced``, the trainer computes within it.
    """

    def __init__(
        self,
        *,
        size: int = 16,
        length: int = 24,
        words: int = 50,
        error: float | Floats = 1e-6,
        scale: float = 2.0,
        reproduced: bool = False,
        seed: int = 0,
    ) -> None:
        self.random = np.random.default_rng(seed)
        self.shape = (size, length, words)
        self.error, self.scale, self.reproduced = error, scale, reproduced

    def batch(self, *, temperature: float = 1.0, top_p: float = 1.0, processed: bool = True) -> dict[str, Any]:
        """What ``rl.record`` takes of one step."""
        train = self.scale * self.random.normal(size=self.shape)
        engine = train + self.error * self.random.normal(size=self.shape)
        p, raw = softmax(train), softmax(engine)
        q = cut(softmax(engine / temperature), top_p)
        if self.reproduced:
            p = np.where(q > 0, p, 0.0) / (p * (q > 0)).sum(-1, keepdims=True)
        ids = drawn(q, self.random)
        recorded = q if processed else raw
        top = np.argsort(-recorded, axis=-1)[..., :2]
        with np.errstate(divide="ignore"):
            log_p, log_r = np.log(p), np.log(recorded)
        known = np.where(p > 0, log_p, 0.0)
        entropy = -(p * known).sum(-1)
        return {
            "prompt_ids": [[1, 2, 3]] * len(ids),
            "response_ids": ids,
            "logp_rollout": at(log_r, ids),
            "logp_train": at(log_p, ids),
            "entropy": entropy,
            "varentropy": (p * (known + entropy[..., None]) ** 2).sum(-1),
            "mass_above": (p * (p > at(p, ids)[..., None])).sum(-1),
            "odds_rollout": log_odds(log_r, top),
            "odds_train": log_odds(log_p, top),
            "versions": (0, 0),
            "sampling": {"dtype": "float32"},
        }


def softmax(x: Floats) -> Floats:
    """The probabilities of logits."""
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


def cut(q: Floats, top_p: float) -> Floats:
    """The likeliest words that hold at least ``top_p``, and nothing else."""
    if top_p >= 1:
        return q
    order = np.argsort(-q, axis=-1)
    ordered = np.take_along_axis(q, order, -1)
    kept = np.where(np.cumsum(ordered, -1) - ordered < top_p, ordered, 0.0)
    out = np.zeros_like(q)
    np.put_along_axis(out, order, kept, -1)
    return out / out.sum(-1, keepdims=True)


def drawn(q: Floats, random: np.random.Generator) -> Ints:
    """A word of each distribution."""
    return (np.cumsum(q, -1) < random.random((*q.shape[:-1], 1))).sum(-1).clip(0, q.shape[-1] - 1)


def at(values: Floats, ids: Ints) -> Floats:
    """The value of each word that was drawn."""
    return np.take_along_axis(values, ids[..., None], -1)[..., 0]


def log_odds(log_p: Floats, top: Ints) -> Floats:
    """Of the first against the second word; NaN where one of them cannot come."""
    with np.errstate(invalid="ignore"):
        odds = at(log_p, top[..., 0]) - at(log_p, top[..., 1])
    return np.where(np.isfinite(odds), odds, np.nan)
