"""C5. The last tokens of every sample differ.

Who had it: tokenizers that add an end token in one version and not in the other, padding on another side, samples cut
at another length. Most of every sample is the same, and so are the first losses to two digits.
Planted: the last three tokens of each sequence are others.
Twin: the batch as it was read. A twin that copies it would call operations that the reference does not, which `compare`
says.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from gallery.entry_context import EntryContext
from gallery.families import WEIGHTS_CODE_AND_SETTINGS_OF_TWO_RUNS
from gallery.problems import CausalLM
from gallery.reference_training import compared, keep, language_model
from gallery.witness import samples_differ

TAIL = 3


def other_tails(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Ids of the tails are shifted by one."""

    def shift(batch: dict[str, Any]) -> dict[str, Any]:
        shifted = {name: column.clone() for name, column in batch.items()}
        for column in shifted.values():
            column[:, -TAIL:] = (column[:, -TAIL:] + 1) % CausalLM.vocab_size
        return shifted

    return language_model(ctx, batch=shift if faulty else keep)


_fault = compared(
    "C5",
    ("input-differs|structure-differs",),
    shows=samples_differ,
    site="/fwd/",
    family=WEIGHTS_CODE_AND_SETTINGS_OF_TWO_RUNS,
    causes=("code-differs", "input-differs"),
)

ENTRIES = (_fault("", "token tails differ", other_tails),)
