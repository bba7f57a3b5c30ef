"""Where in its inputs the target of each token stands: one place on for a language model, counted at other places too.

Letters: B samples, T positions of the input, L of the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trueline.capture.adapters.base import Guard
from trueline.capture.model import patches
from trueline.capture.model.layout import local
from trueline.capture.probes.around_update.sampling import NowAndThen
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.batch import token_ids
from trueline.capture.probes.losses import cross_entropy, descent
from trueline.capture.step.passes import Contributions, Pass
from trueline.schema.target_places import PLACES


class TargetPlaceProbe:
    """Compares what the model was called on with the targets of the only cross-entropy of each backward pass. The
    counts are made on the device, and copied with the step's row.
    """

    name = "places of targets"
    moments = ("batch", "gradients")

    def __init__(self, guard: Guard, passes: Contributions) -> None:
        self._guard, self._passes = guard, passes
        self._times = NowAndThen()
        self._forget(due=False)
        patches.backward.add(self._at_backward)

    def begin(self, step: Step) -> bool:
        """In the first steps, then now and then, as token weights."""
        self._forget(due=step.sampled and self._times.due(step))
        return self._due

    def take(self, moment: Moment, step: Step) -> dict[str, Tensor]:
        """``target_places``, int64 [M, 2 x places], of the passes whose targets could be compared."""
        if moment == "batch":
            ids = token_ids(*step.args, **step.kwargs)
            self._ids = self._ids if ids is None else local(ids)
            return {}
        rows = self._rows
        self._forget(due=False)
        return step.counted.take("target_places", rows, backward=True)

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        """``target_places``: the sum over the passes of the step."""
        counts = host.get("target_places")
        return {} if counts is None or not len(counts) else {"target_places": counts.sum(0).tolist()}

    def detach(self) -> None:
        """Stop listening."""
        patches.backward.remove(self._at_backward)
        self._forget(due=False)

    def _forget(self, *, due: bool) -> None:
        self._due = due
        self._ids: Tensor | None = None
        self._rows: list[tuple[Pass, Tensor]] = []

    def _at_backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        one, ids = self._passes.begun, self._ids
        if not self._due or one is None or ids is None:
            return
        with self._guard(self.name), torch.no_grad():
            found = cross_entropy.targets(descent.roots_of(tensors))
            if len(found) == 1:
                counts = _counts(ids, *found[0])
                self._rows += [] if counts is None else [(one, counts[None])]


def _counts(ids_BT: Tensor, target: Tensor, ignored: int) -> Tensor | None:
    """int64 [2 x places]: of each place how many targets have an input token there, then how many of these equal it.
    None where targets are not of these samples: their number is no multiple, or they are on another device.
    """
    num_samples, length = ids_BT.shape
    if not num_samples or target.numel() % num_samples or target.device != ids_BT.device:
        return None
    target_BL = target.view(num_samples, -1)
    if not length // 2 < target_BL.shape[1] <= length:
        return None
    counts_BL = target_BL != ignored
    compared: list[Tensor] = []
    equal: list[Tensor] = []
    for place in PLACES:
        first, end = max(0, -place), min(target_BL.shape[1], length - place)
        counts = counts_BL[:, first:end]
        same = target_BL[:, first:end] == ids_BT[:, first + place : end + place]
        compared.append(counts.sum())
        equal.append((same & counts).sum())
    return torch.stack([*compared, *equal])
