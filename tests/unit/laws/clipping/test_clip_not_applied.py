"""clip-not-applied: a clipping that a configuration declares is to be confirmed where gradients are larger."""

import argparse

import pytest
import torch
from tests.unit.asked import asked
from torch import nn

import trueline
from trueline.capture.job.configs_in_sight import _hooks_of_module
from trueline.laws.clipping import clip_not_applied


def trained(folder, args, clip=lambda model: None, **settings):
    """The Run of a loop that holds ``args``."""
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, **settings)
    with trueline.watch(model, optimizer, out=folder, plan={"every": 1}):
        for _ in range(6):
            (100 * model(torch.randn(6, 4)).square().mean()).backward()
            clip(model)
            optimizer.step()
            optimizer.zero_grad()
    assert args
    return folder


def _by_hand(model):
    norm = torch.stack([param.grad.norm() for param in model.parameters()]).norm()
    for param in model.parameters():
        param.grad.mul_(min(1.0, 0.5 / float(norm)))


def _by_torch(model):
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)


def said(folder, args, clip=lambda model: None):
    return asked(trained(folder, args, clip), clip_not_applied.CODE)


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ["grad_clip", "max_grad_norm", "gradient_clip_val", "clip_grad", "gradient_clipping"])
def test_an_option_that_nobody_reads_is_to_be_confirmed(tmp_path, name):
    (finding,) = said(tmp_path / "run", argparse.Namespace(**{name: 0.5}))[0]
    assert finding.severity == "confirm"
    assert finding.claim.startswith(
        f"The configuration declares {name} 0.5, and at 6 sampled updates on rank 0 the norm"
    )


@pytest.mark.parametrize("clip", [_by_hand, _by_torch])
def test_clipping_whoever_does_it_is_left_alone(tmp_path, clip):
    assert said(tmp_path / "run", argparse.Namespace(grad_clip=0.5), clip) == ([], [])


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "options",
    [
        {"grad_clip": 1e6},
        {"grad_clip": 0.0},
        {"grad_clip": None},
        {"grad_clip": True},
        {"clip_grad": 0.5, "clip_mode": "agc"},
        {"gradient_clip_val": 0.5, "gradient_clip_algorithm": "value"},
        {"clip_range": 0.2},
    ],
)
def test_what_declares_no_norm_that_is_passed_is_left_alone(tmp_path, options):
    assert said(tmp_path / "run", argparse.Namespace(**options))[0] == []


class _OwnHook:
    automatic_optimization = False

    def configure_gradient_clipping(self, optimizer):
        self.clip_gradients(optimizer, 0.5, "norm")


class _ByValue(_OwnHook):
    def configure_gradient_clipping(self, optimizer):
        self.clip_gradients(optimizer, 0.5, "value")


def test_a_hook_of_lightning_is_told_where_it_clips_by_a_norm():
    trainer = argparse.Namespace(lightning_module=_OwnHook())
    assert _hooks_of_module(trainer)["automatic_optimization"] is False
    assert _hooks_of_module(argparse.Namespace(lightning_module=_ByValue())) == {}
    assert _hooks_of_module(argparse.Namespace()) == {}
