"""Initial values that are not the same in all layers, and rightly so."""

from __future__ import annotations

import torch
from torch import nn

from gallery.entry import Control
from gallery.entry_context import EntryContext
from gallery.laws.initial_values import LAYERS, Deep, drawn
from gallery.problems import Regression
from gallery.training import fit


def by_depth(ctx: EntryContext) -> nn.Module:
    """The deeper the layer, the less it is spread, as torchtitan begins."""
    model = drawn(Deep())
    with torch.no_grad():
        for number, layer in enumerate(model.layers):
            for param in layer.parameters():
                param.mul_((2 * (number + 1)) ** -0.5)
    return fit(ctx, Regression(), model)


def with_zeros(ctx: EntryContext) -> nn.Module:
    """Each layer adds nothing at first, and what the last one reads is less spread."""
    model = drawn(Deep())
    with torch.no_grad():
        for layer in model.layers:
            layer.down.weight.zero_()
        model.layers[LAYERS - 1].up.weight.mul_(0.1)
    return fit(ctx, Regression(), model)


ENTRIES = (
    Control("healthy.init-by-depth", "initial values are scaled by depth", by_depth, world_size=1),
    Control("healthy.init-zeros", "layers begin with zeros, and the last one otherwise", with_zeros, world_size=1),
)
