"""How far the causes that are named can be relied on: counted over scores of the gallery."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gallery.independence import independent_fault, true_causes
from gallery.scoring import Score, upper_bound

from trueline.judge.causes.posterior import UNKNOWN


@dataclass(frozen=True, slots=True)
class Bin:
    """The planted runs whose first cause has a probability from ``low`` to below ``high``; the mean of these
    probabilities beside the share for which that cause is right.
    """

    low: float
    high: float
    runs: int
    mean: float
    right: float


@dataclass(frozen=True, slots=True)
class Risk:
    """What naming the first cause from the probability ``threshold`` on would bring: of so many planted ``runs`` and
    independent ``faults`` it names one, which is not right for ``wrong_runs`` and ``wrong_faults``; ``bound`` is the
    upper bound of their share at 95 %.
    """

    threshold: float
    runs: int
    wrong_runs: int
    faults: int
    wrong_faults: int
    bound: float


def confusion(scores: Sequence[Score]) -> Counter[tuple[str, str]]:
    """Planted runs by their true cause and by the one that was claimed, ``abstained`` or ``none``; where more than one
    cause is right, the true one is all of them, or the one of them that was named.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for score in scores:
        if score.kind == "fault":
            claimed = score.cause if score.cause_found in ("named", "wrong") else score.cause_found
            true = claimed if score.cause_found == "named" else " or ".join(true_causes(score.id))
            counts[true, claimed] += 1
    return counts


def reliability(scores: Sequence[Score], edges: Sequence[float]) -> list[Bin]:
    """The bins between ``edges``, which ascend, that hold any run with a first cause; the last has its end, too."""
    found = [(score.probability, _is_right(score)) for score in _answered(scores)]
    bins = []
    for low, high in pairwise(edges):
        held = [each for each in found if low <= each[0] < high or each[0] == high == edges[-1]]
        if held:
            bins.append(Bin(low, high, len(held), _mean([p for p, _ in held]), _mean([right for _, right in held])))
    return bins


def brier_score(scores: Sequence[Score]) -> float:
    """The mean of (probability - right)^2 over planted runs with a first cause: Brier, Mon. Weather Rev. 78, 1950."""
    return _mean([(score.probability - _is_right(score)) ** 2 for score in _answered(scores)])


def risk(scores: Sequence[Score], threshold: float) -> Risk:
    """The Risk at ``threshold``."""
    named = [score for score in _answered(scores) if score.probability >= threshold]
    wrong = [score for score in named if not _is_right(score)]
    faults, wrong_faults = ({independent_fault(score.id) for score in each} for each in (named, wrong))
    bound = upper_bound(len(wrong_faults), len(faults)) if faults else 1.0
    return Risk(threshold, len(named), len(wrong), len(faults), len(wrong_faults), bound)


def _answered(scores: Sequence[Score]) -> list[Score]:
    return [score for score in scores if score.kind == "fault" and score.cause not in ("", UNKNOWN)]


def _is_right(score: Score) -> bool:
    return score.cause in true_causes(score.id)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
