"""Which of n switches a fault needs, from runs with some of them off: Bayesian group testing.

A hypothesis is one switch; two that are needed together (``a + b``); two of which each suffices (``a | b``); or that
the cause is none of them, so that it is there whatever is off. Rates are integrated over (``chance``), each hypothesis
with the runs that have its cause and those that have not. The next pattern of switches is the one whose outcome is
expected to tell most about which hypothesis holds.

Letters: H hypotheses, P patterns, n switches.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from trueline.trials.frame.chance import Counts, log_if_absent, log_if_present, mean_false_rate, mean_rate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Pattern = tuple[bool, ...]
"""Which switches are on, in their order."""

PAIR = 0.1
"""Prior probability that two switches are needed together; and once more that two do it each by itself."""
ELSEWHERE = 0.2
"""Prior probability that the cause is none of them."""

_PATTERNS = 192
"""Patterns that are drawn, among which the most telling one is chosen."""
_SHARES = (0.3, 0.5, 0.6, 0.7, 0.85)
"""Of the switches that are on in a pattern that is drawn."""
_FEWEST = 1e-4
"""Hypotheses below this probability are left out of the choice of a pattern."""


@dataclass(frozen=True)
class Hypothesis:
    """Places of the switches that are needed: one; both (``and``); any of the two (``or``); or none (``elsewhere``)."""

    indices: tuple[int, ...]
    how: Literal["one", "and", "or", "elsewhere"] = "one"

    def is_present(self, pattern: Pattern) -> bool:
        """Return whether what the hypothesis needs is on."""
        is_on = [pattern[index] for index in self.indices]
        # a cause outside of all switches is there whatever is off
        if self.how == "elsewhere":
            return True
        return any(is_on) if self.how == "or" else all(is_on)

    def says(self, names: Sequence[str]) -> str:
        """``fused``, ``fused + overlap`` (needed together) or ``fused | overlap`` (each suffices)."""
        if self.how == "elsewhere":
            return "none of these"
        return {"one": "", "and": " + ", "or": " | "}[self.how].join(names[index] for index in self.indices)


class Search:
    """Beliefs about each hypothesis, by the runs that were told; ``weights`` [n] are prior ones of switches."""

    def __init__(self, weights: Sequence[float], *, seed: int = 0) -> None:
        if not weights:
            raise ValueError("A search needs at least one switch.")
        self.size = len(weights)
        self.hypotheses, log_prior = _hypotheses(weights)
        self._indices = [list(hypothesis.indices) for hypothesis in self.hypotheses]
        self._log_prior_H = np.array(log_prior)
        self._stream = np.random.default_rng(seed)
        self._counts_by_pattern: dict[Pattern, Counts] = {}
        self._barred: set[Pattern] = set()

    @property
    def counts(self) -> Mapping[Pattern, Counts]:
        """Outcomes by pattern."""
        return self._counts_by_pattern

    def tell(self, pattern: Pattern, showed: bool) -> None:
        """One more run."""
        self._counts_by_pattern[pattern] = self._counts_by_pattern.get(pattern, Counts()).with_one(showed)

    def bar(self, pattern: Pattern) -> None:
        """Never ask for this pattern: the job does not run so."""
        self._barred.add(pattern)

    def posterior(self) -> Floats:
        """[H] probabilities."""
        present_H, absent_H = self._counts()
        log_H = self._log_prior_H + _by_counts(log_if_present, present_H) + _by_counts(log_if_absent, absent_H)
        # from the largest, as logs of hundreds of runs underflow
        chances_H = np.exp(log_H - log_H.max())
        return chances_H / chances_H.sum()

    def credible(self, error: float) -> list[tuple[Hypothesis, float]]:
        """The fewest hypotheses that together have a probability of 1 - ``error``, the likeliest first."""
        chances_H = self.posterior()
        order = np.argsort(-chances_H, kind="stable")
        needed = int(np.searchsorted(np.cumsum(chances_H[order]), 1 - error)) + 1
        return [(self.hypotheses[index], float(chances_H[index])) for index in order[:needed]]

    def next(self) -> Pattern | None:
        """The pattern that is expected to tell most; None where none can tell anything."""
        chances_H = self.posterior()
        likely = np.flatnonzero(chances_H > _FEWEST * chances_H.max())
        chances_L = chances_H[likely] / chances_H[likely].sum()
        present_H, absent_H = self._counts()
        rate_L = _by_counts(mean_rate, present_H[likely])
        false_L = _by_counts(mean_false_rate, absent_H[likely])
        on_Pn = self._drawn(chances_H)
        shows_PL = np.where(_is_present(on_Pn, [self.hypotheses[index] for index in likely]), rate_L, false_L)
        told_P = _entropy(shows_PL @ chances_L) - _entropy(shows_PL) @ chances_L
        # stable: the trial is replayed from its log, so that ties must fall the same
        for best in np.argsort(-told_P, kind="stable"):
            pattern = tuple(on_Pn[best].tolist())
            if pattern not in self._barred:
                return pattern if told_P[best] > 1e-9 else None
        return None

    def split(self, hypothesis: Hypothesis, *, without: Pattern) -> tuple[Counts, Counts]:
        """Counts of runs with the cause of ``hypothesis`` and of those without it; pattern ``without`` is left out."""
        sums = [Counts(), Counts()]
        for pattern, counts in self._counts_by_pattern.items():
            if pattern != without:
                side = 0 if hypothesis.is_present(pattern) else 1
                sums[side] = sums[side] + counts
        return sums[0], sums[1]

    def _counts(self) -> tuple[Ints, Ints]:
        """[H, 2] for each hypothesis, of the runs that have its cause and of the others, how many and how many showed
        it.
        """
        if not self._counts_by_pattern:
            return (np.zeros((len(self.hypotheses), 2), dtype=np.int64),) * 2
        told_P2 = np.array(
            [(counts.runs, counts.showed) for counts in self._counts_by_pattern.values()], dtype=np.int64
        )
        is_in_PH = _is_present(np.array(list(self._counts_by_pattern)), self.hypotheses).astype(np.int64)
        # one product for all hypotheses: there are hundreds, and each pattern counts for all of them
        present_H2 = is_in_PH.T @ told_P2
        return present_H2, told_P2.sum(0) - present_H2

    def _drawn(self, chances_H: Floats) -> Bools:
        """[P, n] patterns worth considering: all off; the likeliest switches alone on or off; halves of what is likely;
        and draws.
        """
        marginal_n = np.zeros(self.size)
        for indices, chance in zip(self._indices, chances_H, strict=True):
            marginal_n[indices] += chance
        order = np.argsort(-marginal_n, kind="stable")
        top = [int(index) for index in order[:4]]
        patterns = [np.zeros(self.size, dtype=bool)]
        for indices in (*((single,) for single in top), *itertools.combinations(top, 2)):
            alone = np.zeros(self.size, dtype=bool)
            alone[list(indices)] = True
            patterns += [alone, ~alone]
        mass = np.cumsum(marginal_n[order]) / max(marginal_n.sum(), 1e-12)
        for likely in (order[mass <= 0.5], order[::2]):
            half = np.zeros(self.size, dtype=bool)
            half[likely] = True
            patterns += [half, ~half]
        share_P = self._stream.choice(_SHARES, size=_PATTERNS)
        on_Pn = np.concatenate([np.stack(patterns), self._stream.random((_PATTERNS, self.size)) < share_P[:, None]])
        # all on is base, which runs as a control anyway
        return on_Pn[~on_Pn.all(1)]


def _by_counts(function: Callable[[Counts], float], counts_H2: Ints) -> Floats:
    """[H] ``function`` of each pair of runs and showed: most are the same few."""
    distinct, place_H = np.unique(counts_H2, axis=0, return_inverse=True)
    return np.array([function(Counts(int(runs), int(showed))) for runs, showed in distinct])[place_H.reshape(-1)]


def _hypotheses(weights: Sequence[float]) -> tuple[list[Hypothesis], list[float]]:
    total = sum(weights)
    single = [weight / total for weight in weights]
    pairs = list(itertools.combinations(range(len(weights)), 2))
    # of one switch alone there is no pair, and nothing to share
    of_pairs = sum(single[a] * single[b] for a, b in pairs) or 1.0
    hypotheses = [Hypothesis((index,)) for index in range(len(weights))]
    alone = 1 - ELSEWHERE - (2 * PAIR if pairs else 0)
    log_prior = [math.log(alone * share) for share in single]
    for how in ("and", "or"):
        hypotheses += [Hypothesis(pair, how) for pair in pairs]
        log_prior += [math.log(PAIR * single[a] * single[b] / of_pairs) for a, b in pairs]
    return [*hypotheses, Hypothesis((), "elsewhere")], [*log_prior, math.log(ELSEWHERE)]


def _is_present(on_Pn: Bools, hypotheses: Sequence[Hypothesis]) -> Bools:
    """[P, H]"""
    first = on_Pn[:, [hypothesis.indices[0] if hypothesis.indices else 0 for hypothesis in hypotheses]]
    last = on_Pn[:, [hypothesis.indices[-1] if hypothesis.indices else 0 for hypothesis in hypotheses]]
    is_or = np.array([hypothesis.how == "or" for hypothesis in hypotheses])
    is_elsewhere = np.array([hypothesis.how == "elsewhere" for hypothesis in hypotheses])
    return is_elsewhere | np.where(is_or, first | last, first & last)


def _entropy(chances: Floats) -> Floats:
    clipped = np.clip(chances, 1e-12, 1 - 1e-12)
    return -(clipped * np.log(clipped) + (1 - clipped) * np.log1p(-clipped))
