"""``torch.compile`` never looks into Trueline: the same frames, graphs, breaks and bits, and gradients are seen."""

from __future__ import annotations

import functools
import gc
import os

import pytest
import torch
from torch import nn

from trueline.demo.ranks import Ranks

STEPS = 4
BACKEND = {"backend": "eager"}
"""What dynamo makes does not depend on it; test_watch_changes_nothing compares bits under `aot_eager`."""

CASES = {
    "ddp.compile": lambda net: called(ddp(net), lambda model: model.compile(**BACKEND)),
    "compiled ddp": lambda net: torch.compile(ddp(net), **BACKEND),
    "inside, one graph": lambda net: ddp(torch.compile(net, fullgraph=True, **BACKEND)),
    "in place inside": lambda net: ddp(called(net, lambda model: model.compile(**BACKEND))),
    "in place inside, buckets": lambda net: ddp(
        called(net, lambda model: model.compile(fullgraph=True, **BACKEND)), gradient_as_bucket_view=True
    ),
}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


def ddp(net, **options):
    return nn.parallel.DistributedDataParallel(net, **options)


def called(model, change):
    change(model)
    return model


def train(rank, world, case, how, out):
    """Weights, and what dynamo counted."""
    import torch._dynamo as dynamo
    from torch._dynamo.utils import counters

    import trueline
    from trueline.capture.child_env import environment
    from trueline.capture.launch import Attachment
    from trueline.schema.plan import Plan

    dynamo.reset()
    counters.clear()
    torch.manual_seed(0)
    net = Net()
    attachment = None
    if how == "run":
        plan = Plan.load({"every": 1}).model_dump(mode="json")
        os.environ.update(environment(out=out, plan=plan, overwrite=False, base={}))
        attachment = Attachment(trueline.watch)
        attachment.wait()
    helper = nn.Linear(8, 8).eval()
    compiled = torch.compile(helper, fullgraph=True, **BACKEND)
    model = CASES.get(case, ddp)(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=out, plan={"every": 1}) if how == "watch" else None
    if case == "after watching, one graph":
        net.compile(fullgraph=True, **BACKEND)

    def loss_of(x):
        loss = model(x).square().mean()
        loss.backward()
        return loss

    one = torch.compile(loss_of, **BACKEND) if case == "whole step" else loss_of
    update = torch.compile(optimizer.step, **BACKEND) if case == "update" else optimizer.step
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        with torch.no_grad():
            compiled(torch.ones(2, 8))
        one(torch.randn(4, 8, generator=generator))
        update()
        optimizer.zero_grad()
    watch = attachment.watch if attachment is not None else watch
    if watch is not None:
        watch.close()
    told = {kind: dict(counters[kind]) for kind in ("frames", "stats", "recompile_limit")}
    told["graph_break"] = sum(counters["graph_break"].values())  # their texts hold addresses
    return {name: value.clone() for name, value in model.state_dict().items()}, told


def collect_nothing(rank, world):
    """What an earlier case left would die at any time, and dynamo look at a frame once more."""
    gc.disable()


@pytest.fixture(scope="module")
def two():
    with Ranks(2) as ranks:
        ranks.run(collect_nothing)
        yield ranks


@pytest.fixture(scope="module")
def unwatched(two):
    """What the ranks of ``two`` say of a case that nobody watches, called once for each."""

    @functools.cache
    def plain(case):
        two.run(train, case, "", "")  # a process counts frames of torch that are skipped once
        return two.run(train, case, "", "")

    return plain


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("case", "how"),
    [
        *((case, how) for case in (*CASES, "whole step", "update") for how in ("run", "watch")),
        ("after watching, one graph", "watch"),  # under "run" it is 'in place inside': that begins at the first forward
    ],
)
def test_dynamo_sees_what_it_sees_unwatched(two, unwatched, tmp_path, case, how):
    import trueline

    plain = unwatched(case)
    watched = two.run(train, case, how, str(tmp_path / "run"))
    for (weights, counts), (weights_watched, counts_watched) in zip(plain, watched, strict=True):
        assert all(map(torch.equal, weights.values(), weights_watched.values()))
        if case == "whole step":  # DDP breaks in it anyway, at places that hooks and what ran before move about
            counts, counts_watched = counts["recompile_limit"], counts_watched["recompile_limit"]
        if case == "update":  # with hooks that are not called, one frame of torch's loop over them is left out
            assert counts_watched["frames"]["total"] <= counts["frames"]["total"]
            counts_watched["frames"] = counts["frames"]
        assert counts == counts_watched
    run = trueline.open_run(tmp_path / "run")
    assert run.live_findings == []
    assert run.steps.tolist() == list(range(STEPS))
    assert run.pivot("loss")[1].all()
    assert run.pivot("grad_norm")[1].all()
    assert run.pivot("cosine_mean")[1].all()
