"""What is copied around an update: the training is the same bit for bit, whatever the optimizer is and does."""

import random
from types import SimpleNamespace

import pytest
import torch
from tests.unit.trained_updates import adamw, mlp, trained
from torch import nn

import trueline
from trueline.capture.probes.around_update import update_slices
from trueline.capture.probes.around_update.sampling import EARLY
from trueline.capture.probes.around_update.update_slices import (
    FEWER,
    FIRST,
    LENGTH,
    NUM_SLICES,
    UpdateSample,
    law_of,
    num_slices,
    sample_slices,
)
from trueline.judge.series.sampled_updates import sampled_updates


class Eightbit(torch.optim.Optimizer):
    """States in bytes, of the same shape as the parameter and not."""

    def __init__(self, params):
        super().__init__(params, {"lr": 0.01, "note": object(), "bits": 8})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["state1"] = torch.zeros(param.shape, dtype=torch.uint8)
                self.state[param]["qmap"] = torch.zeros(256)
                param.sub_(group["lr"] * param.grad.sign())


class Odd(nn.Module):
    """Parameters that are complex, empty, of no dimension, not contiguous, and without a gradient."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.turned = nn.Parameter(torch.randn(4, 16).t())
        self.phase = nn.Parameter(torch.randn(4, dtype=torch.complex64))
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.unused = nn.Parameter(torch.ones(3))

    def to(self, dtype):
        return self

    def forward(self, x):
        return (x @ self.turned) * self.scale + (self.phase * self.phase.conj()).real + self.empty.sum()


class Sparse(nn.Module):
    """An embedding whose gradient is sparse, looked up by what the input rounds to."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 4, sparse=True)

    def forward(self, x):
        return self.table((x.abs() * 3).long().clamp(max=7))


def with_loss(optimizer):
    optimizer.step(optimizer.loss)


def with_closure(model, make=lambda params: torch.optim.LBFGS(params, lr=0.1, max_iter=3)):
    optimizer = make(model.parameters())
    x = torch.randn(8, 16)

    def loss():
        optimizer.zero_grad()
        value = model(x).square().mean()
        value.backward()
        return value

    optimizer.loss = loss
    return optimizer


def added(step, model, optimizer):
    if step == 3:
        optimizer.add_param_group({"params": [model[3].weight], "lr": 1e-2})


def poisoned(step, model, optimizer):
    if step == 3:
        with torch.no_grad():
            model[0].weight.fill_(float("nan"))


def freed(step, model, optimizer):
    if step == 3:
        for param in model.parameters():
            param.data = param.data.clone()
        for state in optimizer.state.values():
            state.update({name: value.clone() for name, value in state.items()})


def hooked(step, model, optimizer):
    """Hooks of the user's own that change gradients and parameters, and that are there before ours."""

    def doubles(*_):
        for param in model.parameters():
            param.grad.mul_(2)

    def shrinks(*_):
        model[0].weight.data.mul_(0.5)

    if step == 0:
        optimizer.register_step_pre_hook(doubles)
        optimizer.register_step_post_hook(shrinks)


STRANGE = {
    "plain": {},
    "a rate on a tensor": {"make": lambda model: adamw(model, lr=torch.tensor(1e-3))},
    "bfloat16, fused": {"make": lambda model: adamw(model, foreach=None, fused=True), "dtype": torch.bfloat16},
    "a closure": {"make": with_closure, "step": with_loss},
    "a closure of AdamW": {"make": lambda model: with_closure(model, torch.optim.AdamW), "step": with_loss},
    "sparse": {"model": Sparse, "make": lambda model: torch.optim.SparseAdam(model.parameters())},
    "odd parameters": {"model": Odd},
    "groups added": {"make": lambda model: adamw(model[0]), "before": added},
    "NaN": {"before": poisoned},
    "tensors replaced": {"before": freed},
    "hooks of the user's own": {"before": hooked},
    "8-bit states": {"make": lambda model: Eightbit(model.parameters())},
    "an optimizer of nothing that trains": {"make": lambda model: adamw(nn.Linear(2, 2))},
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", STRANGE)
def test_training_is_the_same_and_nothing_is_reported(tmp_path, name):
    settings = {"steps": 8, **STRANGE[name]}
    plain, watched = trained(None, **settings), trained(tmp_path / "run", **settings)
    assert all(torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in zip(plain, watched, strict=True))
    run = trueline.open_run(tmp_path / "run")
    assert run.live_findings == []
    laws = ("update-", "param-", "optimizer-state")
    told = [finding for finding in trueline.check(run).findings if finding.is_grave]
    assert [finding.claim for finding in told if finding.code.startswith(laws)] == []


def listed_twice(params):
    params = list(params)
    return torch.optim.AdamW(params + params, lr=1e-2)


@pytest.mark.parametrize(
    ("make", "codes", "state"),
    [
        (torch.optim.AdamW, [], "judged"),
        (listed_twice, ["optimizer-state-stale", "update-magnitude"], "judged"),
        (lambda params: torch.optim.LBFGS(params, lr=0.1, max_iter=3), [], "partly"),
    ],
    ids=["AdamW", "parameters listed twice", "LBFGS"],
)
def test_an_update_that_calls_its_closure_once_is_judged(tmp_path, make, codes, state):
    trained(tmp_path / "run", steps=8, make=lambda model: with_closure(model, make), step=with_loss)
    report = trueline.check(tmp_path / "run")
    told = [finding.code for finding in report.findings if finding.is_grave]
    assert sorted({*told}) == codes
    assert next(asked.state for asked in report.judged.questions if asked.question == "updates") == state


def update(optimizer):
    optimizer.step()
    optimizer.zero_grad()


def test_an_optimizer_in_the_backward_pass(tmp_path):
    def make(model):
        for param in model.parameters():
            own = torch.optim.SGD([param], lr=0.01, momentum=0.9)
            param.register_post_accumulate_grad_hook(lambda of, own=own: update(own))
        return torch.optim.SGD(model.parameters(), lr=0.0)

    plain, watched = trained(None, make, steps=6), trained(tmp_path / "run", make, steps=6)
    assert all(map(torch.equal, plain, watched))
    assert trueline.check(tmp_path / "run").findings == ()


def test_what_fails_in_it_ends_it_alone(tmp_path, monkeypatch):
    plain = trained(None, steps=6)
    monkeypatch.setattr(UpdateSample, "after", lambda self: 1 / 0)
    assert all(map(torch.equal, plain, trained(tmp_path / "run", steps=6)))
    (finding,) = trueline.open_run(tmp_path / "run").live_findings
    assert finding.claim.startswith("Watching of updates stopped on rank 0 at step 0")


def test_values_are_those_of_the_parameters(tmp_path):
    """Compared with copies that the training makes by itself; hooks that come after change them again."""
    seen = {}

    def copies(step, model, optimizer):
        seen[step] = {name: param.detach().flatten().clone() for name, param in model.named_parameters()}

    trained(tmp_path / "run", steps=6, before=copies)
    slices = sampled_updates(trueline.open_run(tmp_path / "run")).slices
    assert {one.name for one in slices} == set(seen[0])
    for one in slices:
        of, num = seen[one.step][one.name], len(one.before["param"])
        places = of.unfold(0, num, 1).double()
        assert (places == torch.tensor(one.before["param"])).all(1).any()
        if one.step + 1 in seen:
            after = seen[one.step + 1][one.name].unfold(0, num, 1).double()
            assert (after == torch.tensor(one.after["param"])).all(1).any()


def layout_of(*params):
    held = {id(param): place for place, param in enumerate(params)}
    return SimpleNamespace(frozen=(), index_of=held, names="abcdefgh"[: len(params)], params=params, gone=None)


def test_parameters_are_looked_at_in_rotation():
    params = [nn.Parameter(torch.zeros(100)) for _ in range(3 * NUM_SLICES)]
    layout = SimpleNamespace(frozen=(), index_of={}, names=(), params=())
    optimizer, first, seen = torch.optim.SGD(params, lr=1.0), 0, []
    for step in range(3):
        places, first = sample_slices(optimizer, layout, first=first, random=random.Random(step))
        assert all(place.num == LENGTH for place in places)
        seen += [place.position for place in places]
    assert seen == list(range(3 * NUM_SLICES))


def test_of_the_first_samples_most_are_small_and_the_rotation_goes_on():
    params = [nn.Parameter(torch.zeros(100)) for _ in range(3 * NUM_SLICES)]
    layout = SimpleNamespace(frozen=(), index_of={}, names=(), params=())
    optimizer, first, seen = torch.optim.SGD(params, lr=1.0), 0, []
    assert [num_slices(age) for age in (FIRST - 1, EARLY)] == [NUM_SLICES, NUM_SLICES]
    for age in range(FIRST, EARLY):
        slices, first = sample_slices(optimizer, layout, first=first, num=num_slices(age), random=random.Random(age))
        seen += [param_slice.position for param_slice in slices]
    assert seen == list(range((EARLY - FIRST) * FEWER))


def test_a_slice_of_what_is_not_contiguous_is_of_one_row():
    param = nn.Parameter(torch.arange(64.0).view(4, 16).t())
    param.grad = param.detach().contiguous() * 2
    (param_slice, *_), _ = sample_slices(
        torch.optim.SGD([param], lr=1.0), layout_of(param), first=0, random=random.Random(3)
    )
    assert param_slice.num == 4
    assert torch.equal(param_slice.view(param), param.detach().flatten()[param_slice.start : param_slice.start + 4])
    assert torch.equal(param_slice.view(param.grad), 2 * param_slice.view(param))


def test_memory_that_other_processes_write_to_is_left_out():
    param = nn.Parameter(torch.zeros(20).share_memory_())
    assert sample_slices(torch.optim.SGD([param], lr=1.0), layout_of(param), first=0, random=random.Random(0))[0] == []


class Renamed(torch.optim.AdamW):
    """Nothing of its own."""


class Filtered(torch.optim.AdamW):
    """Another rule of which parameters are updated."""

    def _init_group(self, *args):
        return super()._init_group(*args)


def test_an_optimizer_is_known_by_its_step():
    params = list(mlp().parameters())
    assert law_of(torch.optim.AdamW(params)) == "AdamW"
    assert law_of(torch.optim.Adam(params)) == "Adam"
    assert law_of(Renamed(params)) == "AdamW"
    assert law_of(Filtered(params)) == ""
    assert law_of(torch.optim.RAdam(params)) == ""
    assert law_of(Eightbit(params)) == ""


def test_secrets_in_settings_are_not_kept():
    param = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([{"params": [param], "api_key": "sk-abcdefghijklmnopqrstuvwxyz0123456789"}], lr=1.0)
    places, _ = sample_slices(optimizer, layout_of(param), first=0, random=random.Random(0))
    assert "sk-abc" not in str(update_slices.UpdateSample(optimizer, layout_of(param), places).facts)
