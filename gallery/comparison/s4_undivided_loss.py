"""S4. With gradient accumulation the loss is not divided by the number of micro-batches.

Who had it: loops that were written for one batch a step and then accumulate (H#34191 and its family); the effective
learning rate grows with the number of micro-batches, and under Adam hardly any curve shows it.
Planted: two micro-batches a step, each loss as it is, compared with a run that halves them.
Twin: the loop that divides, run again.
"""

from __future__ import annotations

from torch import Tensor, nn

from gallery.entry import Reference
from gallery.entry_context import EntryContext
from gallery.families import DIVISORS
from gallery.reference_training import Unmasked, adamw, compared, shares

NUM_MICRO = 2


def accumulating(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A loop that accumulates over two micro-batches."""
    problem = Unmasked()
    model = problem.model()
    optimizer = adamw(model)
    watch = ctx.watch(model, optimizer, preset="mix")
    for batch in shares(ctx, problem):
        micros = [
            {name: column.chunk(NUM_MICRO)[micro] for name, column in batch.items()} for micro in range(NUM_MICRO)
        ]
        with watch.step(micros):
            losses = []
            for micro in micros:
                loss = problem.loss(model, micro)
                watch.loss(loss.detach(), problem.tokens(micro))
                _share_of(loss, faulty=faulty).backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
        ctx.note(micros, sum(losses) / len(losses))
    watch.close()
    return model


def _share_of(loss: Tensor, *, faulty: bool) -> Tensor:
    return loss if faulty else loss / NUM_MICRO


_fault = compared(
    "S4",
    ("first-divergence|structure-differs",),
    may_find=("loss-scale-wrong",),
    site="/fwd/div#0",
    reference=Reference(lambda ctx: accumulating(ctx, False)),
    family=DIVISORS,
    causes=("code-differs", "loss-not-divided"),
)

ENTRIES = (_fault("", "loss not divided by the accumulation steps", accumulating),)
