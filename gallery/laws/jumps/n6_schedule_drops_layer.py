"""N6. A schedule of dropout goes past its end, and a layer is dropped for good.

Who had it: nobody by name; a schedule that counts steps where it should count epochs gets there. The loss still falls,
since the residual stream goes around the layer.
Planted: a language model whose first block has a dropout that rises by 0.01 a step; late, it is 1.
Twin: it stays at 0.3.
"""

from __future__ import annotations

from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.problems import CausalLM
from gallery.training import batches_of, fit, wrapped
from gallery.witness import trains_differently

TRIGGER = 60
STEPS = 72
HIGHEST = 0.3


def dropped_layer(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Trains with a dropout that rises to 0.3, or jumps to 1 from there."""
    problem = CausalLM()
    base = problem.model()
    dropout = base.blocks[0].dropout  # type: ignore[index, union-attr]

    def schedule(step: int) -> None:
        dropout.p = 1.0 if faulty and step + 1 >= TRIGGER else min(0.01 * (step + 1), HIGHEST)

    model = wrapped(base)
    batches = batches_of(ctx, problem, num_samples=1024, batch_size=8)
    return fit(ctx, problem, model, batches=batches, steps=STEPS, after_step=schedule)


_fault = variants(
    "N6",
    ("grad-vanishes",),
    trains_differently,
    step=TRIGGER,
    site="/grad/blocks.0.mlp.2.weight#",
    may_find=("loss-spike",),
    family="layers cut off",
    causes=("layer-cut-off",),
)

ENTRIES = (_fault("", "a schedule drops a layer for good", dropped_layer),)
