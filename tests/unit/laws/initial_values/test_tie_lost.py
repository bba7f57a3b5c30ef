"""tie-lost: a tie that a model declares and does not have, or had when training began, is to be confirmed."""

import pytest
import torch
from tests.unit.asked import asked
from torch import nn

import trueline
from trueline.laws.initial_values import tie_lost

TIES = {"head.weight": "embed.weight"}


class Language(nn.Module):
    """An embedding and a head that are one weight, as models of transformers declare it."""

    def __init__(self, ties=TIES):
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight
        self.all_tied_weights_keys = ties

    def forward(self, ids):
        return self.head(self.embed(ids))


def untie(model):
    model.head.weight = nn.Parameter(model.embed.weight.detach().clone())


def trained(folder, model, at=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=folder, plan={"every": 1}):
        for step in range(6):
            if step == at:
                untie(model)
            model(torch.randint(0, 16, (4, 3))).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return folder


@pytest.mark.parametrize("around", [lambda model: model, lambda model: nn.Sequential(model)])
def test_a_tie_that_is_declared_and_not_there_is_to_be_confirmed(tmp_path, around):
    model = Language()
    untie(model)
    (finding,) = asked(trained(tmp_path / "run", around(model)), tie_lost.CODE)[0]
    assert (finding.severity, finding.evidence["kind"]) == ("confirm", "declared")
    assert "head.weight is declared to be " in finding.claim


def test_a_tie_that_is_lost_later_is_told_with_its_step(tmp_path):
    (finding,) = asked(trained(tmp_path / "run", Language({}), at=3), tie_lost.CODE)[0]
    assert (finding.evidence["kind"], finding.step_first) == ("later", 3)
    assert finding.evidence["names"] == ["head.weight", "embed.weight"]


def test_a_tie_that_is_there_and_stays_is_left_alone(tmp_path):
    assert asked(trained(tmp_path / "run", Language()), tie_lost.CODE) == ([], [])


def test_weights_that_nothing_ties_are_left_alone(tmp_path):
    model = Language({})
    untie(model)
    findings, why = asked(trained(tmp_path / "run", model), tie_lost.CODE)
    assert findings == []
    assert why == ["the model declares no parameter to be another, and has none by two names"]
