"""Facts of updates, from a training whose settings change."""

import pytest
import torch
from tests.unit.trained_updates import adamw, mlp, trained
from torch import nn

import trueline
from trueline.judge.facts.training_facts import read_facts


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """Twelve updates by AdamW in bfloat16, at rate 1e-2, with another weight decay from the sixth on."""

    def before(number, model, optimizer):
        if number == 6:
            optimizer.param_groups[0]["weight_decay"] = 0.5

    out = tmp_path_factory.mktemp("facts") / "run"
    trained(out, lambda model: adamw(model, lr=1e-2), dtype=torch.bfloat16, before=before)
    return {fact.name: fact for fact in read_facts(trueline.open_run(out)).facts}


def test_dtypes_are_those_of_gradients_and_states(facts):
    fact = facts["update-dtypes"]
    assert fact.value == {"gradients": ["bfloat16"], "states": {"exp_avg": "bfloat16", "exp_avg_sq": "bfloat16"}}
    assert (
        fact.text == "gradients are bfloat16 at the update; of the optimizer's states exp_avg and exp_avg_sq bfloat16"
    )
    assert set(fact.marks) == {"states-in-16-bits"}


def test_settings_that_change_are_named_with_the_first_update_that_has_them(facts):
    fact = facts["settings-changed"]
    assert fact.value.keys() == {"weight_decay"}
    assert (fact.value["weight_decay"]["before"], fact.value["weight_decay"]["after"]) == (0.01, 0.5)
    assert 6 <= fact.value["weight_decay"]["step"] < 12


def test_the_size_of_an_update_is_its_share_of_the_weights(tmp_path):
    """SGD without momentum at a gradient of ones: each element changes by the rate."""

    def step(optimizer):
        for param in optimizer.param_groups[0]["params"]:
            nn.init.constant_(param, 2.0)
            param.grad.fill_(1.0)
        optimizer.step()

    trained(tmp_path / "run", lambda model: torch.optim.SGD(model.parameters(), lr=0.02), model=mlp, step=step)
    (fact,) = [fact for fact in read_facts(tmp_path / "run").facts if fact.name == "update-over-weight"]
    assert list(fact.value["parts"].values()) == pytest.approx([0.01] * len(fact.value["parts"]), rel=1e-5)
    assert fact.value["updates"] == 12
    assert fact.text.startswith("an update changes weights by 1 % of their size (`")
    assert fact.text.endswith("`), at elements of 12 sampled updates")


def test_momentum_that_moves_with_the_rate_is_no_mark(tmp_path):
    """OneCycleLR moves the first of the betas at each update."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=20)
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan={"every": 1}):
        for _ in range(12):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    (fact,) = (fact for fact in trueline.facts(tmp_path / "run").facts if fact.name == "settings-changed")
    assert fact.text == "settings of the optimizer changed: betas with a schedule"
    assert fact.marks == {}
