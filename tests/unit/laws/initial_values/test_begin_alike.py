"""begin-alike: copies of a drawn layer are told; of a trained one, and those that no gradient trains, are not."""

import copy

import pytest
import torch
from tests.unit.asked import asked
from torch import nn

import trueline
from trueline.laws.initial_values import begin_alike


class Three(nn.Module):
    """Two layers, and a third that may be no part of the loss."""

    def __init__(self, first, second, teacher):
        super().__init__()
        self.layers, self.teacher = nn.ModuleList([first, second]), teacher

    def forward(self, x):
        with torch.no_grad():
            target = self.teacher(x)
        return self.layers[1](torch.tanh(self.layers[0](x))) - target


def learned():
    layer = nn.Linear(32, 32)
    layer.weight.data = 0.02 * torch.randn(32, 32) * (1 + torch.randn(32, 32).abs()) + 0.002
    return layer


def trained(folder, make, *, second=copy.deepcopy, teacher=lambda first: nn.Linear(32, 32)):
    torch.manual_seed(0)
    first = make()
    model = Three(first, second(first), teacher(first))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=folder, plan={"every": 1}):
        for _ in range(3):
            model(torch.randn(8, 32)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return trueline.open_run(folder)


def linear():
    return nn.Linear(32, 32)


def test_copies_of_a_drawn_layer_are_to_be_confirmed(tmp_path):
    findings, why = asked(trained(tmp_path / "run", linear), begin_alike.CODE)
    assert why == []
    assert [(finding.severity, finding.evidence["kind"], finding.evidence["modules"]) for finding in findings] == [
        ("confirm", "copies", ["layers.0", "layers.1"])
    ]
    assert findings[0].claim.startswith("layers.0 and layers.1 begin with the same drawn values, bit for bit")


@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (linear, {"second": lambda first: linear()}),
        (learned, {}),
        (linear, {"second": lambda first: linear(), "teacher": copy.deepcopy}),
    ],
)
def test_other_draws_trained_values_and_a_copy_without_a_gradient_are_left_alone(tmp_path, make, settings):
    assert asked(trained(tmp_path / "run", make, **settings), begin_alike.CODE) == ([], [])


def test_zeros_are_no_copies(tmp_path):
    def zeros():
        layer = linear()
        nn.init.zeros_(layer.weight)
        return layer

    assert asked(trained(tmp_path / "run", zeros), begin_alike.CODE) == ([], [])
