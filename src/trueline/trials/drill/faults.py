"""The faults that a drill plants: of each what it is, what a job must have for it, and what else would show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fault:
    """A fault of a ``kind`` of ``capture.trial.faults``. Where it is ``of_one_rank``, one is wrong and the others are
    not. ``between_ranks``: there is none where there is one process. ``needs`` is what a job must have, without which
    it cannot be planted, and ``otherwise`` what shows it where ``check`` does not.
    """

    name: str
    says: str
    kind: str
    needs: str
    otherwise: str
    size: float = 1.0
    of_one_rank: bool = True
    between_ranks: bool = False

    def change(self, *, at: int, rank: int | None, folder: str) -> Mapping[str, Any]:
        """What the processes of the job are told."""
        return {"fault": {"kind": self.kind, "at": at, "rank": rank, "folder": folder, "size": self.size}}


_RIGHT_RUN = "trueline compare with a Run of the job without it, both recorded with --plan mix"
_SETTINGS = "trueline diff with a Run of the job as it should be"

SHAM = Fault("sham", "all in place, nothing changed", "none", "", "", of_one_rank=False)
"""A run of it shows whether planting disturbs the job."""

FAULTS = (
    Fault("loss-1.02", "loss of one rank × 1.02", "loss", "a backward pass of torch", _RIGHT_RUN, size=1.02),
    Fault("loss-1.5", "loss of one rank × 1.5", "loss", "a backward pass of torch", _RIGHT_RUN, size=1.5),
    Fault(
        "labels",
        "10 % of the labels of one rank wrong",
        "labels",
        "a DataLoader over a dataset with indices, whose batches have labels by that name or as the last of a pair",
        "labels of each rank by eye, or a longer drill (--steps)",
        size=0.1,
    ),
    Fault(
        "same-samples",
        "one rank reads the samples of another",
        "samples",
        "a DataLoader over a dataset with indices, which each rank draws by itself",
        "trueline facts: samples seen, and the share of each rank",
        between_ranks=True,
    ),
    Fault(
        "other-order",
        "one rank draws samples by another seed",
        "order",
        "a DataLoader over a dataset with indices, which each rank draws by itself",
        "a longer drill (--steps): most of an epoch has to pass",
        between_ranks=True,
    ),
    Fault(
        "evaluation",
        "one rank in evaluation mode",
        "mode",
        "dropout or batch normalisation of torch.nn",
        "trueline facts: modules in evaluation mode",
    ),
    Fault(
        "nan",
        "one NaN in a gradient of one rank, once",
        "nan",
        "parameters that are whole on each rank, with a gradient",
        "the loss, which is NaN from then on",
    ),
    Fault(
        "not-reduced",
        "one parameter's gradient not reduced",
        "unreduced",
        "a backward pass that reduces gradients of whole parameters, as DDP's does",
        "digests of parameters, with --plan where params_every is smaller",
        of_one_rank=False,
        between_ranks=True,
    ),
    Fault(
        "bit",
        "one weight of one rank doubled by a flipped bit",
        "bit",
        "an optimizer of torch, with parameters of 16 or 32 bits",
        _RIGHT_RUN,
    ),
    Fault(
        "lost-update",
        "one update of one parameter lost on one rank",
        "update",
        "an optimizer of torch",
        _RIGHT_RUN,
    ),
    Fault("rate", "learning rate of one rank × 1.1", "rate", "an optimizer of torch", _SETTINGS, size=1.1),
    Fault(
        "schedule",
        "learning-rate schedule of half the length",
        "schedule",
        "a schedule of torch.optim.lr_scheduler that changes within these steps",
        f"trueline facts: the learning rate as it was; {_SETTINGS}",
        of_one_rank=False,
    ),
)
