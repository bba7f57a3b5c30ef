"""Which optimizer's update ends a step, however it is wrapped."""

from __future__ import annotations

import contextlib

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


def loss_of(model):
    return model(torch.randn(4, 2)).square().mean()


def steps_of(path):
    run = trueline.open_run(path)
    assert [finding.claim for finding in run.live_findings] == []
    return run.steps.tolist()


class Inherits(torch.optim.SGD):
    """Its step, which torch wraps in hooks, calls the one of its base class, which torch wraps too."""

    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize("kind", [torch.optim.SGD, Inherits, torch.optim.LBFGS])
@pytest.mark.parametrize("is_given", [True, False])
def test_watching_that_begins_in_a_closure_loses_and_merges_no_step(tmp_path, kind, is_given):
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # torch wraps the step of a class as it makes the first
    model = nn.Linear(2, 2)
    optimizer = kind(model.parameters(), lr=0.1)
    watches = []

    def closure():
        if not watches:
            watches.append(trueline.watch(model, optimizer if is_given else None, out=tmp_path / "run"))
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure=closure)
    watches[0].close()
    assert steps_of(tmp_path / "run") == [0, 1, 2]
    assert trueline.open_run(tmp_path / "run").pivot("grad_norm")[1].all()


def test_a_closure_that_raised_ends_no_step_and_the_next_one_does(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def closure(fails):
        loss = loss_of(model)
        loss.backward()
        if fails:
            raise ValueError("mine")
        return loss

    with trueline.watch(model, optimizer, out=tmp_path / "run"):
        for fails in (False, True, False, False):
            with contextlib.suppress(ValueError):
                optimizer.step(lambda fails=fails: closure(fails))
    assert steps_of(tmp_path / "run") == [0, 1, 2]


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize(("order", "steps"), [("ab ab ab", 3), ("a b a b", 4), ("ab a ab", 3), ("aab aab", 4)])
def test_optimizers_of_one_model_end_a_step_once_a_backward(tmp_path, order, steps, is_given):
    model = nn.Linear(2, 2)
    optimizers = {"a": torch.optim.SGD([model.weight], lr=0.1), "b": torch.optim.Adam([model.bias])}
    with trueline.watch(model, list(optimizers.values()) if is_given else None, out=tmp_path / "run"):
        for updates in order.split():
            loss_of(model).backward()
            for name in updates:
                optimizers[name].step()
    assert steps_of(tmp_path / "run") == list(range(steps))


def test_groups_that_are_updated_one_by_one_end_one_step(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD([{"params": [model.weight]}, {"params": [model.bias]}], lr=0.1)
    groups = optimizer.param_groups
    with trueline.watch(model, optimizer, out=tmp_path / "run"):
        for _ in range(3):
            loss_of(model).backward()
            for group in groups:
                optimizer.param_groups = [group]
                optimizer.step()
    assert steps_of(tmp_path / "run") == [0, 1, 2]


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.parametrize("copy", [lambda x: x.float().clone(), lambda x: nn.Parameter(x.float())])
def test_an_optimizer_of_master_copies_ends_the_steps_of_the_model_that_it_trains(tmp_path, copy, is_given):
    model, other = nn.Linear(2, 2, dtype=torch.bfloat16), nn.Linear(3, 3)
    params = list(model.parameters())
    optimizer = torch.optim.AdamW(params, lr=0.1)
    masters = [copy(param.detach()) for param in params]
    optimizer.param_groups[0]["params"] = masters
    another = torch.optim.SGD(other.parameters(), lr=0.1)
    with trueline.watch(model, optimizer if is_given else None, out=tmp_path / "run"):
        for _ in range(3):
            model(torch.randn(4, 2, dtype=torch.bfloat16)).square().mean().backward()
            for param, master in zip(params, masters, strict=True):
                master.grad, param.grad = param.grad.float(), None
            optimizer.step()
            with torch.no_grad():
                for param, master in zip(params, masters, strict=True):
                    param.copy_(master)
            other(torch.randn(4, 3)).sum().backward()
            another.step()
    assert steps_of(tmp_path / "run") == [0, 1, 2]


def test_an_update_that_a_scaler_left_out_ends_no_step(tmp_path):
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    with trueline.watch(model, optimizer, out=tmp_path / "run"):
        for scale in (1.0, float("inf"), 1.0):
            scaler.scale(loss_of(model) * scale).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    assert steps_of(tmp_path / "run") == [0, 1]
