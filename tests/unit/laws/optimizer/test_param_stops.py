"""param-stops: what was trained and stays from a step on is told, what rounding or a person stops is not."""

import numpy as np
import pytest
import torch
from tests.unit.asked import asked
from torch import nn

import trueline
from trueline.laws.optimizer import param_stops

STEPS, STOPS = 44, 10


class Captured(torch.optim.SGD):
    """An update that leaves out ``left_out``."""

    left_out = ()

    @torch.no_grad()
    def step(self, closure=None):
        for param in self.param_groups[0]["params"]:
            if param.grad is not None and not any(param is left for left in self.left_out):
                param.add_(param.grad, alpha=-self.param_groups[0]["lr"])


def trained(folder, *, at_stop, lr=0.05, loss=lambda y: (y - torch.randn(8, 2)).square().mean()):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = Captured(model.parameters(), lr=lr)
    with trueline.watch(model, optimizer, out=folder, plan={"every": 1}):
        for step in range(STEPS):
            if step == STOPS:
                at_stop(model, optimizer)
            optimizer.zero_grad()
            loss(model(torch.randn(8, 4))).backward()
            optimizer.step()
    return trueline.open_run(folder)


def leave_out(model, optimizer):
    optimizer.left_out = list(model[0].parameters())


def test_what_no_update_changes_any_more_is_told_with_its_step(tmp_path):
    findings, _ = asked(trained(tmp_path / "run", at_stop=leave_out), param_stops.CODE)
    assert [(finding.severity, finding.evidence["kind"], finding.evidence["names"]) for finding in findings] == [
        ("warning", "unmoved", ["0.weight", "0.bias"])
    ]
    assert findings[0].step_first == STOPS
    assert "no update has changed them since step 10" in findings[0].claim


def all_left_out(model, optimizer):
    optimizer.left_out = list(model.parameters())


def drift(param):
    """Something else moves."""
    param.data.add_(1e-3)


def without_rate(model, optimizer):
    optimizer.param_groups[0]["lr"] = 0.0
    model[2].weight.register_post_accumulate_grad_hook(drift)


def frozen(model, optimizer):
    model[0].requires_grad_(False)


def too_small(model, optimizer):
    """Moves that float32 loses."""
    optimizer.param_groups[0]["lr"] = 1e-14
    model[2].weight.register_post_accumulate_grad_hook(drift)


@pytest.mark.in_turn
@pytest.mark.parametrize("how", [lambda *_: None, all_left_out, without_rate, frozen, too_small])
def test_a_rate_a_freeze_and_rounding_are_left_alone(tmp_path, how):
    assert asked(trained(tmp_path / "run", at_stop=how), param_stops.CODE) == ([], [])


def no_way_through(model, optimizer):
    with torch.no_grad():
        model[2].weight.zero_()
    model[2].weight.requires_grad_(False)


def test_a_gradient_that_becomes_zero_is_to_be_confirmed_where_the_rest_is_trained(tmp_path):
    findings, _ = asked(trained(tmp_path / "run", at_stop=no_way_through), param_stops.CODE)
    assert [(finding.severity, finding.evidence["kind"], finding.evidence["names"]) for finding in findings] == [
        ("confirm", "zero-gradient", ["0.weight", "0.bias"])
    ]
    assert findings[0].step_first == STOPS


def test_where_all_that_is_trained_has_none_it_is_a_warning(tmp_path):
    run = trained(
        tmp_path / "run",
        at_stop=lambda model, _: model.register_forward_hook(lambda module, args, y: 1 + 0 * y),
    )
    (finding,) = asked(run, param_stops.CODE)[0]
    assert (finding.severity, len(finding.evidence["names"])) == ("warning", 4)
    assert finding.evidence["zeros"] == []


def test_of_factors_that_are_both_zeros_the_values_are_told(tmp_path):
    def clear(model, _):
        with torch.no_grad():
            for param in (*model[0].parameters(), model[2].weight):
                param.zero_()

    (finding,) = asked(trained(tmp_path / "run", at_stop=clear), param_stops.CODE)[0]
    assert finding.severity == "warning"
    assert set(finding.evidence["zeros"]) == {"0.weight", "0.bias", "2.weight"}
    assert "their values are all 0" in finding.claim


def test_a_loss_of_zero_has_no_gradient(tmp_path):
    def learned(model, _):
        model.register_forward_hook(lambda module, args, y: 0 * y)

    run = trained(tmp_path / "run", at_stop=learned, loss=lambda y: y.square().mean())
    assert np.any(run.pivot("loss")[0] == 0)
    assert asked(run, param_stops.CODE) == ([], [])
