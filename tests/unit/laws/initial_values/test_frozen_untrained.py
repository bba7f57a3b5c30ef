"""frozen-untrained: a frozen head that was drawn is told, one that was trained or comes before trained parts is not."""

from types import SimpleNamespace

import pytest
import torch
from tests.unit.asked import asked
from torch import nn

import trueline
from trueline.laws.initial_values import frozen_untrained
from trueline.laws.initial_values.columns import InitialValues, frozen_params
from trueline.laws.initial_values.drawn import looks_drawn
from trueline.laws.initial_values.probe.values import _frozen, numbers_of


def summary(x):
    return InitialValues(*numbers_of(x).tolist())


def normal(spread, *, zero_bias=True):
    def fill(layer):
        nn.init.normal_(layer.weight, std=spread)
        if zero_bias:
            nn.init.zeros_(layer.bias)

    return fill


def learned(layer):
    """Weights as training leaves them: with a mean, longer tails, and a bias."""
    layer.weight.data = 0.02 * torch.randn_like(layer.weight) * (1 + torch.randn_like(layer.weight).abs()) + 0.002
    layer.bias.data.normal_(std=0.1)


@pytest.mark.parametrize("shape", [(4, 64), (64, 64), (300, 200)])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("fill", "drawn"),
    [
        (lambda layer: None, True),
        (normal(0.02), True),
        (lambda layer: nn.init.xavier_uniform_(layer.weight), True),
        (learned, False),
    ],
)
def test_what_initialisers_draw_is_known(shape, seed, fill, drawn):
    torch.manual_seed(seed)
    layer = nn.Linear(shape[1], shape[0])
    fill(layer)
    assert looks_drawn(summary(layer.weight.detach()), shape, summary(layer.bias.detach())) is drawn


def test_a_few_updates_of_the_usual_size_are_seen():
    torch.manual_seed(0)
    layer = nn.Linear(64, 4)
    updates = torch.optim.Adam(layer.parameters(), lr=1e-2)
    for _ in range(20):
        x = torch.randn(16, 64)
        nn.functional.cross_entropy(layer(x), (x[:, 0] > 0).long()).backward()
        updates.step()
        updates.zero_grad()
    assert not looks_drawn(summary(layer.weight.detach()), (4, 64), summary(layer.bias.detach()))


def trained(out, *, head, frozen=("head",), base=lambda layer: None):
    """The parameters after a few steps of a base of five layers and a head, of which ``frozen`` parts do not train."""
    torch.manual_seed(1)
    layers = [nn.Linear(32, 32) for _ in range(5)]
    for layer in layers:
        base(layer)
    model = nn.Sequential()
    for number, layer in enumerate(layers):
        model.add_module(f"layer{number}", layer)
    model.add_module("head", nn.Linear(32, 8))
    head(model.head)
    for name in frozen:
        model.get_submodule(name).requires_grad_(False)
    updates = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.1)
    watch = None if out is None else trueline.watch(model, updates, out=out, plan={"every": 1})
    for _ in range(3):
        model(torch.randn(8, 32)).square().mean().backward()
        updates.step()
        updates.zero_grad()
    if watch is not None:
        watch.close()
    return [param.detach().clone() for param in model.parameters()]


LAYERS = tuple(f"layer{number}" for number in range(5))


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"head": normal(0.02)}, [("end", ["head"])]),
        ({"head": learned}, []),
        ({"head": normal(0.02), "frozen": LAYERS}, []),  # all is drawn, and a trained head comes after it
        ({"head": normal(0.02), "frozen": (*LAYERS[1:], "head"), "base": learned}, [("end", ["head"])]),
        ({"head": learned, "frozen": LAYERS, "base": learned}, []),
    ],
)
def test_a_frozen_head_that_was_drawn_is_to_be_confirmed(tmp_path, settings, expected):
    trained(tmp_path / "run", **settings)
    findings, why = asked(tmp_path / "run", frozen_untrained.CODE)
    assert why == []
    assert [(each.evidence["kind"], each.evidence["names"]) for each in findings] == expected
    assert all(each.severity == "confirm" for each in findings)


def test_a_drawn_layer_among_loaded_ones_is_to_be_confirmed(tmp_path):
    numbers = iter(range(5))

    def loaded_but_one(layer):
        normal(0.02)(layer) if next(numbers) == 2 else learned(layer)

    trained(tmp_path / "run", head=learned, frozen=LAYERS, base=loaded_but_one)
    assert asked(tmp_path / "run", frozen_untrained.CODE)[0] == []  # one of five is more than a tenth


def test_a_frozen_copy_of_a_trained_part_is_left_alone(tmp_path):
    trained(tmp_path / "run", head=normal(0.02), frozen=("layer4", "head"))
    findings, _ = asked(tmp_path / "run", frozen_untrained.CODE)
    assert [each.evidence["names"] for each in findings] == [["head"]]  # layer4 has the form of layer3


def test_what_is_frozen_beside_adapters_is_a_part_of_the_last_layer():
    layer = nn.ModuleDict({"adapter": nn.Linear(4, 4), "base": nn.Linear(4, 4).requires_grad_(False)})
    heads = {"pooler": nn.Linear(4, 4), "classifier": nn.Linear(4, 2)}
    model = nn.ModuleDict({"layer": nn.ModuleList([layer]), **heads})
    for head in heads.values():
        head.requires_grad_(False)
    params = frozen_params(_frozen(model, SimpleNamespace(device=torch.device("cpu")))["frozen_params"])
    assert {param.name: param.is_behind for param in params if param.name.endswith("weight")} == {
        "layer.0.base.weight": False,
        "pooler.weight": True,
        "classifier.weight": True,
    }


def test_where_nothing_is_frozen_it_does_not_apply(tmp_path):
    trained(tmp_path / "run", head=learned, frozen=())
    assert asked(tmp_path / "run", frozen_untrained.CODE) == ([], ["no parameter is frozen"])


def test_watching_leaves_a_training_as_it_is(tmp_path):
    plain, watched = (trained(out, head=normal(0.02)) for out in (None, tmp_path / "run"))
    assert all(map(torch.equal, plain, watched))
