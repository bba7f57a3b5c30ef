"""grad-explosion: layers that each multiply the gradient until it overflows. Growth alone or one bad layer is none."""

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import trueline
from trueline.laws.overflow import grad_explosion
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

MAX_HALF = 65_504.0


class Chain(nn.Module):
    """Layers y = x * factor of which the gradient to x is that to y times the factor; forward divides it out again."""

    def __init__(self, factors, dtype):
        super().__init__()
        self.layers = nn.ModuleList(Layer(factor) for factor in factors)
        self.first = nn.Parameter(torch.ones(4, dtype=dtype))

    def forward(self):
        x = self.first
        for layer in self.layers:
            x = layer(x)
        return x


class Layer(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return Growing.apply(x, self.factor)


class Growing(torch.autograd.Function):
    """The value as it is, and its gradient times a factor."""

    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.factor, None


def recorded(path: Path, model: nn.Module, *, scale=1.0, steps=1, backward=lambda loss: loss.backward(), **plan) -> Run:
    """Each gradient of the output of the last layer is ``scale``."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watch = trueline.watch(model, optimizer, out=str(path), plan={"preset": "modules", **plan})
    for _ in range(steps):
        with watch.step():
            backward((model().float() * scale).sum())
            optimizer.step()
            optimizer.zero_grad()
    watch.close()
    return Run(path)


def half(factors):
    return Chain(factors, torch.float16)


def findings_of(path, factors, **options):
    return grad_explosion.check(recorded(path / "run", half(factors), **options))


def test_layers_that_multiply_until_they_overflow_are_told_with_their_place(tmp_path):
    (finding,) = findings_of(tmp_path, [8.0] * 8)  # gradients 1, 8, ... 32,768 at layers 7 ... 2, then 262,144
    assert (finding.code, finding.severity, finding.ranks, finding.step_first) == ("grad-explosion", "error", (0,), 0)
    assert finding.measured == pytest.approx(8.0**5)
    assert finding.evidence["fold_per_layer"] == pytest.approx(8.0)
    assert finding.evidence["layers"] == [
        {"site": f"0.0/r0/bwd/layers.{7 - i}#0:out0", "largest": 8.0**i} for i in range(6)
    ]
    assert finding.sites == tuple(f"0.0/r0/bwd/layers.{i}#0:out0" for i in (1, 2, 7))
    assert finding.claim == (
        "Gradients grew 32,768-fold over 5 layers, from 1 at layers.7#0 to 32,768 at layers.2#0, and were not finite "
        "at layers.1#0, on rank 0 at step 0 (float16 ends at 65,504)."
    )
    assert finding.false_alarm_rate == 0.0


def test_a_last_layer_within_a_factor_of_two_of_the_end_is_a_warning(tmp_path):
    (finding,) = findings_of(tmp_path, [1.0] + [8.0] * 4, scale=10.0)  # 10 ... 40,960, and nothing beyond
    assert finding.severity == "warning"
    assert finding.claim.endswith(": twice that overflows float16.")
    assert finding.measured == pytest.approx(8.0**4)


def test_a_hundredfold_over_three_layers_is_the_least_that_counts(tmp_path):
    (finding,) = findings_of(tmp_path / "a", [1.0, 4.0, 5.0, 5.0], scale=400.0)  # 400 ... 40,000
    assert finding.measured == 100.0
    assert findings_of(tmp_path / "b", [1.0, 4.0, 5.0, 4.5], scale=400.0) == []


@pytest.mark.parametrize(
    ("factors", "scale"),
    [
        ([8.0] * 5, MAX_HALF / 2 / 8**4),  # just as far as half of the end
        ([1.0] * 3 + [1e6] + [1.0] * 4, 1.0),  # one layer, not many
        ([200.0] * 3, 1.0),  # two layers only
        ([1.0] * 8, math.inf),  # nothing finite before it
        ([2.0] * 8, 4_000.0),  # less than a hundredfold
        ([8.0, 200.0, 0.5, 200.0, 0.5, 200.0], 100.0),  # not steadily
    ],
)
def test_what_is_no_growth_from_layer_to_layer_to_the_end_is_silent(tmp_path, factors, scale):
    assert findings_of(tmp_path, factors, scale=scale) == []


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_growth_within_the_range_is_silent_and_beyond_it_is_told(tmp_path, dtype):
    assert grad_explosion.check(recorded(tmp_path / "a", Chain([1000.0] * 10, dtype))) == []
    (finding,) = grad_explosion.check(recorded(tmp_path / "b", Chain([1000.0] * 15, dtype)))
    assert finding.evidence["dtype"] == str(dtype).removeprefix("torch.")


def test_growth_begins_where_it_begins(tmp_path):
    (finding,) = findings_of(tmp_path, [8.0] * 6 + [1.0, 0.5], scale=64.0)  # 64, 32, 32, 256 ... 16,384, 131,072
    assert finding.evidence["layers"][0] == {"site": "0.0/r0/bwd/layers.5#0:out0", "largest": 32.0}


def test_the_calls_of_one_layer_are_a_chain(tmp_path):
    class Again(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.first = Layer(8.0), nn.Parameter(torch.ones(4, dtype=torch.float16))

        def forward(self):
            x = self.first
            for _ in range(8):
                x = self.layer(x)
            return x

    (finding,) = grad_explosion.check(recorded(tmp_path / "run", Again()))
    assert finding.sites[0] == "0.0/r0/bwd/layer#1:out0"


def test_a_gradient_scaler_makes_it_an_info(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)

    def backward(loss):
        with torch.autocast("cpu", torch.float16):
            scaler.scale(loss).backward()

    model = half([8.0] * 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with torch.autocast("cpu", torch.float16):
        watch = trueline.watch(model, optimizer, out=str(tmp_path / "run"), plan={"preset": "modules"})
        with watch.step():
            backward(model().float().sum())
            optimizer.step()
        watch.close()
    (finding,) = grad_explosion.check(Run(tmp_path / "run"))
    assert finding.severity == "info"
    assert finding.claim.endswith("A gradient scaler is at work: it skips such a step.")


def test_the_first_step_that_shows_it_is_told(tmp_path):
    model = half([1.0] * 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    watch = trueline.watch(model, optimizer, out=str(tmp_path / "run"), plan={"preset": "modules"})
    for step in range(4):
        for layer in model.layers:
            layer.factor = 8.0 if step >= 2 else 1.0
        with watch.step():
            model().float().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    watch.close()
    (finding,) = grad_explosion.check(Run(tmp_path / "run"))
    assert finding.step_first == 2


def test_a_run_without_gradients_or_records_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="no gradient was recorded"):
        grad_explosion.check(recorded(tmp_path / "fwd", half([8.0] * 8), phases=["fwd"]))
    with pytest.raises(CannotTell, match="no step was recorded"):
        grad_explosion.check(recorded(tmp_path / "workers", half([8.0] * 8), preset="workers"))
