"""That a gradient is the derivative of its loss, on small models whose first step is made here as often as asked."""

import re

import numpy as np
import pytest
import torch
from torch import nn

from trueline.capture.trial.moved_weights import Trained, signs_of, still_rows
from trueline.trials.batch.first_steps import FirstStep
from trueline.trials.batch.gradient import judge_gradient

UNIT = 2.0**-24


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient / 2


class Job:
    """Residual layers; ``wrong`` is put on what one adds, ``scale`` on the gradient, and ``last`` on the loss."""

    def __init__(self, wrong=None, *, at=2, scale=1.0, dtype=torch.float32, last=None):
        torch.manual_seed(1)
        self.layers = nn.ModuleList(nn.Linear(24, 24, dtype=dtype) for _ in range(5))
        self.inputs, self.targets = torch.randn(2, 32, 24, dtype=dtype)
        self.wrong, self.at, self.scale, self.last = wrong, at, scale, last
        self.trained = [
            Trained.of_param(name, p, index=n) for n, (name, p) in enumerate(self.layers.named_parameters())
        ]
        self.signs, self.runs = {}, 0

    def loss(self):
        x = self.inputs
        for number, layer in enumerate(self.layers):
            more = layer(torch.tanh(x))
            x = x + (self.wrong(more) if self.wrong and number == self.at else more)
        loss = ((x - self.targets) ** 2).mean()
        return loss if self.last is None else self.last(loss, x)

    def step(self, direction="across", move=0.0, among=(), *, nudge=0.0):
        self.runs += 1
        before = [each.param.detach().clone() for each in self.trained]
        with torch.no_grad():
            for each in self.trained:
                each.param.add_(each.param * signs_of(each.param, seed=each.index) * nudge)
        for place in among:
            self.trained[place].move(move, self.signs.get(place) if direction == "along" else None)
        self.layers.zero_grad()
        loss = self.loss()
        if loss.requires_grad:
            (loss * self.scale).backward()
        slopes = [each.slope() for each in self.trained]
        if not among and not nudge:
            packed = {each.index: each.packed() for each in self.trained}
            self.signs = {place: signs for place, signs in packed.items() if signs is not None}
        with torch.no_grad():
            for each, kept in zip(self.trained, before, strict=True):
                each.param.copy_(kept)
        unit = UNIT if self.inputs.dtype == torch.float32 else 2.0**-8
        return FirstStep(np.array([float(loss.detach().double())]), {}, [{"slopes": slopes, "unit": unit}])

    def judged(self):
        base = self.step()
        return judge_gradient(base, self.step(nudge=UNIT), self.step)


def test_a_sound_gradient_is_that_of_the_loss_in_both_directions():
    job = Job()
    found = job.judged()
    assert found.holds, found.says
    assert "along it" in found.says
    assert "across it" in found.says
    assert job.runs == 2 + 2 * 6


@pytest.mark.parametrize("wrong", [torch.Tensor.detach, Halved.apply, lambda x: 0.98 * x + 0.02 * x.detach()])
def test_a_wrong_backward_is_found_where_it_is(wrong):
    found = Job(wrong).judged()
    assert found.holds is False, found.says
    names = found.says.split("It is wrong in ")[1]
    assert names.startswith(("2.weight", "2.bias", "one of 2.weight … 2.bias")), found.says
    assert "right in all behind it" in found.says
    assert any("autograd.Function" in line for line in found.next)


@pytest.mark.parametrize("scale", [1 / 8, 4.0, 65536.0])
def test_a_factor_of_all_of_it_is_told_and_is_no_fault_of_the_backward(scale):
    found = Job(scale=scale).judged()
    assert found.holds
    factor, off = re.search(
        r"it is (\S+) \(to within (\S+) of it\) times that of the losses' mean", found.says
    ).groups()
    # the factor is measured: its last digit hangs on the order in which a processor adds
    assert float(factor) == pytest.approx(scale, rel=1.05 * float(off) + 5e-4)  # rounded to two digits, and to four
    assert float(off) < 0.02
    assert "division by micro-batches" in found.next[0]


def test_the_other_sign_is_no_factor():
    assert Job(scale=-1.0).judged().holds is False


def test_a_parameter_that_the_loss_reaches_without_a_gradient_is_found():
    class Unseen(Job):
        def loss(self):
            return super().loss() + (self.layers[4].weight.detach() ** 2).sum()

    assert Unseen().judged().holds is False


@pytest.mark.parametrize("seed", range(12))
def test_where_the_loss_jumps_a_gradient_is_not_denied(seed):
    stream = torch.Generator().manual_seed(seed)
    experts = torch.randn(24, 24, generator=stream)

    def jumps(loss, x):
        return loss + 0.05 * experts[(x @ experts).argmax(1)].sum(1).mean()

    found = Job(last=jumps).judged()
    assert found.holds is not False, found.says


def test_the_row_of_padding_has_no_gradient_by_design():
    table = nn.Embedding(6, 4, padding_idx=0)
    param = Trained.of_param("weight", table.weight, index=0, still=still_rows(nn.Sequential(table))[id(table.weight)])
    before = table.weight.detach().clone()
    param.move(0.1)
    assert (table.weight.detach() != before).any(1).tolist() == [False, True, True, True, True, True]


def test_in_bfloat16_it_cannot_be_told():
    found = Job(dtype=torch.bfloat16).judged()
    assert (found.holds, found.is_looked_at) == (None, True)
    assert "rounded too coarsely" in found.says


def test_without_a_gradient_it_is_not_looked_at():
    found = Job(last=lambda loss, x: loss.detach()).judged()
    assert (found.holds, found.is_looked_at) == (None, False)
