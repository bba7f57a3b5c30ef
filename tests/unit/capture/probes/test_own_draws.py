"""rng-streams: a generator of the program's own that begins again is told with its line, and training is as it was."""

import copy
import subprocess

import pytest
import torch
from tests.unit.asked import asked
from torch import nn
from torch.nn import functional

import trueline
from trueline.capture.probes import own_draws as probe

ROWS, WIDTH, STEPS = 8, 6, 8


class Noisy(nn.Module):
    """Adds to its input what ``noise(step, x)`` returns."""

    def __init__(self, noise):
        super().__init__()
        self.last, self.noise, self.step = nn.Linear(WIDTH, WIDTH), noise, 0

    def forward(self, x):
        self.step += 1
        return self.last(x + self.noise(self.step, x))


def trained(out, noise, *, model=None, before=lambda step: None, steps=STEPS):
    """The parameters after some steps; watched into ``out`` unless that is None."""
    torch.manual_seed(1)
    model = Noisy(noise) if model is None else model
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = None if out is None else trueline.watch(model, updates, out=out, plan={"every": 1})
    for step in range(steps):
        before(step)
        functional.mse_loss(model(torch.rand(ROWS, WIDTH)), torch.zeros(ROWS, WIDTH)).backward()
        updates.step()
        updates.zero_grad()
    if watch is not None:
        watch.close()
    return [param.detach().clone() for param in model.parameters()]


def found_in(out):
    return [each for each in asked(out, "rng-streams")[0] if "called_at" in each.evidence]


def said(out):
    return [each.severity for each in found_in(out)]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


OWN = seeded(5)

AGAIN = [
    lambda step, x: torch.randn(x.shape, generator=seeded()),
    lambda step, x: torch.randn(x.shape, generator=torch.Generator()),
    lambda step, x: torch.rand(x.shape, generator=seeded()),
    lambda step, x: torch.empty_like(x).normal_(generator=seeded()),
    lambda step, x: torch.bernoulli(torch.full_like(x, 0.5), generator=OWN.manual_seed(3)),
    lambda step, x: torch.randint(2, (len(x), 1), generator=seeded()),
    lambda step, x: torch.normal(x.detach(), torch.ones_like(x), generator=seeded()),
    lambda step, x: torch.multinomial(torch.ones(len(x), 4), 1, generator=seeded()),
]
GOES_ON = [
    lambda step, x: torch.randn(x.shape, generator=OWN),
    lambda step, x: torch.randn(x.shape, generator=seeded(step)),
    lambda step, x: torch.randn(x.shape),
    lambda step, x: torch.randn(x.shape, generator=torch.default_generator),
    lambda step, x: torch.randn(x.shape, generator=seeded()) if step % 3 == 0 else 0 * x,
]


@pytest.mark.in_turn
@pytest.mark.parametrize("noise", AGAIN)
def test_noise_that_begins_again_in_each_forward_pass_is_told(tmp_path, noise):
    trained(tmp_path / "run", noise)
    (finding,) = found_in(tmp_path / "run")
    assert (finding.severity, finding.evidence["kind"]) == ("warning", "begins-again")
    assert "test_own_draws.py:" in finding.claim
    assert finding.measured == STEPS


@pytest.mark.parametrize("noise", GOES_ON)
def test_noise_that_goes_on_or_comes_now_and_then_is_left_alone(tmp_path, noise):
    trained(tmp_path / "run", noise)
    assert said(tmp_path / "run") == []


def test_a_projection_that_is_drawn_anew_on_purpose_is_for_information(tmp_path):
    trained(tmp_path / "run", lambda step, x: x @ torch.randn(WIDTH, WIDTH, generator=seeded()))
    assert said(tmp_path / "run") == ["info"]


@pytest.mark.parametrize(("every", "found"), [(1, ["warning"]), (2, [])])
def test_draws_outside_of_the_model_are_seen(tmp_path, every, found):
    """An evaluation may begin again each time."""
    draw = lambda step: torch.randn(ROWS, 2, generator=seeded()) if step % every == 0 else None  # noqa: E731
    trained(tmp_path / "run", lambda step, x: 0 * x, before=draw, steps=12)
    assert said(tmp_path / "run") == found


def test_a_few_steps_are_not_enough(tmp_path):
    trained(tmp_path / "run", AGAIN[0], steps=4)
    assert said(tmp_path / "run") == []


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_is_compiled_once_and_computes_the_same(tmp_path, backend):
    from torch._dynamo.utils import counters

    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.5))
    both, graphs = [], []
    for out in (None, tmp_path / "run"):
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(copy.deepcopy(model), backend=backend)
        both.append(trained(out, None, model=compiled, before=lambda step: torch.rand(2, generator=OWN)))
        graphs.append(dict(counters["stats"]))
    assert graphs[0] == graphs[1]
    assert all(torch.equal(one, other) for one, other in zip(*both, strict=True))


@pytest.mark.parametrize("noise", [*AGAIN[:5], GOES_ON[1], GOES_ON[2]])
def test_training_is_the_same_to_the_bit(tmp_path, noise):
    torch.manual_seed(3)
    model = Noisy(noise)
    models = [nn.Sequential(each, nn.Dropout(0.5)) for each in (model, copy.deepcopy(model))]
    alone, watched = trained(None, noise, model=models[0]), trained(tmp_path / "run", noise, model=models[1])
    assert all(torch.equal(one, other) for one, other in zip(alone, watched, strict=True))


def test_two_models_that_are_watched_together_see_their_draws_and_torch_warns_of_nothing(python, tmp_path):
    """Torch warns once in a process of a kernel that takes the place of another."""
    script = """
import sys, warnings
warnings.simplefilter("error")
import torch, trueline
models = [torch.nn.Linear(4, 4) for _ in range(2)]
updates = [torch.optim.SGD(model.parameters(), 0.1) for model in models]
watches = [
    trueline.watch(model, update, out=f"{sys.argv[1]}/{name}", plan={"every": 1})
    for name, model, update in zip("ab", models, updates)
]
for _ in range(8):
    for model, update in zip(models, updates):
        model(torch.randn(8, 4, generator=torch.Generator())).square().sum().backward()
        update.step()
        update.zero_grad()
for watch in watches:
    watch.close()
"""
    done = subprocess.run([python, "-c", script, tmp_path], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    assert [len(trueline.open_run(tmp_path / name).texts("own_draws")) for name in "ab"] == [8, 8]


def test_no_kernel_is_left(tmp_path):
    trained(tmp_path / "run", GOES_ON[0])
    left = torch._C._dispatch_get_registrations_for_dispatch_key("BackendSelect")
    assert "aten::normal_" not in left


def test_a_state_that_cannot_be_read_ends_the_looking_and_not_the_training(tmp_path, monkeypatch, caplog):
    def broken(data):
        raise RuntimeError("no state")

    monkeypatch.setattr(probe, "digest_of", broken)
    trained(tmp_path / "run", AGAIN[0])
    assert said(tmp_path / "run") == []
    assert "own draws are not seen" in caplog.text
