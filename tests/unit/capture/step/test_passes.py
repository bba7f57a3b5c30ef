"""A step's loss, samples and tokens are those of the passes whose gradients it descends, whatever was thrown away."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import trueline

STEPS = 4


class Lora(nn.Module):
    """Its smallest parameters have no gradient in the first step, but for its last one."""

    def __init__(self):
        super().__init__()
        self.down = nn.ParameterList(nn.Parameter(torch.randn(3, 2)) for _ in range(4))
        self.up = nn.Parameter(torch.zeros(2, 3))

    def forward(self, x):
        return x + sum(x @ down for down in self.down) @ self.up


class Script:
    """A training that says of each step what it descends: the sum of ``descended`` losses, of batches as many."""

    def __init__(self, model=None):
        torch.manual_seed(0)
        self.model = model or nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.descended, self.truths = [], []

    def loss(self, scale=1.0):
        x = torch.randn(4, 3)
        return mse_loss(self.model(x), torch.randn(4, 3)) * scale

    def backward(self, loss, *, counts=True):
        loss.backward()
        if counts:
            self.descended.append(float(loss.detach()))

    def zero(self, how):
        if how == "model":
            self.model.zero_grad()
        elif how == "by hand":
            for param in self.model.parameters():
                param.grad = None
        elif how == "data":
            for param in self.model.parameters():
                if param.grad is not None:
                    param.grad.data.zero_()
        else:
            self.optimizer.zero_grad(set_to_none=how == "none")

    def update(self):
        self.optimizer.step()
        self.truths.append((sum(self.descended), len(self.descended)))
        self.descended = []


HOWS = ("none", "zeros", "model", "by hand", "data")


def diagnosed(script, how):
    script.backward(script.loss(7.0), counts=False)
    script.zero(how)
    script.backward(script.loss())
    script.update()
    script.zero(how)


def between(script, how):
    """Zeroed between a forward pass and its backward pass."""
    script.backward(script.loss(7.0), counts=False)
    loss = script.loss()
    script.zero(how)
    script.backward(loss)
    script.update()


def after_the_step(script, how):
    script.backward(script.loss())
    script.update()
    script.zero(how)


def accumulated(script, how):
    script.zero(how)
    for _ in range(3):
        script.backward(script.loss(1 / 3))
    script.update()


def in_evaluation_mode(script, how):
    script.model.eval()
    accumulated(script, how)
    script.loss(7.0)


def evaluated(script, how):
    """With a graph, which is lost, before each pass that trains."""
    script.zero(how)
    for _ in range(3):
        script.model.eval()
        script.loss(7.0)
        script.model.train()
        script.backward(script.loss(1 / 3))
    script.update()


def accumulated_after_a_look(script, how):
    script.backward(script.loss(7.0), counts=False)
    script.zero(how)
    for _ in range(3):
        script.backward(script.loss(1 / 3))
    script.update()
    script.zero(how)


def critic(script, how):
    """Two steps, each of a real and a generated batch; then another model's loss comes back through it."""
    script.generator = getattr(script, "generator", None) or nn.Linear(3, 3)
    for _ in range(2):
        script.zero(how)
        script.backward(script.loss())
        script.backward(script.model(script.generator(torch.randn(4, 3)).detach()).square().mean())
        script.update()
    (-script.model(script.generator(torch.randn(4, 3))).mean()).backward()


def frozen_critic(script, how):
    critic_step = script.model.requires_grad_
    script.zero(how)
    script.backward(script.loss())
    script.update()
    critic_step(False)
    generated = torch.randn(4, 3, requires_grad=True)
    (-script.model(generated).mean()).backward()
    critic_step(True)


def into_others(script, how):
    """A backward pass that leaves gradients at its inputs only."""
    script.zero(how)
    x = torch.randn(4, 3, requires_grad=True)
    script.model(x).sum().backward(inputs=[x])
    script.backward(script.loss())
    script.update()


def saliency(script, how):
    script.zero(how)
    x = torch.randn(4, 3, requires_grad=True)
    torch.autograd.grad(script.model(x).sum(), x)
    script.model(x)
    script.backward(script.loss())
    script.update()


def sharpness_aware(script, how):
    """SAM: the gradients of the first pass are gone when its second one begins."""
    script.backward(script.loss(), counts=False)
    with torch.no_grad():
        for param in script.model.parameters():
            param += 0.05 * param.grad
    script.zero(how)
    script.backward(script.loss())
    script.update()
    script.zero(how)


def surgery(script, how):
    """Gradients of two losses are put together by hand: both are descended."""
    params, found = list(script.model.parameters()), []
    for _ in range(2):
        script.zero(how)
        script.backward(script.loss())
        found.append([param.grad.clone() for param in params])
    for param, *both in zip(params, *found, strict=True):
        param.grad = sum(both)
    script.update()


WAYS = (
    diagnosed,
    between,
    after_the_step,
    accumulated,
    in_evaluation_mode,
    evaluated,
    accumulated_after_a_look,
    critic,
    frozen_critic,
    into_others,
)
WAYS += (saliency, sharpness_aware, surgery)


def train(way, how, out, *, model=None, watched=True):
    script = Script(model)
    watch = trueline.watch(script.model, script.optimizer, out=out) if watched else None
    for _ in range(STEPS):
        way(script, how)
    if watch is not None:
        watch.close()
    return script


def assert_recorded(path, truths):
    run = trueline.open_run(path)
    assert [finding.claim for finding in run.live_findings] == []
    losses, counts = zip(*truths, strict=True)
    np.testing.assert_allclose(run.pivot("loss")[0][:, 0], losses, rtol=1e-6)  # float32 losses, added up in float64
    assert run.pivot("num_micro")[0][:, 0].tolist() == list(counts)
    assert run.pivot("tokens")[0][:, 0].tolist() == [4 * count for count in counts]
    assert [len(digests) for digests in run.lists("sample_digests").values()] == [4 * count for count in counts]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("way", "how"),
    [(way, how) for way in WAYS for how in HOWS if how in HOWS[:2] or way is diagnosed],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_what_was_thrown_away_is_not_recorded(tmp_path, way, how):
    script = train(way, how, tmp_path / "run")
    assert_recorded(tmp_path / "run", script.truths)
    if how in ("none", "zeros"):
        unwatched = train(way, how, None, watched=False)
        pairs = zip(script.model.parameters(), unwatched.model.parameters(), strict=True)
        assert all(torch.equal(one, other) for one, other in pairs)


def test_micro_batches_count_where_gradients_are_zero_themselves(tmp_path):
    script = train(accumulated, "zeros", tmp_path / "run", model=Lora())
    assert_recorded(tmp_path / "run", script.truths)


def test_optimizers_that_take_turns_have_the_passes_of_their_own_step(tmp_path):
    script = Script()
    halves = list(script.model.parameters())[:2], list(script.model.parameters())[2:]
    optimizers = [torch.optim.SGD(half, lr=0.05) for half in halves]
    with trueline.watch(script.model, optimizers, out=tmp_path / "run"):
        for _ in range(STEPS):
            for script.optimizer in optimizers:
                diagnosed(script, "model")
    assert_recorded(tmp_path / "run", script.truths)


def test_a_gradient_that_its_optimizer_never_empties_hides_nothing(tmp_path):
    script = Script()
    script.optimizer = torch.optim.SGD(list(script.model.parameters())[2:], lr=0.05)
    with trueline.watch(script.model, script.optimizer, out=tmp_path / "run"):
        after_the_step(script, "none")  # the parameters of the first layer are let go uninvited from here on
        for _ in range(STEPS):
            diagnosed(script, "none")
    assert_recorded(tmp_path / "run", script.truths)
