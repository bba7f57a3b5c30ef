"""Counts the backward passes in which the framework reduces: all workers make these together, so that equal counts are
one iteration, and another count after the same number of updates is an update that one left out or repeated. Where the
user's own code reduces, its collectives are such a clock, but for what ranks send to each other alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import unserializable_hook

from trueline.capture.adapters.base import reduces_itself, uncompiled
from trueline.capture.model.outputs import differentiable
from trueline.capture.model.untraced import skipped
from trueline.capture.model.world import collectives_started


class Passes:
    """``count`` is 0 for ever where the user's own code reduces, among ``by_hand``, the ranks that do."""

    def __init__(self, *, by_hand: Sequence[int] = ()) -> None:
        self.count = 0
        self._awaited = False
        self._by_hand = by_hand
        self._before = collectives_started(by_hand) if by_hand else 0

    def clock(self) -> int | None:
        """What all workers have made together so far: reduced backward passes, or collectives; None if unseen."""
        if self.count == 0 and self._by_hand:
            return max(collectives_started(self._by_hand) - self._before, 0) or None
        return self.count or None

    def at_forward(self, model: nn.Module) -> None:
        """A training forward pass begins. FSDP2 gathers weights there, which all workers do together; DDP reduces only
        if a backward pass follows, which one rank's look at its model need not have.
        """
        reduces = reduces_itself(model)
        self._awaited = reduces and isinstance(uncompiled(model), nn.parallel.DistributedDataParallel)
        self.count += reduces and not self._awaited

    def at_output(self, output: Any) -> None:
        """Count the backward pass that comes back through ``output``, once."""
        tensors = list(differentiable(output)) if self._awaited else []
        self.count += self._awaited and not tensors
        self._awaited = False
        left = [1]

        @unserializable_hook
        @skipped
        def counted(gradient: Tensor) -> None:
            self.count += left.pop() if left else 0

        for tensor in tensors:
            tensor.register_hook(counted)
