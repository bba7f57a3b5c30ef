"""Bounds for optimizers whose whole rule is not predicted: healthy ones stay within, planted faults do not."""

from unittest.mock import patch

import pytest
import torch
import torch.optim._muon as muon
from tests.unit.trained_updates import mlp, trained
from torch import nn

import trueline
from trueline.capture.probes.around_update import update_slices
from trueline.laws.optimizer.magnitudes import BOUNDS, bounded_updates

AT = 6


class Lion(torch.optim.Optimizer):
    """As lion-pytorch has it; ``times`` is the fault."""

    times = 1.0

    def __init__(self, params, lr=1e-3, weight_decay=0.1):
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                average = self.state[param].setdefault("exp_avg", torch.zeros_like(param))
                param.mul_(1 - group["lr"] * group["weight_decay"])
                update = (average * 0.9).add(param.grad, alpha=0.1).sign_()
                param.add_(update, alpha=-group["lr"] * self.times)
                average.mul_(0.99).add_(param.grad, alpha=0.01)


@pytest.fixture(autouse=True)
def _lion_is_known(monkeypatch):
    """The Lion above stands for that of lion-pytorch."""
    monkeypatch.setitem(update_slices.BOUNDED, f"{Lion.__module__}.Lion", "Lion")


def matrices():
    """A model of matrices alone, as Muon takes them."""
    return nn.Sequential(nn.Linear(16, 32, bias=False), nn.ReLU(), nn.Linear(32, 64, bias=False))


MAKE = {
    "Lion": (mlp, lambda model: Lion(model.parameters())),
    "Muon": (matrices, lambda model: torch.optim.Muon(model.parameters())),
    "Muon, by RMS": (
        matrices,
        lambda model: torch.optim.Muon(model.parameters(), lr=0.02, adjust_lr_fn="match_rms_adamw"),
    ),
    "Adafactor": (mlp, lambda model: torch.optim.Adafactor(model.parameters())),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", MAKE)
def test_healthy_moves_are_within(tmp_path, name, dtype):
    model, make = MAKE[name]
    plain = trained(None, make, model=model, dtype=dtype)
    assert all(map(torch.equal, plain, trained(tmp_path / "run", make, model=model, dtype=dtype)))
    excess = [float(excess_K.max()) for _, excess_K in bounded_updates(trueline.open_run(tmp_path / "run"))]
    assert len(excess) > 100
    assert 0 < max(excess) <= 1
    assert trueline.check(tmp_path / "run").findings == ()


def test_lion_that_moves_by_another_rate(tmp_path):
    def faster(step, model, optimizer):
        optimizer.times = 1.01 if step >= AT else 1.0

    trained(tmp_path / "run", MAKE["Lion"][1], before=faster)
    (finding,) = trueline.check(tmp_path / "run").findings
    assert (finding.code, finding.step_first, finding.severity) == ("update-magnitude", AT, "error")


def test_muon_that_moves_too_far(tmp_path):
    original, calls = muon._adjust_lr, iter(range(1_000))

    def move_further(*args):
        return original(*args) * (10 if next(calls) >= 2 * AT else 1)

    with patch.object(muon, "_adjust_lr", move_further):
        trained(tmp_path / "run", MAKE["Muon"][1], model=matrices)
    (finding,) = trueline.check(tmp_path / "run").findings
    assert (finding.code, finding.step_first) == ("update-magnitude", AT)


def test_every_name_has_a_bound():
    assert set(BOUNDS) == set(update_slices.BOUNDED.values())


def test_another_rule_behind_an_attribute_is_not_known():
    optimizer = Lion(mlp().parameters())
    assert update_slices.law_of(optimizer) == "Lion"
    optimizer.decoupled_wd = True
    assert update_slices.law_of(optimizer) == ""
