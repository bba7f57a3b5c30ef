"""T1. A teacher or a reference drops values.

Who had it: distillation loops that load a teacher and call it under no_grad, without eval(); DPO and RLHF loops whose
reference is a deep copy of the model in training mode; a module that holds student and teacher, whose train() is
called.
Planted: all of them, with dropout as a module.
Twin: the teacher is in evaluation mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import MODES
from gallery.problems import CausalLM
from gallery.training import fit, wrapped
from gallery.witness import trains_differently

PROBLEM = CausalLM(dropout=0.1)


def taught(objective: Callable[[Tensor, Tensor, Tensor], Tensor], *, reference: bool) -> Any:
    """Training by ``objective`` of logits, the teacher's logits, and tokens."""

    def train(ctx: EntryContext, faulty: bool) -> nn.Module:
        model = wrapped(PROBLEM.model())
        teacher = PROBLEM.model(seed=0 if reference else 1).train(faulty)

        def loss_of(student: nn.Module, batch: Any) -> Tensor:
            ids_BL = batch["input_ids"]
            with torch.no_grad():
                taught_BLV = teacher(ids_BL)
            return objective(student(ids_BL), taught_BLV, ids_BL)

        return fit(ctx, PROBLEM, model, loss_of=loss_of)

    return train


class Distiller(nn.Module):
    """A student and a frozen teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = PROBLEM.model(), PROBLEM.model(seed=1).requires_grad_(False)

    def forward(self, ids_BL: Tensor) -> Tensor:
        """The divergence of the teacher from the student, [], for token ids."""
        with torch.no_grad():
            taught_BLV = self.teacher(ids_BL)
        return distilled(self.student(ids_BL), taught_BLV, ids_BL)


def held(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Training of a module that holds the teacher."""
    model = Distiller()
    model.teacher.train(faulty)
    return fit(ctx, PROBLEM, wrapped(model), loss_of=lambda model, batch: model(batch["input_ids"]))


def distilled(made_BLV: Tensor, taught_BLV: Tensor, ids_BL: Tensor) -> Tensor:
    """Divergence of the teacher's distribution from the student's, a mean over positions."""
    made, taught_by = made_BLV.flatten(0, 1).log_softmax(-1), taught_BLV.flatten(0, 1).log_softmax(-1)
    return functional.kl_div(made, taught_by, reduction="batchmean", log_target=True)


def regularised(made_BLV: Tensor, taught_BLV: Tensor, ids_BL: Tensor) -> Tensor:
    """Mean cross-entropy, and a tenth of the divergence from the reference."""
    made = functional.cross_entropy(made_BLV[:, :-1].flatten(0, 1), ids_BL[:, 1:].flatten())
    return made + 0.1 * distilled(made_BLV, taught_BLV, ids_BL)


_fault = variants(
    "T1",
    ("frozen-model-drops",),
    trains_differently,
    ranks=(0, 1),
    step=2,
    family=MODES,
    causes=("teacher-in-training-mode",),
    variant_of="T1",
)

ENTRIES = (
    _fault("", "a teacher is called in training mode", taught(distilled, reference=False)),
    _fault("reference", "a reference is called in training mode", taught(regularised, reference=True)),
    _fault("inside", "a teacher inside the trained module is called in training mode", held),
)
