"""Where sampled tokens end abruptly, as a cut by top-p, top-k or min-p leaves them that was not recorded; and words
that never come, as of a list of forbidden ones.

N tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from trueline.laws.rollouts.tokens import tokens_of
from trueline.store.reader import Run
from trueline.store.records.arrays import to_numpy

Floats = NDArray[np.float64]

ORDER, NATS, MASS = 0.5, 0.5, 0.05
"""Widths of the two stretches that are compared: of the logarithm of a token's place, of log p below the likeliest's,
and of the probability above it.
"""
THINNED = 0.5
"""Tokens that are expected beyond an edge, over what a straight line through the logarithms of the two stretches before
it says: a density falls the faster the farther down.
"""
LEAST = 10.0
"""Tokens that are expected where none comes: of what thins out exponentially, at any rate, about 1 is."""
OF_THE_WORDS = 4
"""A place in the order is an edge only in the first quarter of the words that were seen: the vocabulary ends, too."""

MISSED, HARDLY = 20.0, 0.25
"""Nats by which it is no chance that words come so seldom, 1 in 10^8, and the most of what is expected that they come:
a few are chosen that only happened not to come, and a higher temperature makes the likeliest a little less likely.
"""


@dataclass(frozen=True)
class Cut:
    """``says`` what the tokens are as if they came from, ``mass`` the probability that top-p keeps, None for others;
    ``expected`` tokens that should lie beyond the edge.
    """

    says: str
    expected: float
    mass: float | None = None


def read_cut(run: Run, first: int, last: int) -> Cut | None:
    """The clearest edge of the tokens of steps ``first`` to ``last``; None where they thin out, or nobody recorded what
    tells.
    """
    orders, ratios, masses = ([np.zeros(0)] for _ in range(3))
    most_id = 0
    for table in cast(Any, run.kept("rollouts")).pieces():
        tokens = tokens_of(table)
        step_R = to_numpy(table["step"])
        counts = tokens.counts & ((first <= step_R) & (step_R <= last))[tokens.sequence]
        columns = {name: values[counts] for name, values in tokens.columns.items()}
        orders.append(np.log1p(columns["words_above"]))
        ratios.append(columns["logp_top"] - columns["logp_train"])
        masses.append(columns["mass_above"])
        most_id = max(most_id, int(tokens.repeats.ids.max(initial=0)))
    cuts: list[Cut] = []
    order, expected = edge_of(_finite(orders), ORDER)
    if (words := round(math.exp(order))) * OF_THE_WORDS <= most_id + 1:
        cuts.append(Cut(f"from the {words} likeliest tokens (top-k)", expected))
    ratio, expected = edge_of(_finite(ratios), NATS)
    cuts.append(Cut(f"from those of {math.exp(-ratio):.2g} or more of the likeliest's probability (min-p)", expected))
    mass, expected = edge_of(_finite(masses), MASS)
    expected *= min(1.0, (1 - mass) / MASS)  # there is no probability beyond 1
    cuts.append(Cut(f"from the top {mass:.2g} of the probability", expected, round(mass, 2)))
    best = max(cuts, key=lambda cut: cut.expected)
    return best if best.expected >= LEAST else None


def never_sampled(run: Run, first: int, last: int) -> int:
    """Number of words among the trainer's likeliest of steps ``first`` to ``last`` that hardly ever come; 0 where that
    may be chance. Chosen are those that do not come in every other response, and counted they are in the rest, so that
    the choice does not matter. Words from the last one on that was sampled are left out: such rows may pad.
    """
    parts = [np.zeros((4, 0))]
    for table in cast(Any, run.kept("rollouts")).pieces():
        tokens = tokens_of(table)
        step_R = to_numpy(table["step"])
        sampled = tokens.counts & ((first <= step_R) & (step_R <= last))[tokens.sequence]
        columns = (tokens.sequence % 2, tokens.repeats.ids, tokens.repeats.tops, tokens.columns["logp_top"])
        parts.append(np.stack([np.asarray(column, np.float64)[sampled] for column in columns]))
    half_N, ids_N, tops_N, logp_N = np.concatenate(parts, axis=1)
    words = int(ids_N.max(initial=0))
    is_known = (tops_N >= 0) & np.isfinite(logp_N)
    due, came = np.zeros((2, words)), np.zeros((2, words))
    for half in range(2):
        likeliest, sampled = is_known & (half_N == half) & (tops_N < words), (half_N == half) & (ids_N >= 0)
        due[half] = np.bincount(tops_N[likeliest].astype(np.int64), np.exp(logp_N[likeliest]), minlength=words)
        came[half] = np.bincount(ids_N[sampled].astype(np.int64), minlength=words + 1)[:words]
    chosen = (due[0] >= 1) & (came[0] == 0)
    expected, number = float(due[1][chosen].sum()), float(came[1][chosen].sum())
    # Chernoff's bound on the lower tail of a sum of independent events
    nats = expected - number + (number * math.log(number / expected) if number and expected else 0.0)
    return int(chosen.sum()) if nats >= MISSED and number <= HARDLY * expected else 0


def edge_of(x_N: Floats, width: float) -> tuple[float, float]:
    """The largest of ``x_N``, and how many are expected beyond by their density in the two stretches before it."""
    if not len(x_N):
        return 0.0, 0.0
    edge = float(x_N.max())
    near, far = (int(((x_N <= edge - k * width) & (x_N > edge - (k + 1) * width)).sum()) for k in range(2))
    return edge, THINNED * near * min(1.0, near / max(far, 1))


def _finite(parts: list[Floats]) -> Floats:
    values = np.concatenate(parts)
    return values[np.isfinite(values)]
