"""Facts of running statistics: momenta in force, statistics of the last batch, and those that never move."""

import re

import pytest
import torch
from torch import nn

import trueline


def trained(folder, *, change=lambda step, model: None, **settings):
    """Some steps of a network with two batch norms, watched."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6, **settings), nn.Conv2d(6, 4, 3), nn.BatchNorm2d(4, **settings)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=folder):
        for step in range(6):
            change(step, model)
            model(torch.randn(8, 3, 8, 8) + 2).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return fact_of(folder)


def fact_of(folder):
    return next((fact for fact in trueline.facts(folder).facts if fact.name == "running-statistics"), None)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("settings", "words", "marks"),
    [
        ({}, "2 batch norms: momentum 0.1", {}),
        ({"momentum": None}, "2 batch norms: a mean of all batches", {}),
        ({"momentum": 0.5}, "2 batch norms: momentum 0.5", {}),
        (
            {"momentum": 0.99},
            "2 batch norms: momentum 0.99",
            {"statistics-of-last-batch": "2 batch norms have the momentum 0.99: their .* are those of the last batch"},
        ),
        (
            {"momentum": 0.7},
            "2 batch norms: momentum 0.7",
            {"statistics-of-last-batch": "are mostly those of the last batch"},
        ),
        (
            {"momentum": 0.0},
            "2 batch norms: momentum 0",
            {"statistics-never-move": "2 batch norms have the momentum 0: .* stay as they were made"},
        ),
    ],
)
def test_the_momentum_in_force_is_told_and_what_it_comes_to(tmp_path, settings, words, marks):
    fact = trained(tmp_path / "run", **settings)
    assert fact.text == f"running statistics of {words}"
    assert list(fact.marks) == list(marks)
    for name, sentence in marks.items():
        assert re.search(sentence, fact.marks[name])


def test_statistics_that_were_loaded_may_be_meant_to_stay(tmp_path):
    def load(step, model):
        if step == 0:
            model[1].running_mean.fill_(0.5)
            model[3].running_var.fill_(2.0)

    assert trained(tmp_path / "run", momentum=0.0, change=load).marks == {}


def test_the_momentum_of_the_last_step_counts(tmp_path):
    def lower(step, model):
        model[1].momentum = model[3].momentum = 0.9 / (step + 1)

    assert trained(tmp_path / "run", change=lower).marks == {}


def test_layers_in_evaluation_mode_change_nothing(tmp_path):
    def evaluate(step, model):
        model[1].eval()
        model[3].eval()

    assert trained(tmp_path / "run", momentum=0.99, change=evaluate) is None


def test_one_layer_of_several_is_counted_alone(tmp_path):
    def raise_one(step, model):
        model[3].momentum = 0.999

    fact = trained(tmp_path / "run", change=raise_one)
    assert fact.text == "running statistics of 2 batch norms: 1 with momentum 0.1 and 1 with momentum 0.999"
    assert fact.marks["statistics-of-last-batch"].startswith("1 batch norm has the momentum 0.999: its running")
