"""A rank whose model becomes another one than the others' harms no training, is named, and the rest is compared."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

STEPS = 10


class Net(nn.Module):
    """Three layers, and a fourth that only some ranks have."""

    def __init__(self, *, extra=False):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 8)])
        self.side = nn.Linear(8, 8) if extra else None

    def forward(self, x):
        for layer in self.layers:
            weight = layer.weight.to(x.dtype)
            x = torch.tanh(nn.functional.linear(x, weight, layer.bias.to(x.dtype)))
        return x if self.side is None else x + self.side(x)


@dataclass(frozen=True)
class Event:
    """Something that happens on one rank before the forward pass of a step."""

    what: str
    rank: int
    step: int


def happen(what, net, optimizer, rest):
    layer = net.layers[1]
    if what == "freeze":
        layer.weight.requires_grad_(False)
    elif what == "unfreeze":
        net.layers[0].weight.requires_grad_(True)
    elif what == "replace":
        layer.weight = nn.Parameter(layer.weight.detach().clone())
    elif what == "replace modules":
        net.layers[1] = nn.Linear(16, 16, bias=True)
        net.layers[2] = nn.Linear(16, 8, bias=True)
        net.side = nn.Linear(8, 8)
    elif what == "add":
        net.side = nn.Linear(8, 8)
    elif what == "drop":
        net.layers[1] = nn.Identity()
        net.layers[1].weight, net.layers[1].bias = torch.eye(16), torch.zeros(16)
    elif what == "dtype":
        layer.weight.data = layer.weight.data.double()
        layer.weight.grad = None
    elif what == "optimizer group":
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))], "lr": 0.5})
    elif what == "extra model":
        other = nn.Linear(4, 4)
        second = torch.optim.SGD(other.parameters(), lr=0.1)
        other(torch.ones(1, 4)).sum().backward()
        second.step()
        rest.append((other, second))
    elif what == "raise":
        raise ZeroDivisionError("the user's own")


def reduce(net, world):
    """By hand, as a script does that knows what ranks may differ in: each by name, zeros where there is none."""
    for index, shape in enumerate([(16, 8), (16,), (16, 16), (16,), (8, 16), (8,)]):
        layer = net.layers[index // 2]
        param = getattr(layer, "bias" if index % 2 else "weight")
        grad = getattr(param, "grad", None) if isinstance(param, nn.Parameter) else None
        total = torch.zeros(shape) if grad is None else grad.float().clone()
        dist.all_reduce(total)
        if grad is not None:
            grad.copy_(total / world)


def train(rank, world, events, out, *, kind="manual", start=None, plan=None, syncs=True):
    """The bits that this rank ends with."""
    import trueline

    torch.manual_seed(0)
    net = Net(extra=start == ("extra", rank))
    net.layers[0].weight.requires_grad_(False)
    if start == ("frozen", rank):
        net.layers[2].weight.requires_grad_(False)
    model = nn.parallel.DistributedDataParallel(net, find_unused_parameters=True) if kind == "ddp" else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    watch = (
        trueline.watch(model, optimizer, out=out, plan={"every": 1, "params_every": 3} | (plan or {})) if out else None
    )
    rest = []
    mine = [event for event in events if event.rank == rank]
    try:
        for step in range(STEPS):
            due = [event.what for event in mine if event.step == step]
            if "leave" in due:
                break
            for what in due:
                happen(what, net, optimizer, rest)
            x = torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))
            model(x).square().mean().backward()
            if kind == "manual" and syncs:
                reduce(net, world)
            if "skip" not in due:
                optimizer.step()
            optimizer.zero_grad()
        said = "done"
    except ZeroDivisionError as error:
        said = str(error)
    if watch is not None:
        watch.close()
    return said, {name: value.clone() for name, value in net.state_dict().items()}


def same(one, other):
    return (
        one[0] == other[0]
        and one[1].keys() == other[1].keys()
        and all(map(torch.equal, one[1].values(), other[1].values()))
    )


def told(out, code="rank-config-differs"):
    import trueline

    report = trueline.check(out)
    return [finding for finding in report.findings if finding.code == code], report


def test_a_rank_that_freezes_a_parameter_is_named_and_the_rest_is_compared(three, tmp_path):
    events = [Event("freeze", 1, 4)]
    plain = three.run(functools.partial(train, kind="ddp"), events, None)
    watched = three.run(functools.partial(train, kind="ddp"), events, str(tmp_path / "run"))
    assert all(map(same, plain, watched))
    import trueline

    (finding,), report = told(tmp_path / "run")
    assert finding.claim == "Rank 1 froze layers.1.weight from step 4 on, while ranks 0 and 2 train it."
    assert (finding.severity, finding.ranks, finding.step_first) == ("error", (1,), 4)
    run = trueline.open_run(tmp_path / "run")
    assert run.live_findings == []
    assert run.pivot("cosine_mean")[1].all(), "gradients are compared at every step"
    assert {f.code for f in report.findings if f.severity == "error"} == {"rank-config-differs"}


def test_a_parameter_that_one_rank_has_more_is_named_and_the_rest_is_compared(three, tmp_path):
    three.run(functools.partial(train, start=("extra", 2)), [], str(tmp_path / "run"))
    import trueline

    findings, report = told(tmp_path / "run")
    claims = [finding.claim for finding in findings if "Optimizer" not in finding.claim]
    assert claims == ["Rank 2 trains side.bias and side.weight from step 0 on, while ranks 0 and 1 do not hold them."]
    assert (findings[0].severity, findings[0].ranks) == ("error", (2,))
    run = trueline.open_run(tmp_path / "run")
    assert run.manifest.adapter == "manual"
    assert run.manifest.data_parallel_ranks == [0, 1, 2]
    assert run.pivot("cosine_mean")[1].all()
    assert "reduction-mismatch" in report.checks_run


def test_a_parameter_that_one_rank_has_frozen_from_the_start_is_named(three, tmp_path):
    three.run(functools.partial(train, start=("frozen", 0)), [], str(tmp_path / "run"))
    findings, _ = told(tmp_path / "run")
    assert [finding.claim for finding in findings] == [
        "Rank 0 holds layers.2.weight frozen from step 0 on, while ranks 1 and 2 train it."
    ]


def test_a_parameter_that_all_ranks_freeze_leaves_the_others_watched(three, tmp_path):
    import trueline

    events = [Event("freeze", rank, 4) for rank in range(3)]
    plain = three.run(train, events, None)
    assert all(map(same, plain, three.run(train, events, str(tmp_path / "run"))))
    run = trueline.open_run(tmp_path / "run")
    assert run.live_findings == []
    assert run.pivot("grad_norm")[1].all()


def test_all_ranks_that_train_more_from_a_step_on_are_compared_in_that_too(three, tmp_path):
    import trueline

    events = [Event("unfreeze", rank, 2) for rank in range(3)]
    plain = three.run(train, events, None)
    assert all(map(same, plain, three.run(train, events, str(tmp_path / "run"))))
    _, report = told(tmp_path / "run")
    assert [finding.claim for finding in report.findings if finding.is_grave] == []
    run = trueline.open_run(tmp_path / "run")
    assert "layers.0.weight" in run.env[0].params
    assert len(run.lists("param_grad_norms")) == 3 * (STEPS - 4), "two samples after all ranks have said so"
    assert run.measured("param_grad_norms").sum() == 3 * (STEPS - 4)
    assert run.pivot("cosine_mean")[1].all()
    assert any("other parameters were trained from step 4 on" in problem for problem in run.problems)


# -- whatever ranks do -----------------------------------------------------------------------------------------------

KINDS = (
    *("freeze", "unfreeze", "replace", "replace modules", "add", "dtype", "optimizer group", "extra model"),
    *("skip", "leave", "raise"),
)


def divergences(seed, world):
    """One to three events at random, and whether ranks reduce: not where one leaves, as the others would hang."""
    dice = random.Random(seed)
    events = [
        Event(dice.choice(KINDS), dice.randrange(world), dice.randrange(STEPS)) for _ in range(dice.randint(1, 3))
    ]
    plan = {"every": dice.choice([1, 2, 3]), "exact": dice.random() < 0.2}
    return events, plan, not any(event.what in ("leave", "raise") for event in events)


def train_apart(rank, world, seed, out):
    from trueline.capture.probes import exact_cosines
    from trueline.capture.step import exchange

    events, plan, syncs = divergences(seed, world)
    with mock.patch.object(exchange, "PATIENCE_S", 0.3), mock.patch.object(exact_cosines, "PATIENCE_S", 0.3):
        return train(rank, world, events, out, plan=plan, syncs=syncs)


@pytest.mark.parametrize("seed", range(3))
def test_training_ends_as_unwatched_whatever_a_rank_does(three, tmp_path, seed):
    plain = three.run(train_apart, seed, None)
    assert all(map(same, plain, three.run(train_apart, seed, str(tmp_path / "run")))), divergences(seed, 3)
