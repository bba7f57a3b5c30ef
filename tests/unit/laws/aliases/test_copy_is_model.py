"""A module under the name of a copy: asked about, and what is no such name is left alone."""

import copy

import pytest
import torch
from torch import nn

import trueline
from trueline.laws.aliases.copy_is_model import check
from trueline.laws.aliases.probe import _calls_it_a_copy
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run


def net():
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def train(folder, model, after_update=None, *, steps=6):
    optimizer = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.1)
    with trueline.watch(model, optimizer, out=folder):
        for step in range(steps):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if after_update is not None:
                after_update(step)
    return Run(str(folder))


class Agent:
    def __init__(self, model, target):
        self.policy_net, self.target_net = model, target


class Critics(nn.Module):
    def __init__(self, is_copy):
        super().__init__()
        self.q = net()
        self.q_target = copy.deepcopy(self.q).requires_grad_(False) if is_copy else self.q

    def forward(self, x):
        return self.q(x)


def test_an_agent_whose_target_network_is_its_policy(tmp_path):
    model = net()
    agent = Agent(model, model)
    (finding,) = check(train(tmp_path / "run", model))
    assert (finding.severity, finding.evidence["kind"]) == ("confirm", "names")
    assert finding.claim.startswith("target_net and policy_net of Agent are one module, the one that is trained")
    del agent


def test_a_part_of_the_model_that_is_its_own_target(tmp_path):
    (finding,) = check(train(tmp_path / "run", Critics(is_copy=False)))
    assert finding.claim.startswith("q_target and q of Critics are one module")


def test_a_reference_in_a_running_function(tmp_path):
    def main():
        model = net()
        reference = model
        return train(tmp_path / "run", model), reference

    run, _ = main()
    (finding,) = check(run)
    assert finding.claim.startswith("reference and model of main are one module")


@pytest.mark.parametrize("kind", ["copy", "adapters", "other names", "part"])
def test_copies_and_other_names_are_left_alone(tmp_path, kind):
    model = Critics(is_copy=True) if kind == "part" else net()
    target = copy.deepcopy(model) if kind == "copy" else model
    agent = Agent(model, target)
    if kind == "adapters":  # the reference is the model with its adapters switched off
        model[0].requires_grad_(False)
    if kind in ("other names", "part"):
        agent.model_wrapped = agent.__dict__.pop("target_net")
    with pytest.raises(CannotTell, match="no name of the model calls it a copy"):
        check(train(tmp_path / "run", model))
    del agent, target


def test_a_module_that_is_given_its_own_tensors(tmp_path):
    model = net()
    second = model

    def after(step):
        if step % 2:
            second.load_state_dict(model.state_dict())

    (finding,) = check(train(tmp_path / "run", model, after))
    assert (finding.severity, finding.evidence["kind"], finding.measured) == ("confirm", "loads", 2.0)


def test_loads_of_other_tensors_are_left_alone(tmp_path):
    model = net()

    def after(step):
        weights = copy.deepcopy(model.state_dict())
        model.load_state_dict(weights)
        model.load_state_dict(model.state_dict() | {"0.bias": weights["0.bias"]})  # loaded in part

    with pytest.raises(CannotTell):
        check(train(tmp_path / "run", model, after))


@pytest.mark.parametrize("name", ["target_net", "targetCritic", "QTarget", "policy_old", "ref_model", "teacher", "ema"])
def test_names_that_call_a_network_a_copy(name):
    assert _calls_it_a_copy(name)


@pytest.mark.parametrize("name", ["target", "old", "model", "model_wrapped", "preferred", "threshold", "schema", "f"])
def test_names_that_do_not(name):
    assert not _calls_it_a_copy(name)
