"""C7. The optimizer decays weights by another factor.

Who had it: weight decay applied to norms and biases in one of two runs, Adam with L2 in place of AdamW, defaults that
differ between optimizers of the same name. The first forward and backward pass are the same.
Planted: AdamW with a decay of 0.1 beside 0.01.
Twin: the same decay, passed in another way.
"""

from __future__ import annotations

from torch import nn

from trueline.testing.beside import adamw, language_model
from trueline.testing.entry import Fault, Reference
from trueline.testing.seat import Seat
from trueline.testing.witness import trains_differently

DECAY = 0.01


def setting(seat: Seat, faulty: bool) -> nn.Module:
    """Another weight decay in the settings."""
    return language_model(seat, optimizer_of=lambda model: adamw(model, weight_decay=0.1 if faulty else DECAY))


ENTRIES = (
    Fault(
        "C7",
        "another weight decay",
        setting,
        ("optimizer-differs",),
        trains_differently,
        world_size=1,
        reference=Reference(language_model),
    ),
)
