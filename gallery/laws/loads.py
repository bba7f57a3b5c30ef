"""Y9. A checkpoint of DDP is loaded into a model that is not wrapped, and none of it has a place there.

Who had it: whoever saves `ddp_model.state_dict()` and loads it with strict=False.
Planted: the names of the checkpoint keep their prefix.
Twin: it is taken off.
"""

from __future__ import annotations

from torch import nn

from gallery.entry import Fault
from gallery.entry_context import EntryContext
from gallery.families import INITIAL_VALUES
from gallery.problems import CausalLM
from gallery.training import fit
from gallery.witness import trains_differently
from trueline.capture.probes.loads import loads

STEPS = 4


def prefixed(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The model begins with weights that another one has saved."""
    loads.listen()  # as `trueline run` does, before the script begins
    problem = CausalLM()
    model, saved = problem.model(), problem.model()
    with_prefix = {f"module.{name}": value * 0.5 for name, value in saved.state_dict().items()}
    state = with_prefix if faulty else {name.removeprefix("module."): value for name, value in with_prefix.items()}
    model.load_state_dict(state, strict=False)
    trained = fit(ctx, problem, model, steps=STEPS)
    loads.stop()
    return trained


ENTRIES = (
    Fault(
        "Y9",
        "a checkpoint with another prefix is loaded and has no place in the model",
        prefixed,
        ("load-missed",),
        trains_differently,
        ranks=(0,),
        site="embed",
        world_size=1,
        family=INITIAL_VALUES,
        causes=("weights-not-loaded",),
    ),
)
