"""Two laws of sampled tokens that hold for any model, entropy and length, as e-values: no threshold is drawn.

A token y was sampled from q, of which log q(y) was recorded; the trainer gives it p(y), and X = p(y) / q(y).

M1. E[X] = sum of p over the support of q <= 1, and = 1 where q leaves nothing out, whatever the two policies are. So 1
+ b (X - 1) is an e-value for every 0 <= b < 1 (a bet on the mean of a non-negative variable: Waudby-Smith & Ramdas,
arXiv 2010.09686): a mean above 1 says that tokens were not sampled from what was recorded. For a mean *below* 1 the
variable has to be bounded: X is clipped at ``CLIP``, and ``TAIL`` is the mass of p on tokens with X beyond it, plus the
part of it that is no fault. For cuts a second bet clips at ``CUT_CLIP``, and counts only where X is hardly ever above
1.

M2. With S = -log p(y), H its mean under p and V its variance, both known exactly from the logits, Bennett's inequality
(JASA 57, 1962) bounds E_p exp(b (H - S)) <= exp(V g(b H) / H²), g(x) = e^x - 1 - x, since H - S <= H. And E_q[X f] =
E_p[f] for any f, so X exp(b (H - S) - V g(b H) / H²) is an e-value under q, whatever p is: lag and rounding cancel
exactly. It is the likelihood ratio of a sharpened p, at temperature 1 / (1 + b), to what was recorded. The other way
round S - H is clipped at ``UP``, which only lowers its mean.

Where the engine recorded nothing, tokens of the trainer's own weights are taken to be sampled from p itself: M2 with
X = 1. An error of size s of the logits then moves the mean of S by at most s sqrt(V) to first order (Cauchy-Schwarz),
which is charged. V has a bound of its own, ``most_varentropy``, where only entropies were recorded. A bound is far
above V, so there are bets without it as well: exp(b x + x² (b + log(1 - b))) <= 1 + b x for x >= -1 and 0 <= b < 1
(Fan, Grama and Liu, Electron. J. Probab. 20, 2015), whose mean is 1 under p for x = (S - H) / c, which is -1 or more
where c >= H. The other way round S is clipped.

Few tokens that were hardly sampled move the mean of S by little. The probability T of all words that are no likelier
than y is at most u with probability u or less, whatever p is, so k T^(k - 1) has a mean of at most 1 (Vovk and Wang,
Ann. Statist. 49, 2021), and 1 + b (k T^(k - 1) - 1) is an e-value that hardly loses on usual tokens.

The tokens of a sequence are a martingale given the prefix, and sequences are independent given the weights, so
e-values multiply: logs add up over the tokens of a step. Rounding of what was recorded moves X by at most its own size,
which is charged (``slack``).

N tokens, B bets.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CLIP = 20.0
"""X is clipped here for bets on a mean below 1."""
TAIL = 0.01
"""The mean of the clipped X that is no fault is 1 - this: mass beyond ``CLIP``, and the least that a cut is worth."""
CUT_CLIP = 2.0
CUT_TAIL = 0.03
"""The same for a cut. Lag and rounding put less than this beyond 2 where log X spreads by up to 0.6 (log-normal)."""
UP = 8.0
"""Nats above the entropy at which the surprise is clipped for bets on flatter sampling."""
LEAST = 1e-3
"""A mean of X above 1 by less than this is not worth a finding."""

HIGH_BETS: tuple[float, ...] = (0.02, 0.1, 0.5)
LOW_BETS: tuple[float, ...] = (0.01, 0.045)
"""Below 1 / (CLIP - 1), where a clipped X could take everything that was won."""
CUT_BETS: tuple[float, ...] = (0.1, 0.3, 0.9)
SHARP_BETS: tuple[float, ...] = (0.03, 0.1, 0.3, 0.8)
"""b of the temperature 1 / (1 + b) that it is best for: 0.97, 0.91, 0.77, 0.56."""
OWN_SPREAD_SHARP_BETS: tuple[float, ...] = (0.3, 0.8)
ABOVE_ALL = 3.0
"""Nats above the logarithm of the number of words at which the surprise is clipped for these."""
FLAT_BETS: tuple[float, ...] = (0.03, 0.06, 0.12, 0.25)
OWN_SPREAD_BETS: tuple[float, ...] = (0.1, 0.3)
"""Shares of the entropy that are bet on flatter sampling where the spread is taken from the tokens themselves."""
AVOIDING_BETS: tuple[float, ...] = (0.2, 0.6)
"""Bets against the likeliest token where it stood before: a penalty of 1.3 takes a fifth of them."""
TAIL_BETS: tuple[float, ...] = (0.002, 0.02)
TAIL_POWER = 0.25
"""k: of T = 10^-4 the first bet wins 0.4 nats, the second 1.7; of T = 0.5 they lose 0.001 and 0.01."""
TAIL_ROUNDING = 1e-5
"""What float32 may lose of a sum of probabilities."""
MOST_WORDS = 2**20
"""Words of a vocabulary that was not declared: more than any language model has (262,144 is the largest known)."""


def mean_above_one(x_N: Floats, slack_N: Floats) -> Floats:
    """[N, B] logs of bets that X is above 1 on average."""
    # a bet may lose all but never more, or the log would not exist
    return np.log1p(np.multiply.outer(x_N - 1 - LEAST - slack_N, HIGH_BETS).clip(-0.999))


def mean_below_one(x_N: Floats, slack_N: Floats) -> Floats:
    """[N, B] logs of bets that the clipped X is below 1 - ``TAIL`` on average."""
    return np.log1p(np.multiply.outer(1 - TAIL - slack_N - np.minimum(x_N, CLIP), LOW_BETS))


def cut(x_N: Floats, slack_N: Floats) -> Floats:
    """[N, B] the same with X clipped at ``CUT_CLIP``: it takes a tenth of the tokens, and is for a cut, which leaves no
    X above 1.
    """
    return np.log1p(np.multiply.outer(1 - CUT_TAIL - slack_N - np.minimum(x_N, CUT_CLIP), CUT_BETS).clip(-0.999))


def sharper(d_N: Floats, surprise_N: Floats, entropy_N: Floats, varentropy_N: Floats) -> Floats:
    """[N, B] logs of bets that tokens are likelier under p than their recorded distribution lets them be."""
    bets = np.asarray(SHARP_BETS)
    reach_NB = np.multiply.outer(np.maximum(entropy_N, 1e-6), bets)
    # what the bet gains on average in healthy sampling, bounded by Bennett's inequality
    charge_NB = varentropy_N[:, None] * bets**2 * _bennett(reach_NB)
    return (entropy_N - surprise_N)[:, None] * bets - charge_NB - d_N[:, None]


def flatter(d_N: Floats, surprise_N: Floats, entropy_N: Floats, varentropy_N: Floats) -> Floats:
    """[N, B] logs of bets that tokens are less likely under p than they should be."""
    bets = np.asarray(FLAT_BETS)
    excess_N = np.minimum(surprise_N - entropy_N, UP)
    charge_B = bets**2 * _bennett(UP * bets)
    return excess_N[:, None] * bets - np.multiply.outer(varentropy_N, charge_B) - d_N[:, None]


def flatter_by_own_spread(d_N: Floats, surprise_N: Floats, entropy_N: Floats, moved_N: Floats) -> Floats:
    """[N, B] the same, charged by the spread of the tokens instead of ``varentropy``; rounding may have lowered
    ``surprise_N`` by ``moved_N``.
    """
    bets = np.asarray(OWN_SPREAD_BETS)
    # at most the entropy below its mean, however sharp; a unit of 1 keeps sharp distributions from winning by noise
    x_N = (surprise_N - entropy_N) / np.maximum(entropy_N + moved_N, 1.0)
    return np.multiply.outer(x_N, bets) + np.multiply.outer(x_N**2, bets + np.log1p(-bets)) - d_N[:, None]


def sharper_by_own_spread(d_N: Floats, surprise_N: Floats, entropy_N: Floats, log_words_N: Floats) -> Floats:
    """[N, B] bets that tokens are likelier than they should be, charged by the spread of the tokens themselves.

    The surprise is clipped at a = log V + ``ABOVE_ALL``, which lowers its mean by sum p (-log p - a) over p < e^-a: at
    most V e^(-a - 1), as p (-log p - a) is largest at e^(-a - 1).
    """
    bets = np.asarray(OWN_SPREAD_SHARP_BETS)
    clip_N = log_words_N + ABOVE_ALL
    reach_N = np.maximum(clip_N - entropy_N, 1.0)
    x_N = (entropy_N - np.minimum(surprise_N, clip_N)) / reach_N
    charge_N = math.exp(-ABOVE_ALL - 1) / reach_N
    return np.multiply.outer(x_N - charge_N, bets) + np.multiply.outer(x_N**2, bets + np.log1p(-bets)) - d_N[:, None]


def avoiding(d_N: Floats, hit_N: NDArray[np.bool_], p_N: Floats) -> Floats:
    """[N, B] bets that the likeliest token, of probability ``p_N`` or more, is sampled (``hit_N``) too seldom."""
    return np.log1p(np.multiply.outer(p_N - hit_N, AVOIDING_BETS)) - d_N[:, None]


def hardly_sampled(d_N: Floats, tail_N: Floats) -> Floats:
    """[N, B] bets that words come of which ``tail_N``, the probability of all that are no likelier, is small."""
    gain_N = TAIL_POWER * (np.clip(tail_N, 0.0, 1.0) + TAIL_ROUNDING) ** (TAIL_POWER - 1) - 1
    return np.log1p(np.multiply.outer(gain_N, TAIL_BETS)) - d_N[:, None]


def log_words(words: Any) -> float:
    """The logarithm of a declared number of words, that of ``MOST_WORDS`` for none."""
    return math.log(_words(words))


def most_varentropy(words: Any) -> float:
    """The largest variance of -log p over so many words, log²(words - 1) / 4 + 1 nats² (Reeb and Wolf, IEEE Trans. Inf.
    Theory 61, 2015, arXiv 1304.0036: the maximum lies between this less 1 and this); that of ``MOST_WORDS`` for no
    number of words.
    """
    return math.log(_words(words) - 1) ** 2 / 4 + 1


def _words(declared: Any) -> int:
    return declared if isinstance(declared, int) and declared >= 2 else MOST_WORDS


def _bennett(x: Floats) -> Floats:
    """(e^x - 1 - x) / x², which is 1/2 at 0."""
    # the difference of nearly equal numbers would lose all digits
    small = np.abs(x) < 1e-3
    safe = np.where(small, 1.0, x)
    return np.where(small, 0.5 + x / 6, (np.expm1(safe) - safe) / safe**2)


def more_often(hit_N: NDArray[np.bool_], chance: float, bets: tuple[float, ...]) -> Floats:
    """[N, B] logs of bets that events come more often than with probability ``chance``, each b < 1 / chance."""
    return np.log1p(np.multiply.outer(hit_N.astype(np.float64) - chance, bets))
