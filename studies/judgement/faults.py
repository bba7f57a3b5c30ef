"""What is done to one worker, or two, in the middle of a training. Each acts where the real mistake acts.

Letters: N workers, B samples, L sequence length, M samples of the data set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from studies.judgement.models import VOCAB
from studies.judgement.workloads import Rows
from torch import Tensor

BAD = 1
"""The worker (position and rank) that is made wrong; its pair, where two are, is the one before it."""

Chosen = Callable[[Tensor, Rows, torch.Generator], Tensor]
Changed = Callable[[dict[str, Tensor], torch.Generator], dict[str, Tensor]]
Gradient = Callable[[Mapping[str, Tensor], torch.Generator], None]


def _same_rows(index_NB: Tensor, rows: Rows, draw: torch.Generator) -> Tensor:
    return index_NB


def _same_batch(batch: dict[str, Tensor], draw: torch.Generator) -> dict[str, Tensor]:
    return batch


def _same_gradient(grads: Mapping[str, Tensor], draw: torch.Generator) -> None:
    return None


@dataclass(frozen=True)
class Fault:
    """One mistake: which rows are read, what is done to the batch, to the loss, to the gradient of ``BAD``.

    ``ranks`` is what a finding must name, ``factor`` what the gradient is multiplied by in the end.
    """

    name: str
    chosen: Chosen = _same_rows
    changed: Changed = _same_batch
    loss_factor: float = 1.0
    gradient: Gradient = _same_gradient
    factor: float = 1.0
    ranks: tuple[int, ...] = (BAD,)


def scaled_gradient(factor: float) -> Gradient:
    """The worker's gradient times ``factor``, after backward: its recorded loss is as it was."""

    def change(grads: Mapping[str, Tensor], draw: torch.Generator) -> None:
        for grad in grads.values():
            grad[BAD] *= factor

    return change


def noisy_gradient(fraction: float) -> Gradient:
    """Normal noise whose norm is ``fraction`` of the gradient's."""

    def change(grads: Mapping[str, Tensor], draw: torch.Generator) -> None:
        norm = sum(float(grad[BAD].square().sum()) for grad in grads.values()) ** 0.5
        size = sum(grad[BAD].numel() for grad in grads.values())
        for grad in grads.values():
            grad[BAD] += fraction * norm / size**0.5 * torch.randn(grad[BAD].shape, generator=draw)

    return change


def noisy_labels(fraction: float) -> Changed:
    """Each target replaced by a random one with probability ``fraction``."""

    def change(batch: dict[str, Tensor], draw: torch.Generator) -> dict[str, Tensor]:
        name = "ids" if "ids" in batch else "y"
        labels = batch[name].clone()
        hit = torch.rand(labels[BAD].shape, generator=draw) < fraction
        top = VOCAB if name == "ids" else int(labels.max()) + 1
        labels[BAD] = torch.where(hit, torch.randint(top, labels[BAD].shape, generator=draw), labels[BAD])
        return batch | {name: labels}

    return change


def few_tokens(fraction: float) -> Changed:
    """Only the last ``fraction`` of each sequence's targets count on the worker (of a batch's samples, for rows)."""

    def change(batch: dict[str, Tensor], draw: torch.Generator) -> dict[str, Tensor]:
        mask = batch["mask"].clone()
        kept = max(1, round(mask.shape[-1] * fraction))
        mask[BAD, ..., :-kept] = 0
        return batch | {"mask": mask}

    return change


def hard_rows(index_NB: Tensor, rows: Rows, draw: torch.Generator) -> Tensor:
    """The worker reads random rows of the harder half of the data set."""
    hardest = rows.difficulty.argsort(descending=True)[: len(rows) // 2]
    index_NB = index_NB.clone()
    index_NB[BAD] = hardest[torch.randint(len(hardest), index_NB[BAD].shape, generator=draw)]
    return index_NB


def copied_rows(index_NB: Tensor, rows: Rows, draw: torch.Generator) -> Tensor:
    """The worker reads what the one before it reads."""
    index_NB = index_NB.clone()
    index_NB[BAD] = index_NB[BAD - 1]
    return index_NB


FAULTS: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        *(Fault(f"loss × {c:g}", loss_factor=c, gradient=scaled_gradient(c), factor=c) for c in (1.02, 1.05, 1.1, 2.0)),
        *(Fault(f"gradient × {c:g}", gradient=scaled_gradient(c), factor=c) for c in (1.05, 1.1)),
        Fault("gradient's sign flipped", gradient=scaled_gradient(-1.0)),
        Fault("noise of 30 % added to the gradient", gradient=noisy_gradient(0.3)),
        *(Fault(f"{p:.0%} of the labels random", changed=noisy_labels(p)) for p in (0.05, 0.2, 1.0)),
        Fault("harder data", chosen=hard_rows),
        Fault("1/8 of the tokens", changed=few_tokens(1 / 8)),
        Fault("duplicated pair", chosen=copied_rows, ranks=(BAD - 1, BAD)),
    )
}
