"""Find losses that are not finite and that no backward pass is called on, as where a loop passes over them."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trueline.capture.job.configs_in_sight import locals_of_job
from trueline.capture.model.layout import local
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts
from trueline.capture.step.passes import Pass

LOOKS, MORE_LOOKS = 64, 2
"""Passes without a backward pass whose losses are looked for, and more of them at each sampled step: models that train
each other, and losses of two passes, have such a pass at every step.
"""
MOST_PASSES = 4_096
"""Of these passes, those between two sampled steps of which it is looked whether a gradient came back to them."""
MAX_LOSSES = 8
"""Single numbers with a graph that are looked at where a pass was not used."""


class SkippedLossProbe:
    """The column ``skipped_losses``, at the first sampled step after forward passes that came to no backward pass.

    What a loop computed of them is still in its variables as the next forward pass begins: a single number with a
    graph is a loss. Nothing of it is kept but whether it is finite.
    """

    name = "skipped losses"
    moments = ("gradients",)
    between = None

    def __init__(self, parts: ProbeParts) -> None:
        self._guard, self._passes = parts.guard, parts.contributions
        self._looks_left = LOOKS
        self._num_forward = self._num_unused = 0
        self._not_finite: list[Tensor] = []
        self._last: list[weakref.ref[Tensor]] = []
        self._unused: list[Pass] = []
        parts.contributions.at_unused = weakref.WeakMethod(self._at_unused)

    def begin(self, step: Step) -> bool:
        if step.sampled:
            self._looks_left = max(self._looks_left, MORE_LOOKS)
        return step.watched and step.sampled and self._num_unused > 0

    def detach(self) -> None:
        self._passes.at_unused = None
        self._not_finite, self._last, self._unused = [], [], []

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        """``passes_skipped``, int64 [3] on the host, and ``losses_skipped``, bool [M], whether each is not finite."""
        if not self._num_unused:
            return {}
        # one loss may be of several passes, so that its backward pass comes to those before as well
        num_dropped = sum(unused.hooked and not unused.reached for unused in self._unused)
        self._unused = []
        counts = torch.tensor([self._passes.num_forward - self._num_forward, self._num_unused, num_dropped])
        columns: dict[str, Any] = {"passes_skipped": counts}
        if self._not_finite:
            columns["losses_skipped"] = torch.stack(self._not_finite)
        self._num_forward, self._num_unused, self._not_finite = self._passes.num_forward, 0, []
        return columns

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        if "passes_skipped" not in host:
            return {}
        num_forward, num_unused, num_dropped = host["passes_skipped"].tolist()
        not_finite = int(host["losses_skipped"].sum()) if "losses_skipped" in host else 0
        if not_finite:
            self._looks_left = LOOKS
        return {"skipped_losses": [num_forward, num_unused, not_finite, num_dropped]}

    def _at_unused(self, unused: Pass) -> None:
        """A forward pass begins, and no backward pass has since the one before."""
        with self._guard(self.name), torch.no_grad():
            self._num_unused += 1
            if len(self._unused) < MOST_PASSES:
                self._unused.append(unused)
            if self._looks_left <= 0:
                return
            self._looks_left -= 1
            if losses := self._losses():
                self._not_finite.append(torch.stack([~torch.isfinite(x) for x in losses]).any())

    def _losses(self) -> list[Tensor]:
        """Single numbers with a graph among variables of the job, without those of the last look: float32 []."""
        before = [ref() for ref in self._last]
        losses: list[Tensor] = []
        for _, variables in locals_of_job():
            for value in list(variables.values()):
                if type(value) is Tensor and value.grad_fn is not None and value.numel() == 1:
                    losses += [value] if value.is_floating_point() else []
            if losses:  # those of the innermost function that has any: its callers may have older ones
                break
        self._last = [weakref.ref(loss) for loss in losses[:MAX_LOSSES]]
        # what is still there of a pass before is not of this one
        losses = [loss for loss in losses[:MAX_LOSSES] if not any(loss is earlier for earlier in before)]
        return [local(x).detach().reshape(()).float() for x in losses if x.device == losses[0].device]


def make_probe(parts: ProbeParts) -> SkippedLossProbe:
    """The probe of this law for one watched model."""
    return SkippedLossProbe(parts)
