"""Find what the loss of each backward pass is the sum of, and by what each term is multiplied and divided."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trueline.capture.adapters.base import Guard
from trueline.capture.model.layout import local
from trueline.capture.probes.at_backward import BackwardProbe
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.losses import descent
from trueline.capture.probes.losses.class_weights import class_weights
from trueline.capture.probes.losses.constant_terms import constant_term
from trueline.capture.probes.losses.head import labels_of
from trueline.capture.probes.losses.likelihood_ratios import ratios_of
from trueline.capture.probes.losses.summands import (
    Scalar,
    Summand,
    Summands,
    averages_itself,
    class_counts,
    cross_entropy_of,
    is_mean,
    summands_of,
    target_variance,
)
from trueline.capture.probes.parts import ProbeParts
from trueline.capture.step.passes import Contributions, CountedPasses, Pass
from trueline.laws.terms.columns import FUNCTIONS, NUM_FIELDS, OF_ALL, OF_ONE

MAX_PASSES = 64
"""Backward passes of a step that are looked at: of more, the first ones."""

_AWAITED = sys.float_info.max
"""Stands in a row for a number that is still on the device."""


class LossTermsProbe(BackwardProbe):
    """Reads the graph of each loss at the first sampled steps, and then at gaps that double: what a loss is made of
    seldom changes. Numbers on a device are copied with the step's row.
    """

    name = "terms of the loss"
    moments = ("gradients",)
    between = None

    def __init__(self, guard: Guard, passes: Contributions) -> None:
        super().__init__(guard, passes)
        self._next_age = 0
        self._index_of: Mapping[int, int] = {}

    def begin(self, step: Step) -> bool:
        due = step.sampled and step.watched and step.age >= self._next_age
        if due:
            self._next_age = max(step.age + 1, 2 * step.age - 1)
            self._index_of = step.layout.index_of
        if due or self._due:
            self._forget(due=due)
        return due

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """``loss_terms``, float64 [K, fields] on the host, ``loss_terms_awaited``, float64 [numbers], ``class_counts``,
        int64 [M, 2 + classes], ``target_variances``, float64 [M], ``constant_terms``, float64 [M, 4],
        ``likelihood_ratios``, int64 [R, 5], ``class_weights``, float64 [M, 4 + 2 classes], and ``head_labels``, int64
        [M, 5].
        """
        rows, awaited, counts, variances = self._rows, self._awaited, self._counts, self._variances
        constants, ratios, labels = self._constants, self._ratios, self._labels
        # rows of losses with different numbers of classes have no common columns, and cannot be added
        is_one = len({row.shape[1] for _, row in counts}) == 1
        weights = self._weights if len({row.shape[1] for _, row in self._weights}) == 1 else []
        self._forget(due=False)
        return {
            **_since_first(step.counted, "loss_terms", rows),
            **_since_first(step.counted, "loss_terms_awaited", awaited),
            **_since_first(step.counted, "class_counts", counts if is_one else ()),
            **_since_first(step.counted, "target_variances", variances),
            **_since_first(step.counted, "constant_terms", constants),
            **_since_first(step.counted, "likelihood_ratios", ratios),
            **_since_first(step.counted, "class_weights", weights),
            **_since_first(step.counted, "head_labels", labels),
        }

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        columns: dict[str, Any] = {}
        for name in ("constant_terms", "likelihood_ratios"):
            if len(numbers := host.get(name, ())):
                columns[name] = numbers.flatten().tolist()
        if len(weights := host.get("class_weights", ())):
            columns["class_weights"] = _of_step(weights)
        if len(labels := host.get("head_labels", ())):
            columns["head_labels"] = labels[0].tolist()
        if not len(terms := host.get("loss_terms", ())):
            return columns
        arrived = iter(host["loss_terms_awaited"].tolist() if "loss_terms_awaited" in host else ())
        rows = [tuple(next(arrived) if x == _AWAITED else x for x in term) for term in terms.tolist()]
        # NaN is unequal to itself, and would make each row one of its own.
        alike = Counter(tuple(None if math.isnan(x) else x for x in term) for term in rows)
        merged = [[math.nan if x is None else x for x in term] for term in alike]
        for term, number in zip(merged, alike.values(), strict=True):
            term[2] = float(number)
        columns["loss_terms"] = [x for term in merged for x in term]
        if len(counts := host.get("class_counts", ())):
            columns["class_counts"] = [int(counts[0, 0]), *counts[:, 1:].sum(0).tolist()]
        if len(variances := host.get("target_variances", ())):
            columns["target_variance"] = float(variances.mean())
        return columns

    def _forget(self, *, due: bool) -> None:
        super()._forget(due=due)
        self._rows: list[tuple[Pass, Tensor]] = []
        self._awaited: list[tuple[Pass, Tensor]] = []
        self._counts: list[tuple[Pass, Tensor]] = []
        self._variances: list[tuple[Pass, Tensor]] = []
        self._constants: list[tuple[Pass, Tensor]] = []
        self._ratios: list[tuple[Pass, Tensor]] = []
        self._labels: list[tuple[Pass, Tensor]] = []
        self._weights: list[tuple[Pass, Tensor]] = []

    def _at_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        backward_pass = self._passes.backward_pass
        if not self._due or backward_pass is None or len(self._rows) >= MAX_PASSES:
            return
        with self._guard(self.name), torch.no_grad():
            roots = descent.roots_of(tensors)
            if len(roots) != 1 or roots[0].numel() != 1:
                return
            self._add_values(backward_pass, roots[0])
            if summands := summands_of(roots[0]):
                self._add(backward_pass, local(roots[0]).detach(), summands)

    def _add_values(self, backward_pass: Pass, root: Tensor) -> None:
        """What is added to the loss without a gradient, and what its ratios of probabilities are."""
        if (constant := constant_term(root)) is not None:
            number, value, rest = constant
            unit = torch.finfo(root.dtype).eps
            row = [torch.full_like(value, number), value, rest, torch.full_like(value, unit)]
            self._constants.append((backward_pass, torch.stack(row)[None]))
        if (ratios := ratios_of(root)) is not None:
            number_of_pass = ratios.new_full((len(ratios), 1), len(self._ratios))
            self._ratios.append((backward_pass, torch.cat([number_of_pass, ratios], 1)))

    def _add(self, backward_pass: Pass, loss: Tensor, summands: Summands) -> None:
        awaited: list[Tensor] = []
        whole = [*_filled(summands.multipliers, OF_ALL), *_filled(summands.divisors, OF_ALL)]
        rows = [
            _on_host([float(len(self._rows)), *_measured(part, loss), *whole, *_factors(part)], awaited)
            for part in summands.parts
        ]
        self._rows.append((backward_pass, torch.tensor(rows, dtype=torch.float64).view(-1, NUM_FIELDS)))
        weights = next((row for part in summands.parts if (row := class_weights(part)) is not None), None)
        self._weights += [] if weights is None else [(backward_pass, weights[None])]
        nodes = [part.node for part in summands.parts if part.function in ("cross-entropy", "mean squared error")]
        if nodes and (labels := labels_of(nodes[0], self._index_of)) is not None:
            self._labels.append((backward_pass, labels[None]))
        if len(nodes) == 1 and (counts := class_counts(nodes[0])) is not None:
            self._counts.append((backward_pass, counts[None]))
        elif len(nodes) == 1 and (variance := target_variance(nodes[0])) is not None:
            self._variances.append((backward_pass, variance))
        if awaited:
            self._awaited.append((backward_pass, torch.stack(awaited)))


def _since_first(counted: CountedPasses, name: str, rows: Sequence[tuple[Pass, Tensor]]) -> dict[str, Tensor]:
    """``rows`` as ``counted`` takes them, also of passes that do not come through the model's output, as that of a
    penalty for its weights.
    """
    counting = [(backward_pass.at, row) for backward_pass, row in rows if backward_pass.at >= counted.first]
    if not counting:
        return {}
    counted.at[name] = np.repeat([at for at, _ in counting], [len(row) for _, row in counting])
    return {name: torch.cat([row for _, row in counting])}


def _of_step(rows_MF: Tensor) -> list[float]:
    """``ClassWeights`` of all passes of a step: targets added up, weights in the mean over those that have any."""
    half = (rows_MF.shape[1] - 4) // 2
    kind, spread = rows_MF[0, 0], rows_MF[:, 1].amax()
    weights = rows_MF[:, 4 : 4 + half].nanmean(0)
    return [
        float(kind),
        float(spread),
        *rows_MF[:, 2:4].sum(0).tolist(),
        *weights.tolist(),
        *rows_MF[:, 4 + half :].sum(0).tolist(),
    ]


def _measured(part: Summand, loss: Tensor) -> list[Scalar]:
    """Number of the function, 1, targets, value, the whole loss, and whether the part is a mean."""
    number = FUNCTIONS.index(part.function) if part.function in FUNCTIONS else 0
    targets: Scalar = math.nan
    value: Scalar = math.nan
    if part.function == "cross-entropy" and (measured := cross_entropy_of(part.node)) is not None:
        value, targets = measured
        targets = math.nan if part.averages or averages_itself(part.node) else targets
    return [float(number), 1.0, targets, value, loss, float(is_mean(part))]


def _factors(part: Summand) -> list[Scalar]:
    return [*_filled(part.multipliers, OF_ONE), *_filled(part.divisors, OF_ONE)]


def _filled(scalars: Sequence[Scalar], size: int) -> list[Scalar]:
    """So many numbers: NaN behind the last, and the product of those that are too many as the last."""
    head, rest = list(scalars[: size - 1]), scalars[size - 1 :]
    return [*head, math.prod(rest), *[math.nan] * (size - 1 - len(head))] if rest else _padded(head, size)


def _padded(scalars: list[Scalar], size: int) -> list[Scalar]:
    return [*scalars, *[math.nan] * (size - len(scalars))]


def _on_host(row: Sequence[Scalar], awaited: list[Tensor]) -> list[float]:
    """The numbers of ``row`` that the host has; the others are added to ``awaited``."""
    host_numbers: list[float] = []
    for scalar in row:
        if isinstance(scalar, Tensor) and scalar.device.type != "cpu":
            awaited.append(scalar.to(torch.float64).reshape(()))
            host_numbers.append(_AWAITED)
        else:
            host_numbers.append(float(scalar))
    return host_numbers


def make_probe(parts: ProbeParts) -> LossTermsProbe:
    """The probe of this law for one watched model."""
    return LossTermsProbe(parts.guard, parts.contributions)
