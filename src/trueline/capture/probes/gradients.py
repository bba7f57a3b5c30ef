"""What the gradient hooks see: a squared norm and a sketch per parameter, in three phases of one step.

``local`` is the worker's own gradient before any reduction, ``reduced`` what the reduction returned, ``used`` what the
optimizer is about to receive. Hooks call ``see``; nothing here synchronises or communicates.

Letters: P parameters, G groups, k sketch length, W shards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from trueline.capture.layout import Layout, device_of, local
from trueline.tensor.sketch import measure

Phase = Literal["local", "reduced", "used"]
MISSING = -1.0
"""Stands for "no gradient was seen" in a list of norms, where None cannot stand."""

PHASES: tuple[Phase, ...] = ("local", "reduced", "used")


@dataclass
class _Seen:
    norm2: dict[int, Tensor] = field(default_factory=dict)
    sketch: dict[int, Tensor] = field(default_factory=dict)


class GradientProbe:
    """Collects one step's gradients. ``active`` is False on steps that are not sampled; hooks then do nothing."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.active = False
        self.exact = False
        self.copies: dict[int, Tensor] = {}
        self._seen: dict[Phase, _Seen] = {phase: _Seen() for phase in PHASES}

    def begin(self, *, active: bool, exact: bool = False) -> None:
        """Forget the step before; take part in this one if ``active``, keeping copies of the gradients if ``exact``."""
        self.active = active
        self.exact = active and exact
        self.copies = {}
        self._seen = {phase: _Seen() for phase in PHASES}

    def see(self, phase: Phase, param: Tensor, gradient: Tensor, *, add: bool = False) -> None:
        """Measure the gradient of ``param`` ([...] or, sharded, [W, C]) in ``phase``.

        A second look at a parameter in one step replaces the first (what accumulates in ``.grad`` holds the earlier
        micro-batches already), or is added to it with ``add`` (FSDP hands over each micro-batch by itself).
        """
        index = self.layout.index_of.get(id(param))
        if index is None or gradient.is_sparse:
            return
        self.see_index(phase, index, gradient.detach(), add=add)

    def see_index(
        self, phase: Phase, index: int, gradient: Tensor, *, add: bool = False, shard: int | None = None
    ) -> None:
        """As ``see`` by position in the layout; ``shard`` tells which of the W shards a flat piece is."""
        layout = self.layout
        signs = layout.signs(index)
        if shard is not None:
            rows = gradient.numel() // layout.k + 1
            signs = signs[shard * rows : (shard + 1) * rows]
        shards = layout.shards if shard is None else 1
        norm2, sketch = measure(gradient, signs, k=layout.k, offset=layout.offset(index), shards=shards)
        seen = self._seen[phase]
        if add and index in seen.sketch:
            sketch = seen.sketch[index] + sketch
            norm2 = sketch.square().sum()  # cross terms of the micro-batches are not at hand: norm from the sketch
        seen.norm2[index] = norm2
        seen.sketch[index] = sketch
        if self.exact and phase == "local":
            copy = gradient.to(torch.float32, copy=True)
            self.copies[index] = self.copies[index] + copy if add and index in self.copies else copy

    def see_used(self) -> None:
        """Measure what the optimizer is about to receive: ``.grad`` of every parameter that has one."""
        for index, param in enumerate(self.layout.params):
            if param.grad is not None and not param.grad.is_sparse and param.grad.layout == torch.strided:
                self.see_index("used", index, local(param.grad).detach())

    def saw(self, phase: Phase) -> bool:
        """Whether any gradient was seen in this phase of the step."""
        return bool(self._seen[phase].norm2)

    def payload(self) -> dict[str, Tensor]:
        """Per phase, ``<phase>_norm2`` float64 [P] (NaN-free: -1 where nothing was seen) and ``<phase>_sketch``
        float64 [G*k].
        """
        device = device_of(self.layout)
        missing = torch.full((), MISSING, dtype=torch.float64, device=device)
        empty_k = torch.zeros(self.layout.k, dtype=torch.float64, device=device)
        out: dict[str, Tensor] = {}
        for phase in PHASES:
            seen = self._seen[phase]
            if not seen.norm2:
                continue
            members: list[list[Tensor]] = [[] for _ in self.layout.groups]
            for index, sketch in seen.sketch.items():
                members[self.layout.group_of[index]].append(sketch)
            sums = [torch.stack(one).sum(dim=0) if one else empty_k for one in members]
            out[f"{phase}_norm2"] = torch.stack([seen.norm2.get(i, missing) for i in range(len(self.layout.names))])
            out[f"{phase}_sketch"] = torch.cat(sums)
        return out
