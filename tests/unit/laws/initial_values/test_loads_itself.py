"""loads-itself: a network that is given its own state again and again is named; what changes in between is not."""

import copy

import pytest
import torch
from tests.unit.asked import asked
from torch import nn

import trueline
from trueline.capture.probes.loads import loads
from trueline.laws.aliases import copy_is_model
from trueline.laws.initial_values import loads_itself
from trueline.schema.errors import CannotTell

STEPS = 8


class QNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))

    def forward(self, x):
        return self.net(x)


class Agent(nn.Module):
    """Both networks in one module."""

    def __init__(self):
        super().__init__()
        self.online, self.target = QNet(), QNet().requires_grad_(False)

    def forward(self, x):
        return self.online(x)


@pytest.fixture
def _listening():
    loads.listen()
    yield
    loads.stop()


def trained(folder, model, at_step):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = None if folder is None else trueline.watch(model, optimizer, out=folder, plan={"every": 1})
    for step in range(STEPS):
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        at_step(step)
    if watch is not None:
        watch.close()
    return [param.detach().clone() for param in model.parameters()]


def into_itself(target):
    return lambda step: step % 2 or target.load_state_dict(target.state_dict())


def kept_from_the_start(target):
    state = target.state_dict()
    return lambda step: step % 2 or target.load_state_dict(state_dict=state, strict=False)


@pytest.mark.in_turn
@pytest.mark.usefixtures("_listening")
@pytest.mark.parametrize("load", [into_itself, kept_from_the_start])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_network_that_is_given_its_own_state_is_to_be_confirmed(tmp_path, load, frozen):
    target = QNet().requires_grad_(not frozen)
    trained(tmp_path / "run", QNet(), load(target))
    (finding,), why = asked(tmp_path / "run", loads_itself.CODE)
    assert (finding.severity, finding.measured, why) == ("confirm", 3, [])
    assert finding.claim.startswith("load_state_dict put the state of QNet into itself 3 times by step 6 (")
    assert finding.claim.endswith("): it stays as it was.")
    assert "test_loads_itself.py:" in finding.claim


@pytest.mark.usefixtures("_listening")
def test_a_part_of_the_model_is_said_by_another_law(tmp_path):
    agent = Agent()
    trained(tmp_path / "run", agent, into_itself(agent.target))
    findings, why = asked(tmp_path / "run", loads_itself.CODE, copy_is_model.CODE)
    assert ([finding.code for finding in findings], why) == (["copy-is-model"], [])


def mixed_in_place(model, target):
    state = target.state_dict()
    for name, value in state.items():
        if value.is_floating_point():
            value.mul_(0.9).add_(model.state_dict()[name], alpha=0.1)
    target.load_state_dict(state)


def mixed_by_data(model, target):
    for mean, param in zip(target.parameters(), model.parameters(), strict=True):
        mean.data.mul_(0.9).add_(param.data, alpha=0.1)
    target.load_state_dict(target.state_dict())


def put_back_from_a_copy(model, target):
    target.load_state_dict(copy.deepcopy(target.state_dict()))


HEALTHY = {
    "of the other": lambda model, target, step: target.load_state_dict(model.state_dict()),
    "once": lambda model, target, step: step == 3 and target.load_state_dict(target.state_dict()),
    "twice at one step": lambda model, target, step: (
        [target.load_state_dict(target.state_dict()) for _ in "ab"] if step == 3 else None
    ),
    "the trained one": lambda model, target, step: model.load_state_dict(model.state_dict()),
    "mixed in place": lambda model, target, step: mixed_in_place(model, target),
    "mixed by data": lambda model, target, step: mixed_by_data(model, target),
    "from a copy": lambda model, target, step: put_back_from_a_copy(model, target),
    "assigned": lambda model, target, step: target.load_state_dict(target.state_dict(), assign=True),
    "a part is another's": lambda model, target, step: target.load_state_dict(
        target.state_dict() | {"net.2.bias": model.net[2].bias.detach()}
    ),
    "without numbers": lambda model, target, step: nn.ReLU().load_state_dict({}),
}


@pytest.mark.in_turn
@pytest.mark.usefixtures("_listening")
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_loads_are_silent(tmp_path, name):
    model, target = QNet(), QNet()
    for _ in range(3):
        target.load_state_dict(target.state_dict())  # before training
    trained(tmp_path / "run", model, lambda step: HEALTHY[name](model, target, step))
    assert asked(tmp_path / "run", loads_itself.CODE) == ([], [])


def test_where_nobody_listens_it_cannot_be_told(tmp_path):
    target = QNet()
    trained(tmp_path / "run", QNet(), into_itself(target))
    _, (why,) = asked(tmp_path / "run", loads_itself.CODE)
    assert why == "what is loaded is seen only in jobs that `trueline run` starts"


def test_of_a_job_that_trueline_run_started_that_is_not_the_reason(tmp_path):
    trained(tmp_path / "run", QNet(), lambda step: None)
    run = trueline.open_run(tmp_path / "run")
    run.manifest.argv.append("python")
    with pytest.raises(CannotTell, match=r"what is loaded was not looked at: an older version wrote this Run"):
        loads_itself.check(run)


@pytest.mark.usefixtures("_listening")
def test_watching_leaves_a_training_as_it_is(tmp_path):
    values = []
    for out in (None, tmp_path / "run"):
        torch.manual_seed(0)
        model, target = QNet(), QNet()
        trained(out, model, into_itself(target))
        values.append([*model.state_dict().values(), *target.state_dict().values(), torch.get_rng_state()])
    assert all(map(torch.equal, *values))
