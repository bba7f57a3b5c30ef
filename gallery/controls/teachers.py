"""Models beside the trained one that drop values, and rightly so."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from gallery.entry import Control
from gallery.entry_context import EntryContext
from gallery.laws.modes.t1_noisy_teachers import PROBLEM, distilled
from gallery.training import fit, wrapped


def mean_teacher(ctx: EntryContext) -> nn.Module:
    """A moving average of the student, with noise of its own, as Tarvainen and Valpola (2017) have it."""
    model = wrapped(PROBLEM.model())
    teacher = copy.deepcopy(model.module).requires_grad_(False)

    def loss_of(student: nn.Module, batch: Any) -> Tensor:
        ids_BL = batch["input_ids"]
        return PROBLEM.loss(student, batch) + distilled(student(ids_BL), teacher(ids_BL), ids_BL)

    def follow(step: int) -> None:
        for mine, theirs in zip(teacher.parameters(), model.parameters(), strict=True):
            mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)

    return fit(ctx, PROBLEM, model, loss_of=loss_of, after_step=follow)


def sampled_teacher(ctx: EntryContext) -> nn.Module:
    """The mean of several calls of a teacher that drops, as Monte Carlo dropout has it."""
    model, teacher = wrapped(PROBLEM.model()), PROBLEM.model(seed=1)

    def loss_of(student: nn.Module, batch: Any) -> Tensor:
        ids_BL = batch["input_ids"]
        with torch.no_grad():
            taught_BLV = torch.stack([teacher(ids_BL) for _ in range(4)]).mean(0)
        return distilled(student(ids_BL), taught_BLV, ids_BL)

    return fit(ctx, PROBLEM, model, loss_of=loss_of)


ENTRIES = (
    Control("healthy.mean-teacher", "a mean teacher has dropout of its own", mean_teacher),
    Control("healthy.sampled-teacher", "targets are means of a teacher's Monte Carlo dropout", sampled_teacher),
)
