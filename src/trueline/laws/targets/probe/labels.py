"""Digest the labels that each loss of a sampled step compares its samples with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from trueline.capture.adapters.base import Guard
from trueline.capture.probes.at_backward import BackwardProbe
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.batch import first_shape
from trueline.capture.probes.losses import descent
from trueline.capture.probes.losses.label_rows import label_rows
from trueline.capture.probes.parts import ProbeParts
from trueline.capture.step.own_columns import digest_columns
from trueline.capture.step.passes import Contributions, Pass

MAX_PASSES = 64
"""Backward passes of a step that are looked at. Of more nothing is told, as they are not all of its samples."""


class LabelProbe(BackwardProbe):
    """At each sampled step: a sample that is read again is known only where both its labels were seen."""

    name = "labels of samples"
    moments = ("batch", "gradients")
    between = None

    def __init__(self, guard: Guard, passes: Contributions) -> None:
        super().__init__(guard, passes)
        self._sizes_of: dict[int, set[int]] = {}

    def begin(self, step: Step) -> bool:
        self._forget(due=step.sampled and step.watched)
        return self._due

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """``label_digests``, int64 [B], absent where labels of a pass were not seen; ``ignored_class``, [M, 6]."""
        if moment == "batch":
            if (shape := first_shape(step.args, step.kwargs)) is not None:
                self._shape = shape
            return {}
        rows, ignored, is_whole = self._rows, self._ignored, self._is_whole
        self._forget(due=False)
        of_classes = [
            (backward_pass, torch.cat([row, row.new_full((1,), int(classes in self._sizes(step.module)))])[None])
            for backward_pass, classes, row in ignored
        ]
        columns = step.counted.take("ignored_class", of_classes, backward=True)
        return columns | (step.counted.take("label_digests", rows, backward=True) if is_whole else {})

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        columns: dict[str, Any] = dict(digest_columns(host, "label_digests"))
        if "ignored_class" in host:
            first, *_ = rows = host["ignored_class"].tolist()
            alike = [row for row in rows if row[:2] == first[:2]]
            columns["ignored_class"] = [*first[:3], *(sum(row[at] for row in alike) for at in (3, 4)), first[5]]
        return columns

    def _forget(self, *, due: bool) -> None:
        super()._forget(due=due)
        self._shape: Sequence[int] = ()
        self._is_whole = True
        self._rows: list[tuple[Pass, Tensor]] = []
        self._ignored: list[tuple[Pass, int, Tensor]] = []

    def _sizes(self, module: nn.Module | None) -> set[int]:
        """Rows of the embeddings of a model, which is gone through once."""
        sizes = self._sizes_of.get(id(module))
        if sizes is None:
            parts = () if module is None else module.modules()
            sizes = {part.num_embeddings for part in parts if isinstance(part, nn.Embedding)}
            self._sizes_of = {id(module): sizes}
        return sizes

    def _at_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        backward_pass = self._passes.backward_pass
        if not self._due or backward_pass is None or not self._is_whole:
            return
        with self._guard(self.name), torch.no_grad():
            labels = label_rows(descent.roots_of(tensors), self._shape) if len(self._rows) < MAX_PASSES else None
            if labels is None:
                self._is_whole = False
            else:
                self._rows.append((backward_pass, labels.digests))
                if labels.ignored is not None:
                    self._ignored.append((backward_pass, labels.classes, labels.ignored))


def make_probe(parts: ProbeParts) -> LabelProbe:
    """The probe of this law for one watched model."""
    return LabelProbe(parts.guard, parts.contributions)
