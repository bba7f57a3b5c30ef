"""P2. Weights do not begin as they were meant to, on all ranks alike.

Who had it: openai/CLIP#15 (parameters left as torch.empty), pytorch/examples#909 (weights initialised twice); whoever
finds layers by `type(module) is nn.Linear`, or by a part of their name; who writes `[Layer()] * n`.
Planted: these four. What torch.empty returns is not left to chance: it is memory that held numbers of samples before.
Twin: `isinstance`, the whole name, a parameter that is filled, a layer for each place.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from gallery.entry import Fault, variants
from gallery.entry_context import EntryContext
from gallery.families import INITIAL_VALUES
from gallery.problems import Regression
from gallery.training import fit
from gallery.witness import trains_differently

LAYERS, WIDTH, SPREAD = 12, 32, 0.05


class Noisy(nn.Linear):
    """A linear layer that is a class of its own."""


class Layer(nn.Module):
    """A residual MLP of [B, WIDTH]."""

    def __init__(self, kind: type[nn.Linear] = nn.Linear) -> None:
        super().__init__()
        self.up, self.down = kind(WIDTH, 2 * WIDTH), kind(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Of [B, WIDTH]."""
        return x + self.down(torch.tanh(self.up(x)))


class Deep(nn.Module):
    """``LAYERS`` of them for ``Regression``; ``kinds`` are those of some, by number."""

    def __init__(self, **kinds: type[nn.Linear]) -> None:
        super().__init__()
        self.begin = nn.Linear(Regression.num_features, WIDTH)
        self.layers = nn.ModuleList(Layer(kinds.get(f"layer_{number}", nn.Linear)) for number in range(LAYERS))
        self.projection = nn.Parameter(SPREAD * torch.randn(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        """Of [B, num_features]."""
        x = self.begin(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x + x @ self.projection)


def drawn(model: Deep, *, exactly: bool = False) -> Deep:
    """``model`` with the weights of its linear layers drawn anew, of their subclasses too unless ``exactly``."""
    for module in model.modules():
        if type(module) is nn.Linear or (isinstance(module, nn.Linear) and not exactly):
            nn.init.normal_(module.weight, std=SPREAD)
            nn.init.zeros_(module.bias)
    return model


def left_out(ctx: EntryContext, faulty: bool) -> nn.Module:
    """One layer is of a class that the initialisation does not know."""
    return fit(ctx, Regression(), drawn(Deep(layer_5=Noisy), exactly=faulty))


def twice(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Layers 10 and 11 are scaled with layer 1, too."""
    model = drawn(Deep())
    with torch.no_grad():
        for name, param in model.named_parameters():
            for number in range(LAYERS):
                if (f"layers.{number}" if faulty else f"layers.{number}.") in name:
                    param.mul_((2 * LAYERS) ** -0.5)
    return fit(ctx, Regression(), model)


def empty(ctx: EntryContext, faulty: bool) -> nn.Module:
    """A parameter is never filled."""
    model = drawn(Deep())
    if faulty:
        freed = torch.arange(WIDTH * WIDTH // 2)
        model.projection.data = freed.view(torch.float32).reshape(WIDTH, WIDTH)
    return fit(ctx, Regression(), model)


def repeated(ctx: EntryContext, faulty: bool) -> nn.Module:
    """All layers are one."""
    model = drawn(Deep())
    if faulty:
        model.layers = nn.ModuleList([model.layers[0]] * LAYERS)
    return fit(ctx, Regression(), model)


def copied(ctx: EntryContext, faulty: bool) -> nn.Module:
    """Each layer is a copy of the first, as in nn.TransformerEncoder."""
    model = drawn(Deep())
    if faulty:
        for layer in model.layers:
            layer.load_state_dict(model.layers[0].state_dict())
    return fit(ctx, Regression(), model)


_fault = variants(
    "P2",
    ("init-differs",),
    trains_differently,
    ranks=(0,),
    world_size=1,
    family=INITIAL_VALUES,
    causes=("initialisation-wrong",),
)

ENTRIES = (
    Fault(
        "Y5",
        "each layer is a copy of the first as it was drawn",
        copied,
        ("begin-alike",),
        trains_differently,
        ranks=(0,),
        site="layers.0",
        world_size=1,
        family=INITIAL_VALUES,
    ),
    _fault("", "a layer of another class is left out by the initialisation", left_out, site="layers.5.up.weight"),
    _fault("twice", "the last layers are scaled twice, as their names begin like another's", twice, site="layers.10."),
    _fault(
        "repeated", "one layer stands in all places of the list", repeated, site="layers.0", causes=("module-repeated",)
    ),
    _fault("empty", "a parameter is what memory held", empty, site="projection"),
)
