"""Y8. A tie is lost while the training goes on.

Who had it: whoever replaces a head, or loads it by itself, after the model has tied it to the embedding.
Planted: after some steps the head gets a weight of its own, and a group in the optimizer.
Twin: it stays tied.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from gallery.entry import Fault
from gallery.entry_context import EntryContext
from gallery.families import INITIAL_VALUES
from gallery.problems import CausalLM
from gallery.training import adamw, fit
from gallery.witness import trains_differently

STEPS, TRIGGER = 5, 2


def untied(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The head becomes a copy of the embedding."""
    problem = CausalLM(tied=True)
    model: Any = problem.model()
    optimizer = adamw(model)

    def untie(step: int) -> None:
        if faulty and step == TRIGGER - 1:
            model.head.weight = nn.Parameter(model.embed.weight.detach().clone())
            optimizer.add_param_group({"params": [model.head.weight]})

    return fit(ctx, problem, model, optimizer=optimizer, steps=STEPS, after_step=untie)


ENTRIES = (
    Fault(
        "Y8",
        "a head is untied while the training goes on",
        untied,
        ("tie-lost",),
        trains_differently,
        ranks=(0,),
        step=TRIGGER,
        site="head",
        world_size=1,
        family=INITIAL_VALUES,
    ),
)
