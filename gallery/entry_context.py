"""What an entry is given to train: its rank, its Run, and a watch for its model."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from gallery.witness import digest

PLAN: dict[str, Any] = {"every": 1, "params_every": 1, "matrix_every": 5}
"""Gallery runs last some tens of steps, so everything is measured at every one of them."""


class Watching(Protocol):
    """The part of ``trueline.Watch`` that a training loop uses."""

    def step(self, batch: Any = None) -> AbstractContextManager[Any]:
        """Around one optimizer step; ``batch`` is what it reads, a list of micro-batches included."""
        ...

    def loss(self, loss: Tensor, tokens: float | None = None) -> None:
        """The loss of a micro-batch before any averaging, and how many terms it is a mean over."""
        ...

    def close(self) -> None:
        """End the Run."""
        ...


@dataclass
class EntryContext:
    """What one rank knows in one run of an entry.

    ``out`` is the Run directory, None to train unwatched. With ``explicit`` False the loop's own calls to the watch
    are dropped and everything has to be seen from outside, as under ``trueline run``.
    ``losses`` and ``samples`` fill while the entry trains; they are this rank's own record for the Witness.
    """

    rank: int
    world_size: int
    out: str | None = None
    explicit: bool = True
    losses: list[float] = field(default_factory=list)
    samples: list[list[str]] = field(default_factory=list)

    def watch(
        self,
        model: nn.Module,
        optimizer: Optimizer | None,
        *,
        process_group: Any = None,
        averages: Any = (),
        goes_on_from: int = 0,
        **plan: Any,
    ) -> Watching:
        """A watch on ``model`` that writes to ``out``; ``plan`` adds keys to the gallery's plan. A later start of the
        job goes on from a step.
        """
        if self.out is None:
            return Unwatched()
        import trueline

        given = {"process_group": process_group, "averages": averages}
        given |= {"step": goes_on_from, "resume": True} if goes_on_from else {}
        watch = trueline.watch(model, optimizer, out=self.out, plan={**PLAN, **plan}, **given)
        return watch if self.explicit else _FromOutside(watch)

    def note(self, batches: list[Any], loss: float) -> None:
        """Add what was read and the loss of one step to the record for the Witness."""
        self.samples.append([digest(row) for batch in batches for row in first_tensor(batch)])
        self.losses.append(loss)


class Unwatched:
    """A watch that does nothing."""

    def step(self, batch: Any = None) -> AbstractContextManager[Any]:
        """Nothing happens around the step."""
        del batch
        return contextlib.nullcontext()

    def loss(self, loss: Tensor, tokens: float | None = None) -> None:
        """The loss is ignored."""

    def close(self) -> None:
        """There is nothing to close."""


class _FromOutside(Unwatched):
    def __init__(self, watch: Watching) -> None:
        self._watch = watch

    def close(self) -> None:
        self._watch.close()


def first_tensor(batch: Any) -> Tensor:
    """The inputs of a batch: the first tensor of a dict, tuple or list, or the tensor itself."""
    if isinstance(batch, dict):
        return next(iter(batch.values()))
    return batch[0] if isinstance(batch, (tuple, list)) else batch
