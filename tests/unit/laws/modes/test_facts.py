"""Dropout in force: parts that drop, parts in evaluation mode, and what options declare."""

import pytest
import torch
from torch import nn

import trueline


def fact_of(out, prepare, *, p=0.1):
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4), nn.Dropout(p), nn.Linear(4, 4), nn.Dropout(p), nn.Linear(4, 1)]
    model = nn.Sequential(*layers)
    prepare(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=out, plan={"every": 1}):
        for _ in range(4):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return next((fact for fact in trueline.facts(out).facts if fact.name == "dropout"), None)


class Config:
    """Options as a model of transformers has them."""

    def __init__(self, **options):
        self.options = options

    def to_dict(self):
        return self.options


@pytest.mark.parametrize(
    ("prepare", "p", "text"),
    [
        (lambda model: None, 0.1, "dropout: 2 parts drop values (p 0.1)"),
        (lambda model: None, 0.0, None),
        (lambda model: model.eval(), 0.2, "dropout: 2 parts that may drop values are in evaluation mode (p 0.2)"),
        (
            lambda model: model[1].eval(),
            0.1,
            "dropout: 1 part drops values (p 0.1); 1 of 2 parts is in evaluation mode (p 0.1)",
        ),
        (
            lambda model: setattr(model, "config", Config(hidden_dropout_prob=0.3, layers=2)),
            0.0,
            "dropout: no module drops values; options declare hidden_dropout_prob 0.3",
        ),
    ],
)
def test_what_drops_is_told(tmp_path, prepare, p, text):
    fact = fact_of(tmp_path / "run", prepare, p=p)
    assert (fact and fact.text) == text
    assert not (fact and fact.marks)


def test_a_probability_to_keep_drops_most(tmp_path):
    fact = fact_of(tmp_path / "kept", lambda model: None, p=0.95)
    assert fact.marks == {"drops-most": "2 parts drop most values, with p 0.95"}
    assert not fact_of(tmp_path / "half", lambda model: None, p=0.5).marks
    assert not fact_of(tmp_path / "off", lambda model: model.eval(), p=0.95).marks
