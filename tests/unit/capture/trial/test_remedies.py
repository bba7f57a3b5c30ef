"""Remedies in a process: what they compute, that gradients go where they did, and what seeds they shift."""

import random

import numpy as np
import pytest
import torch
from torch import nn

from trueline.capture.trial.changes import Changes
from trueline.capture.trial.remedies import Remedy, computing


class Squares(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False, dtype=dtype)
        self.register_buffer("seen", torch.zeros((), dtype=dtype))

    def forward(self, x):
        y = self.inner(x)
        self.seen += 1
        return y * y / (y * y + 1), y.dtype


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_float32_inside_and_the_dtype_of_the_module_outside(dtype):
    torch.manual_seed(0)
    module, x = Squares(dtype), torch.full((2, 4), 3000.0, dtype=dtype)
    plain = module.forward
    y, inside = computing(module, plain, "fp32")(x)
    assert (inside, y.dtype, float(module.seen)) == (torch.float32, dtype, 1.0)
    assert torch.isfinite(y).all()
    y.float().sum().backward()
    assert module.inner.weight.grad.dtype == dtype
    assert torch.isfinite(module.inner.weight.grad).all()
    if dtype is torch.float16:
        assert torch.isnan(plain(x)[0]).any()


def test_autocast_is_off_inside_and_takes_what_comes_out():
    module = Squares(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        assert module(torch.ones(2, 4))[1] == torch.bfloat16
        y, inside = computing(module, module.forward, "fp32")(torch.ones(2, 4, dtype=torch.bfloat16))
        assert (inside, y.dtype, torch.is_autocast_enabled("cpu")) == (torch.float32, torch.float32, True)


def test_a_module_without_halves_computes_the_same_bits():
    torch.manual_seed(1)
    module, x = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), torch.randn(3, 2, 8)
    for kind in ("fp32", "cpu"):
        assert torch.equal(computing(module, module.forward, kind)(x), module(x))


def test_only_the_layer_that_is_named_is_clipped():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer, told = torch.optim.SGD(model.parameters(), lr=0.1), []
    remedy = Remedy("clip", "1", norm=0.5, tell=told.append)
    remedy._at_call(model)
    assert told == ["remedy:there 1", "remedy:clip 1"]
    for param in model.parameters():
        param.grad = torch.ones_like(param)
    remedy._clip(optimizer, (), {})
    assert torch.equal(model[0].weight.grad, torch.ones(4, 4))
    norm = torch.linalg.vector_norm(torch.cat([param.grad.flatten() for param in model[1].parameters()]))
    assert float(norm) == pytest.approx(0.5, rel=1e-4)
    for param in model.parameters():
        param.grad = torch.full_like(param, 1e-3)
    remedy._clip(optimizer, (), {})
    assert torch.equal(model[1].weight.grad, torch.full((4, 4), 1e-3))


def test_seeds_that_a_script_sets_are_shifted():
    changes = Changes(shift=3)
    drawn = []
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        changes._shifted(seed, 5)
    drawn = [float(torch.rand(())), random.random(), float(np.random.rand())]
    torch.manual_seed(8)
    random.seed(8)
    np.random.seed(8)
    assert drawn == [float(torch.rand(())), random.random(), float(np.random.rand())]
    changes._shifted(random.seed)
    changes._shifted(np.random.seed, None)
