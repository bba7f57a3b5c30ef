"""What others put around torch while a step is recorded: their dispatch modes and tensors, and compiled functions."""

from __future__ import annotations

import contextlib

import pytest
import torch
from tests.unit.recording import Recording
from tests.unit.test_capture_record import by_site, made, trained
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode


class Looking(TorchDispatchMode):
    """Looks at what every kernel returns, with kernels of its own."""

    def __init__(self):
        super().__init__()
        self.looks = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point():
            assert torch.isfinite(result).all()
            self.looks += 1
        return result


def recorded(mode):
    model, optimizer, x = made()
    recording = Recording(model, {"preset": "mix"}, optimizer)
    recording.session.open_step(0)
    with mode:
        trained(model, optimizer, x)
    recording.session.drain(wait=True)
    return by_site(recording.steps[0]), list(model.parameters())


def test_a_dispatch_mode_of_the_users_adds_no_rows():
    mode = Looking()
    bare, params = recorded(contextlib.nullcontext())
    looked_at, same_params = recorded(mode)
    assert mode.looks > 20
    assert looked_at.keys() == bare.keys()
    assert all(torch.equal(a, b) for a, b in zip(params, same_params, strict=True))


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        return torch.ops.aten.mul.Tensor(grad, 2)


def test_what_a_backward_function_calls_itself_stays_seen():
    model = nn.Linear(2, 2)
    rows = Recording(model, {"preset": "ops"}).step(0, lambda: Doubling.apply(model(torch.ones(1, 2))).sum().backward())
    assert {"0/bwd/mul#0:in0", "0/bwd/mul#0:out0"} <= by_site(rows).keys()
