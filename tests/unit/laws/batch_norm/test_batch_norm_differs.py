"""Running statistics of batch normalisation: what writes other ones is found, and what people do is left alone."""

import pytest
import torch
from tests.unit.asked import asked
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import trueline

STEPS = 6
CODE = "batch-norm-differs"
torchs = functional.batch_norm


class Net(nn.Module):
    """Two layers of batch normalisation, the second checkpointed if asked for."""

    def __init__(self, *, reentrant=None, **settings):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, **settings))
        self.second = nn.Sequential(nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6, **settings))
        self.head, self.reentrant = nn.Linear(6, 2), reentrant

    def forward(self, x):
        x = self.first(x)
        x = self.second(x) if self.reentrant is None else checkpoint(self.second, x, use_reentrant=self.reentrant)
        return self.head(x.mean((2, 3)))


def trained(
    folder, *, steps=STEPS, dtype=torch.float32, prepare=lambda model: None, after=lambda step, model: None, **settings
):
    """The state that training leaves; watched into ``folder`` unless that is None."""
    torch.manual_seed(0)
    model = Net(**settings).to(dtype)
    prepare(model)
    updates = torch.optim.SGD([param for param in model.parameters() if param.requires_grad], lr=0.1)
    watch = None if folder is None else trueline.watch(model, updates, out=folder)
    for step in range(steps):
        images = (torch.randn(8, 3, 10, 10) + 3).to(dtype).contiguous(memory_format=torch.channels_last)
        model(images).float().square().mean().backward()
        updates.step()
        updates.zero_grad()
        after(step, model)
    if watch is not None:
        watch.close()
    return model.state_dict()


def findings(folder):
    findings, why = asked(folder, CODE)
    assert why == []
    return [(finding.severity, finding.evidence["kind"], finding.step_first) for finding in findings]


def evaluates(step, model):
    model.eval()
    with torch.no_grad():
        model(torch.randn(8, 3, 10, 10))
    model.train()
    model.first[1].eval()


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"momentum": None},
        {"momentum": 1.0},
        {"affine": False},
        {"dtype": torch.bfloat16},
        {"dtype": torch.float64},
        {"after": evaluates, "prepare": lambda model: model.first[1].eval()},
        {"prepare": lambda model: model.first.requires_grad_(False).eval()},
    ],
    ids=lambda settings: ", ".join(settings),
)
def test_what_batch_normalisation_declares_is_left_alone(tmp_path, arguments):
    trained(tmp_path / "run", **arguments)
    assert findings(tmp_path / "run") == []


def test_training_and_running_statistics_are_the_same_when_watched(tmp_path):
    watched, alone = trained(tmp_path / "run"), trained(None)
    assert all(torch.equal(watched[name], alone[name]) for name in alone)


def twice_the_momentum(x, mean, variance, weight, bias, training, momentum, eps):
    return torchs(x, mean, variance, weight, bias, training, 2 * momentum, eps)


def writes_in_evaluation(x, mean, variance, weight, bias, training, momentum, eps):
    normal = torchs(x, mean, variance, weight, bias, training, momentum, eps)
    if not training:
        mean.data += 1e-6
    return normal


def test_a_kernel_with_another_momentum(tmp_path, monkeypatch):
    monkeypatch.setattr(functional, "batch_norm", twice_the_momentum)
    trained(tmp_path / "run")
    assert findings(tmp_path / "run") == [("error", "rule", 0)]


def test_statistics_that_change_in_evaluation_mode(tmp_path, monkeypatch):
    monkeypatch.setattr(functional, "batch_norm", writes_in_evaluation)
    trained(tmp_path / "run", prepare=lambda model: model.first[1].eval())
    assert findings(tmp_path / "run") == [("error", "evaluation", 0)]


def test_a_batch_without_a_finite_number_that_statistics_keep(tmp_path):
    def spoils(step, model):
        if step == 2:
            with torch.no_grad():
                model(torch.full((8, 3, 10, 10), torch.inf))

    trained(tmp_path / "run", after=spoils)
    assert ("error", "nonfinite", 3) in findings(tmp_path / "run")


@pytest.mark.parametrize("reentrant", [True, False])
def test_a_layer_that_checkpointing_computes_again_is_no_alarm(tmp_path, reentrant):
    trained(tmp_path / "run", reentrant=reentrant)
    assert findings(tmp_path / "run") == [("info", "again", 0)]


def _freeze_part(model):
    model.first.requires_grad_(False)


def _freeze_norm(model):
    model.first[1].requires_grad_(False)


@pytest.mark.parametrize(("freeze", "severity"), [(_freeze_part, "confirm"), (_freeze_norm, "info")])
def test_a_frozen_part_whose_statistics_go_on_is_to_be_confirmed(tmp_path, freeze, severity):
    trained(tmp_path / "run", prepare=freeze)
    assert findings(tmp_path / "run") == [(severity, "frozen", 0)]


def _freeze_as_it_is(model):
    model.first.requires_grad_(False)
    model.first.eval()


def test_a_frozen_part_in_evaluation_mode_is_left_alone(tmp_path):
    trained(tmp_path / "run", prepare=_freeze_as_it_is)
    assert findings(tmp_path / "run") == []


@pytest.mark.parametrize("at", [5, 25])
def test_an_evaluation_in_training_mode_is_said(tmp_path, at):
    def evaluates(step, model):
        if step == at:
            with torch.no_grad():
                model(torch.randn(8, 3, 10, 10))

    trained(tmp_path / "run", steps=40, after=evaluates)
    ((severity, kind, first),) = findings(tmp_path / "run")
    assert (severity, kind) == ("info", "between")
    assert first == 5 if at == 5 else 15 <= first <= 25
