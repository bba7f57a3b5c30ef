"""C7. The optimizer decays weights by another factor.

Who had it: weight decay applied to norms and biases in one of two runs, Adam with L2 in place of AdamW, defaults that
differ between optimizers of the same name. The first forward and backward pass are the same.
Planted: AdamW with a decay of 0.1 instead of 0.01; and the same decay applied in the code, so that no setting differs.
Twin: the same decay, passed in another way.
"""

from __future__ import annotations

import torch
from torch import nn

from gallery.entry_context import EntryContext
from gallery.families import WEIGHTS_CODE_AND_SETTINGS_OF_TWO_RUNS
from gallery.reference_training import adamw, compared, language_model

DECAY = 0.01


def setting(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Another weight decay in the settings."""
    return language_model(ctx, optimizer_of=lambda model: adamw(model, weight_decay=0.1 if faulty else DECAY))


def in_code(ctx: EntryContext, faulty: bool) -> nn.Module:
    """The same settings; what is decayed besides is in the code."""

    def build(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = adamw(model, weight_decay=DECAY)
        if faulty:
            optimizer.register_step_pre_hook(decay_more)
        return optimizer

    return language_model(ctx, optimizer_of=build)


def decay_more(optimizer: torch.optim.Optimizer, args: object, kwargs: object) -> None:
    """Shrink the weights by nine times the decay before AdamW does so itself."""
    del args, kwargs
    with torch.no_grad():
        for group in optimizer.param_groups:
            for param in group["params"]:
                param.mul_(1 - group["lr"] * 9 * DECAY)


_fault = compared(
    "C7",
    ("optimizer-differs",),
    family=WEIGHTS_CODE_AND_SETTINGS_OF_TWO_RUNS,
    causes=("optimizer-differs-between-runs", "configuration-differs-between-runs"),
)

ENTRIES = (
    _fault("", "another weight decay", setting, may_find=("config-differs",)),
    _fault("code", "another weight decay, with the same settings", in_code, within=1),
)
