"""Classes are weighed by their frequency, not against it: the rarer class counts less.

What it finds
-------------
`cross_entropy(weight=…)`, `nll_loss`, or a factor of each sample that follows its class, where the rarer class has the
smaller weight; `binary_cross_entropy_with_logits(pos_weight=…)` below 1 where positive targets are the rarer ones.
Counts or shares were given as weights, or positives over negatives.

Why it matters
--------------
Weights of classes are to make up for rare ones. By their frequency they do the opposite: a class of 9 % is trained as
if it were 1 %, and the model hardly ever answers it. Loss and accuracy look better for it.

How it decides
--------------
At the steps at which the terms of a loss are looked at, its weights and the targets of each class are counted, and
added up over steps and ranks. Two classes differ clearly where one has half as many targets again, and chance makes
equal classes differ so much with a probability of 10⁻⁶ at most, divided by the pairs (Chernoff's bound of the binomial
distribution; labels of pixels count as their images). It is told where every clear pair of different weights has the
larger one on the more frequent class, and the largest and the smallest weight are of such a pair; of `pos_weight`,
where it is below 1 at an output whose positives are clearly rarer than its negatives, and no output speaks against it.

A weight of 0 masks a class, and is left out. It is for you to confirm: errors on a frequent class may cost most.

What it may miss
----------------
Weights that are multiplied in another way, as in a focal loss; fewer targets than it takes; weights that are reversed
on some classes only. A sampler that draws by weights of its own changes the frequencies: nothing is said there.

Example
-------
Class 1 is the rarer one (9 % of 5,120 targets) and has the smaller weight (0.09; class 0 has 0.91).

Wrong and right
---------------
Wrong:

```python
weight = counts / counts.sum()
```

Right:

```python
weight = counts.sum() / (len(counts) * counts)
```
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trueline.judge.compared_ranks import MAX_SITES, data_parallel_ranks
from trueline.schema.columns.loss_values import BY_CLASS, ClassWeights
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.schema.site import Site
from trueline.store.reader import Run

CODE = "class-weights-reversed"
CALLS = {"": ("backward",)}
QUESTION = "loss"
NEEDS: tuple[str, ...] = ("class_weights",)
ACROSS_RANKS = False

ALARM = 1e-6
"""Chance that classes which are equally frequent seem not to be, of a Run."""
LEAST_RATIO = 1.5
"""How many times as many targets the more frequent class has at least."""
ROUNDING = 1e-4
"""Of the largest weight, by which those of one class may differ, as weights in half precision do."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class _Totals:
    """Weights and targets [C] over all looks; ``share`` of the targets that count as drawn by themselves."""

    kind: int
    weights_C: Floats
    counts_C: Floats
    targets: float
    share: float
    steps: tuple[int, ...]
    ranks: tuple[int, ...]


def check(run: Run) -> list[Finding]:
    """A Finding on the weights of the first term; raises ``CannotTell`` where too few targets were seen."""
    if not run.has("loss_terms"):
        raise CannotTell("no graph of a loss was looked at", reason="not-recorded")
    ranks = set(data_parallel_ranks(run))
    rows = {
        key: ClassWeights.from_row(row.tolist()) for key, row in run.lists("class_weights").items() if key[1] in ranks
    }
    if not rows:
        return []
    if any(env.data and env.data.get("sampler") == "WeightedRandomSampler" for env in run.env.values()):
        raise CannotTell("the sampler draws samples by weights of its own", reason="undecidable")
    totals = _totals(rows)
    return _of_classes(run, totals) if totals.kind == BY_CLASS else _of_positives(run, totals)


def _totals(rows: dict[tuple[int, int], ClassWeights]) -> _Totals:
    """Raises ``CannotTell`` where the losses have different classes, or weights are not those of classes."""
    if len({(row.kind, len(row.weights)) for row in rows.values()}) > 1:
        raise CannotTell("the terms with weights have different numbers of classes", reason="undecidable")
    weights_LC = np.array([row.weights for row in rows.values()])
    largest = float(np.nanmax(np.abs(weights_LC), initial=0.0))
    if max(row.spread for row in rows.values()) > ROUNDING * largest:
        raise CannotTell("the weights of the loss are of samples, not of their classes", reason="undecidable")
    known_LC = np.isfinite(weights_LC)
    num_C = known_LC.sum(0)
    weights_C = np.where(num_C > 0, np.where(known_LC, weights_LC, 0.0).sum(0) / np.maximum(num_C, 1), np.nan)
    counts_C = np.array([row.counts for row in rows.values()]).sum(0)
    targets = sum(row.targets for row in rows.values())
    units = sum(row.units for row in rows.values())
    steps = tuple(sorted({step for step, _ in rows}))
    ranks = tuple(sorted({rank for _, rank in rows}))
    kind = next(iter(rows.values())).kind
    return _Totals(kind, weights_C, counts_C, targets, min(units / max(targets, 1.0), 1.0), steps, ranks)


def _are_clear(fewer: Floats, more: Floats, num_tests: int) -> NDArray[np.bool_]:
    """Where ``more`` targets are not by chance more than ``fewer``, of two classes that are equally frequent.

    Chernoff's bound: P(X >= k) <= exp(-n KL(k / n, 1 / 2)), twice for both sides.
    """
    total = np.maximum(fewer + more, 1.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = [np.where(x > 0, x * np.log(2 * x / total), 0.0) for x in (fewer, more)]
    log_chance = np.log(2 * num_tests) - (parts[0] + parts[1])
    return (more >= LEAST_RATIO * fewer) & (more > fewer) & (log_chance <= np.log(ALARM))


def _of_classes(run: Run, totals: _Totals) -> list[Finding]:
    classes = np.flatnonzero(np.isfinite(totals.weights_C) & (totals.weights_C > 0))
    weights, counts = totals.weights_C[classes], totals.counts_C[classes] * totals.share
    differ = weights[:, None] < weights[None, :] * (1 - ROUNDING)  # [lighter, heavier]
    if not differ.any():
        return []
    num_tests = len(classes) * (len(classes) - 1) // 2
    rarer = _are_clear(counts[:, None], counts[None, :], num_tests)  # [rarer, more frequent]
    if (differ & rarer.T).any():
        return []
    light, heavy = int(weights.argmin()), int(weights.argmax())
    if not rarer[light, heavy]:
        raise CannotTell(
            f"{totals.targets:,.0f} targets do not show which of the classes are the rarer ones", reason="too-few-steps"
        )
    shares = [_percent(float(totals.counts_C[classes[at]] / totals.targets)) for at in (light, heavy)]
    names = [int(classes[at]) for at in (light, heavy)]
    if len(classes) == 2:
        claim = (
            f"Class {names[0]} is the rarer one ({shares[0]} of {totals.targets:,.0f} targets) and has the smaller "
            f"weight ({weights[light]:.3g}; class {names[1]} has {weights[heavy]:.3g})."
        )
    else:
        claim = (
            f"The loss weighs classes by their frequency: class {names[0]}, {shares[0]} of {totals.targets:,.0f} "
            f"targets, has the weight {weights[light]:.3g}, and class {names[1]}, {shares[1]}, has "
            f"{weights[heavy]:.3g}."
        )
    advice = "Weigh classes against their frequency: weight = counts.sum() / (len(counts) * counts)"
    return [_finding(run, totals, claim, advice, names, float(weights[heavy] / weights[light]))]


def _of_positives(run: Run, totals: _Totals) -> list[Finding]:
    weights, positives = totals.weights_C, totals.counts_C * totals.share
    negatives = totals.targets * totals.share - positives
    has_weight = np.isfinite(weights) & (weights > 0) & (np.abs(weights - 1) > ROUNDING)
    if not has_weight.any():
        return []
    rare = _are_clear(positives, negatives, 2 * len(weights)) & has_weight
    frequent = _are_clear(negatives, positives, 2 * len(weights)) & has_weight
    if (rare & (weights > 1)).any() or (frequent & (weights < 1)).any():
        return []
    wrong = np.flatnonzero(rare & (weights < 1))
    if not len(wrong):
        if frequent.any():
            return []
        raise CannotTell(
            f"{totals.targets:,.0f} targets do not show whether positive ones are rarer", reason="too-few-steps"
        )
    at = int(wrong[weights[wrong].argmin()])
    share = totals.counts_C[at] / totals.targets
    output = "" if len(weights) == 1 else f" of output {at}"
    claim = (
        f"Positive targets{output} are the rarer ones ({_percent(share)} of {totals.targets:,.0f}) and count less: "
        f"pos_weight is {weights[at]:.3g}."
    )
    if len(wrong) > 1:
        claim = f"{claim[:-1]}; so are those of {len(wrong) - 1:,} more outputs."
    advice = (
        f"Give it negatives / positives, here {(1 - share) / share:.3g}" if share else "Give it negatives / positives"
    )
    return [_finding(run, totals, claim, advice, wrong.tolist(), float(weights[at]))]


def _percent(share: float) -> str:
    """Two digits: ``9 %``, ``0.45 %``."""
    return f"{100 * share:.2g} %" if share < 0.995 else "100 %"


def _finding(run: Run, totals: _Totals, claim: str, advice: str, classes: Sequence[int], measured: float) -> Finding:
    first = totals.steps[0]
    by_class = totals.kind == BY_CLASS
    return Finding(
        code=CODE,
        severity="confirm",
        claim=claim,
        ranks=totals.ranks,
        step_first=first,
        step_last=totals.steps[-1],
        sites=tuple(str(Site(first, 0, rank, "loss", "all")) for rank in totals.ranks)[:MAX_SITES],
        measured=measured,
        expected=None,
        unit="times the weight of the rarer class" if by_class else "weight of a positive target",
        false_alarm_rate=ALARM,
        evidence={
            "kind": "classes" if by_class else "positives",
            "classes": list(classes)[:100],
            "weights": [round(float(x), 6) if np.isfinite(x) else None for x in totals.weights_C[:100]],
            "counts": [int(x) for x in totals.counts_C[:100]],
        },
        next=(f"{advice}; if errors on the frequent class are to cost more, leave it.",),
    )
