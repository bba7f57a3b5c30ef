"""B2. All ranks go on in evaluation mode after an evaluation.

Who had it: everybody whose validation calls model.eval() and whose training loop calls model.train() once, in front of
its loop.
Planted: this, with dropout, and with batch normalisation.
Twin: the model goes back after the evaluation.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.families import MODES
from gallery.problems import CausalLM, Problem, Vision
from gallery.training import fit, wrapped
from gallery.witness import trains_differently

TRIGGER = 5


def staying(problem: Problem) -> Any:
    """Training with an evaluation before step ``TRIGGER``."""

    def train(ctx: EntryContext, faulty: bool) -> nn.Module:
        model = wrapped(problem.model())
        held_out = problem.dataset(8, seed=5)

        def evaluate(step: int) -> None:
            if step == TRIGGER - 1:
                model.eval()
                problem.loss(model.module, held_out[slice(None)])
                model.train(not faulty)

        return fit(ctx, problem, model, after_step=evaluate)

    return train


def until_the_next_epoch(problem: Problem) -> Any:
    """Training with an evaluation in the middle of each epoch of ``TRIGGER`` steps; each begins with train()."""

    def train(ctx: EntryContext, faulty: bool) -> nn.Module:
        model = wrapped(problem.model())

        def evaluate(step: int) -> None:
            if step % TRIGGER == 0:
                model.train(not faulty)
            elif step % TRIGGER == TRIGGER - 2:
                model.train()

        return fit(ctx, problem, model, after_step=evaluate)

    return train


_fault = variants(
    "B2",
    ("evaluation-mode",),
    trains_differently,
    ranks=(0, 1),
    step=TRIGGER,
    family=MODES,
    causes=("evaluation-mode-stays",),
)

ENTRIES = (
    _fault("", "dropout stays off after an evaluation", staying(CausalLM(dropout=0.1))),
    _fault(
        "epochs",
        "dropout stays off after an evaluation, until the next epoch",
        until_the_next_epoch(CausalLM(dropout=0.1)),
        step=1,
        variant_of="B2",
    ),
    _fault("norm", "batch normalisation uses running statistics after an evaluation", staying(Vision())),
)
