"""M1. Two layers follow each other without an activation.

Who had it: classifiers written by hand in which dropout stands where the activation was.
Planted: dropout alone between the two layers.
Twin: a ReLU in front of it.
"""

from __future__ import annotations

import torch
from torch import nn

from gallery.entry import Fault
from gallery.entry_context import EntryContext
from gallery.problems import Vision
from gallery.training import fit, sgd
from gallery.witness import trains_differently


def activation_missing(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A classifier of two layers."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        between = [nn.Dropout(0.1)] if faulty else [nn.ReLU(), nn.Dropout(0.1)]
        model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), *between, nn.Linear(32, Vision.num_classes))
    return fit(ctx, Vision(), model, optimizer=sgd(model), steps=8)


ENTRIES = (
    Fault(
        "M1",
        "two layers without an activation between them",
        activation_missing,
        ("activation-missing",),
        trains_differently,
        ranks=(0,),
        step=2,
        world_size=1,
        family="layers",
        causes=("activation-forgotten",),
    ),
)
