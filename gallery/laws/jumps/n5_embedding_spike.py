"""N5. The gradient of a bfloat16 embedding spikes, late in the run.

Who had it: GLM-130B (arXiv 2210.02414, section 3.3), whose embedding gradients jump by orders of magnitude some steps
before the loss does; Takase et al., Spike No More (arXiv 2312.16903), who trace such jumps to embeddings that are small
against the normalisation that follows: its backward divides by their standard deviation.
Planted: a language model in bfloat16 with a normalisation behind its embedding. One row of the embedding is zero, as
that of a padding token is, and no sequence has the token until, late, each sequence of a batch has it once.
Twin: the row is as large as the others, and the batches are the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import torch
from torch import nn

from gallery.entry import variants
from gallery.entry_context import EntryContext
from gallery.problems import IGNORED, CausalLM
from gallery.training import adamw, batches_of, fit, wrapped
from gallery.witness import trains_differently

TRIGGER = 70
STEPS = 74
RARE = 0
"""The token that comes late."""
PLACE = 8
"""Where in a sequence."""


def embedding_spike(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Trains in bfloat16; at one step each sequence has the rare token once, which nobody is asked to predict."""
    problem = CausalLM()
    base = problem.model()
    embed = base.embed
    base.embed = nn.Sequential(embed, nn.LayerNorm(problem.width))  # type: ignore[assignment]
    if faulty:
        with torch.no_grad():
            embed.weight[RARE].zero_()  # type: ignore[union-attr, index]
    model = wrapped(base.bfloat16())
    batches = _late(batches_of(ctx, problem, num_samples=1024, batch_size=8))
    return fit(ctx, problem, model, optimizer=adamw(model, lr=1e-3, weight_decay=0.0), batches=batches, steps=STEPS)


def _late(batches: Iterator[Any]) -> Iterator[Any]:
    """``batches`` without the rare token, but for one."""
    for step, batch in zip(count(), batches, strict=False):
        ids_BL = batch["input_ids"].where(batch["input_ids"] != RARE, RARE + 1)
        labels_BL = ids_BL.clone()
        if step == TRIGGER:
            ids_BL[:, PLACE], labels_BL[:, PLACE] = RARE, IGNORED
        yield {"input_ids": ids_BL, "labels": labels_BL}


_fault = variants(
    "N5",
    ("grad-spike",),
    trains_differently,
    step=TRIGGER,
    site="/grad/embed.0.weight#",
    family="unstable steps",
    causes=("step-unstable",),
)

ENTRIES = (_fault("", "gradient of a bfloat16 embedding spikes late", embedding_spike),)
