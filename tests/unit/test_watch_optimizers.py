"""Which optimizer's update ends a step, however it is wrapped."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import trueline


class AsAccelerateWraps(torch.optim.Optimizer):
    """An optimizer itself, whose update is that of the one inside; its own ``__init__`` is never called."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    def step(self, closure=None):
        return self.optimizer.step(closure)


class AsLightningWraps:
    """No optimizer; it has one."""

    def __init__(self, optimizer):
        self.optimizer = optimizer

    def step(self):
        self.optimizer.step()


WRAPS = {
    "bare": lambda optimizer: optimizer,
    "accelerate": AsAccelerateWraps,
    "lightning": AsLightningWraps,
    "twice": lambda optimizer: AsLightningWraps(AsAccelerateWraps(optimizer)),
}


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("wrap", WRAPS)
def test_steps_are_those_of_the_optimizer_inside(tmp_path, wrap, several):
    model = nn.Linear(2, 2)
    wrapped = WRAPS[wrap](torch.optim.SGD(model.parameters(), lr=0.1))
    with trueline.watch(model, [wrapped] if several else wrapped, out=tmp_path / "run"):
        for _ in range(2):
            model(torch.ones(1, 2)).sum().backward()
            wrapped.step()
    assert trueline.open_run(tmp_path / "run").steps.tolist() == [0, 1]
