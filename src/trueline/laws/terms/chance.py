"""What a loss comes to without a look at the inputs: a cross-entropy with equal chances, or with the shares of the
classes; a mean squared error with the mean of the targets.

C classes, T steps.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.judge.stats.trend import num_of_ends
from trueline.laws.terms.loss_terms import loss_terms
from trueline.store.mean_losses import mean_losses
from trueline.store.reader import Run

DEVIATIONS = 2.326
"""A normal number is so many deviations above its mean in 1 % of draws."""
MOST_CLASSES = 64
"""Of more classes a batch has few of each, so that their shares are not known."""
FEWEST = 8
"""Steps from which on the noise of single ones is measured."""
MEDIAN = 0.9539
"""Median distance of two normal numbers with deviation 1: sqrt(2) times the third quartile, 0.6745."""


def chance(run: Run) -> tuple[str, Any] | None:
    """The first cross-entropy beside ln C, that of equal chances; and whether the last losses are lower than the least
    that one prediction for all samples can reach: the entropy of the targets' classes, or the variance of targets.
    """
    first = _first_values(run)
    rows = [row for row in run.lists("class_counts").values() if len(row) > 1]
    if not rows or not first:
        return _regression(run)
    step, value = min(first.items())
    num_classes = Counter(int(row[0]) for row in rows).most_common(1)[0][0]
    uniform = math.log(num_classes)
    text = (
        f"cross-entropy {value:.4g} at step {step}, where equal chances for {num_classes:,} classes have {uniform:.4g}"
    )
    values: dict[str, Any] = {"first": value, "step": step, "classes": num_classes, "uniform": uniform}
    counts = [row[2:] for row in rows if int(row[0]) == num_classes <= MOST_CLASSES and len(row) > 2]
    last = _last_losses(run, "cross-entropy") if counts else None
    if last is None:
        return text, values
    words, compared = _compared(*_entropy(np.sum(counts, axis=0)), *last)
    return f"{text}; {words}", values | compared


def _regression(run: Run) -> tuple[str, Any] | None:
    variances_TN, measured_TN = run.pivot("target_variance")
    variances = variances_TN[measured_TN & np.isfinite(variances_TN)]
    last = _last_losses(run, "mean squared error") if len(variances) > 1 else None
    if last is None:
        return None
    deviation = float(variances.std(ddof=1)) / math.sqrt(len(variances))
    return _compared(float(variances.mean()), deviation, *last)


def _compared(constant: float, deviation: float, last: float, of_last: float) -> tuple[str, dict[str, Any]]:
    """Whether the last losses are lower than those of one prediction for all samples, each with its deviation."""
    is_lower = constant - last > DEVIATIONS * math.hypot(deviation, of_last)
    how = "lower" if is_lower else "not lower beyond chance"
    text = f"one prediction for all samples comes to {constant:.4g}, and the last losses are {how}, {last:.4g}"
    return text, {"constant": constant, "last": last, "lower": is_lower}


def is_far_above_chance(value: dict[str, Any]) -> bool:
    """Whether the first cross-entropy is more than three times that of equal chances: twice is what layers come to that
    nobody scaled.
    """
    return "uniform" in value and value["first"] > 3 * value["uniform"]


def _first_values(run: Run) -> dict[int, float]:
    """The mean of the cross-entropies of a step that has some, by step."""
    values = defaultdict[int, list[float]](list)
    for (step, _), terms in loss_terms(run).items():
        values[step] += [x for term in terms if term.function == "cross-entropy" and (x := term.value) is not None]
    return {step: float(np.mean(of_step)) for step, of_step in values.items() if of_step}


def _last_losses(run: Run, function: str) -> tuple[float, float] | None:
    """Mean of the last tenth of the losses, and its deviation, where these are one such loss and nothing else."""
    passes = Counter((key, term.backward_pass) for key, terms in loss_terms(run).items() for term in terms)
    is_one = all(term.function == function for terms in loss_terms(run).values() for term in terms)
    _, loss_T = mean_losses(run)
    loss_T = loss_T[np.isfinite(loss_T)]
    if max(passes.values()) > 1 or not is_one or len(loss_T) < FEWEST:
        return None
    num = num_of_ends(len(loss_T))
    # Differences of neighbours: a fall over many steps is no noise, and hardly takes part in them.
    noise = float(np.median(np.abs(np.diff(loss_T)))) / MEDIAN
    return float(loss_T[-num:].mean()), noise / math.sqrt(num)


def _entropy(counts_C: NDArray[np.int64]) -> tuple[float, float]:
    """Entropy of classes that were counted, in nats, and its deviation; what counting few of them takes away is added,
    (C - 1) / 2N (Miller, Information Theory in Psychology, 1955).
    """
    shares = counts_C[counts_C > 0] / counts_C.sum()
    entropy = -float((shares * np.log(shares)).sum())
    variance = max(float((shares * np.log(shares) ** 2).sum()) - entropy**2, 0.0) / float(counts_C.sum())
    return entropy + (len(shares) - 1) / (2 * float(counts_C.sum())), math.sqrt(variance)
