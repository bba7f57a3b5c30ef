"""C5. The last tokens of every sample differ.

Who had it: tokenizers that add an end token in one version and not in the other, padding on another side, samples cut
at another length. Most of every sample is the same, and so are the first losses to two digits.
Planted: the last three tokens of each sequence are others.
Twin: the same samples in new memory.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from gallery.entry_context import EntryContext
from gallery.problems import CausalLM
from gallery.reference_training import compared, language_model
from gallery.witness import samples_differ

TAIL = 3


def other_tails(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Ids of the tails are shifted by one; the twin copies them."""

    def change(batch: dict[str, Any]) -> dict[str, Any]:
        other = {name: column.clone() for name, column in batch.items()}
        for column in other.values():
            column[:, -TAIL:] = (column[:, -TAIL:] + int(faulty)) % CausalLM.vocab_size
        return other

    return language_model(ctx, batch=change)


_fault = compared("C5", ("input-differs|structure-differs",), shows=samples_differ, site="/fwd/")

ENTRIES = (_fault("", "token tails differ", other_tails),)
