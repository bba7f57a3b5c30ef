"""A rank that leaves out or repeats an update is not held against other iterations of the others."""

from __future__ import annotations

import contextlib
from unittest import mock

import pytest
import torch
from torch import nn

STEPS, TRIGGER = 10, 4


def wrap(kind):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    if kind == "none":
        return model
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    return fully_shard(model)


def samples(rank, step):
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(100 * step + rank))


def train(rank, world, out, kind, updates, every):
    """The steps whose sums were waited for."""
    import trueline
    from trueline.capture.step.exchange import Pending

    waited = []
    wait = Pending.wait

    def noted(self, seconds):
        waited.append(self.step)
        return wait(self, seconds)

    Pending.wait = noted
    model = wrap(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with trueline.watch(model, optimizer, out=out, plan={"every": every, "params_every": 1}):
        for step in range(STEPS):
            model(samples(rank, step)).square().mean().backward()
            for _ in range(updates if (rank, step) == (1, TRIGGER) else 1):
                optimizer.step()
            optimizer.zero_grad()
    Pending.wait = wait
    return waited


def train_unevenly(rank, world, out):
    """Rank 1 splits its batch in more and more pieces: every backward that is reduced is still made by all."""
    import trueline

    ddp = wrap("ddp")
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    with trueline.watch(ddp, optimizer, out=out, plan={"every": 1}):
        for step in range(STEPS):
            pieces = 1 + rank * step
            for piece in range(pieces):
                with ddp.no_sync() if piece + 1 < pieces else contextlib.nullcontext():
                    ddp(samples(rank, step)).square().mean().div(pieces).backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("updates", [0, 2])
def test_other_iterations_are_not_compared_and_the_sums_end(two, tmp_path, kind, every, updates):
    import trueline

    waited = two.run(train, str(tmp_path / "run"), kind, updates, every)
    apart = TRIGGER + updates // 2
    assert max([-1, *waited[0], *waited[1]]) < apart + every, "a sum of other iterations was waited for"
    run = trueline.open_run(tmp_path / "run")
    claims = [finding.claim for finding in run.live_findings]
    assert all("left out or repeated an update" in claim for claim in claims)
    assert len(claims) == 2
    step_T = run.steps[run.pivot("cosine_mean")[1].any(axis=1)]
    assert step_T.tolist() == list(range(0, apart, every))
    (finding,) = [finding for finding in trueline.check(run).findings if finding.is_grave]
    assert (finding.code, finding.severity, finding.ranks) == ("updates-apart", "error", (1,))
    assert finding.step_first == TRIGGER


def train_and_look(rank, world, out):
    """Rank 1 looks at its model now and then, in training mode and with a graph, and makes nothing of it."""
    import trueline

    ddp = wrap("ddp")
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05)
    with trueline.watch(ddp, optimizer, out=out, plan={"every": 1}):
        for step in range(STEPS):
            if rank == 1 and step % 3 == 1:
                ddp(samples(rank, step))
            ddp(samples(rank, step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def test_a_forward_pass_of_one_rank_alone_is_no_other_iteration(two, tmp_path):
    import trueline

    two.run(train_and_look, str(tmp_path / "run"))
    run = trueline.open_run(tmp_path / "run")
    assert run.live_findings == []
    assert run.pivot("passes")[0].tolist() == [[step + 1] * 2 for step in range(STEPS)]


def test_uneven_accumulation_is_no_difference(two, tmp_path):
    import trueline

    two.run(train_unevenly, str(tmp_path / "run"))
    run = trueline.open_run(tmp_path / "run")
    assert run.live_findings == []
    assert run.pivot("cosine_mean")[1].all()


def train_in_modes(rank, world, out, kind):
    """Rank 1 trains in evaluation mode from TRIGGER on; both evaluate before each step with a graph, which is lost."""
    import trueline

    model = wrap(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with trueline.watch(model, optimizer, out=out, plan={"every": 1}):
        for step in range(STEPS):
            model.eval()
            model(samples(rank, 99))
            model.train((rank, step) < (1, TRIGGER))
            model(samples(rank, step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_evaluation_mode_on_one_rank_is_told_and_no_other_iteration(two, tmp_path, kind):
    import trueline

    two.run(train_in_modes, str(tmp_path / "run"), kind)
    run = trueline.open_run(tmp_path / "run")
    assert run.live_findings == []
    assert run.pivot("num_micro")[0].tolist() == [[1, 1]] * STEPS
    assert {len(digests) for digests in run.lists("sample_digests").values()} == {4}
    found = {one.code: one for one in trueline.check(run).findings if one.is_grave}
    assert set(found) == {"rank-config-differs"}
    assert found["rank-config-differs"].step_first == TRIGGER
    assert "evaluation mode is 0 on rank 0 and" in found["rank-config-differs"].claim


def average(params, world, how):
    if how == "one by one":
        for param in params:
            torch.distributed.all_reduce(param.grad)
            param.grad /= world
        return
    flat = torch.cat([param.grad.flatten() for param in params])
    torch.distributed.all_reduce(flat)
    for param, part in zip(params, flat.split([param.numel() for param in params]), strict=True):
        param.grad.copy_(part.view_as(param) / world)


def train_by_hand(rank, world, out, how, updates, beside, patience_s=10.0):
    """Gradients are averaged by the script; ``beside`` them ranks exchange more, each in its own place and time."""
    import trueline
    from trueline.capture import watch as watching
    from trueline.capture.step import exchange

    model = wrap("none")
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=0.05)
    number = torch.ones(1)
    with (
        mock.patch.object(exchange, "PATIENCE_S", patience_s),
        mock.patch.object(watching, "PATIENCE_S", patience_s),
        trueline.watch(model, optimizer, out=out, plan={"every": 1, "params_every": 3}),
    ):
        for step in range(STEPS):
            model(samples(rank, step)).square().mean().backward()
            average(params, world, how)
            if beside and rank < 2:
                (torch.distributed.send if rank == 0 else torch.distributed.recv)(number, 1 - rank)
            early = beside and rank == 0 and step % 3 == 1
            if early:
                torch.distributed.broadcast(number, 0)
            for _ in range(updates if (rank, step) == (1, TRIGGER) else 1):
                optimizer.step()
            if beside and step % 3 == 1 and not early:
                torch.distributed.broadcast(number, 0)
            optimizer.zero_grad()


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("how", "updates", "beside"),
    [("one by one", 0, False), ("flat", 0, True), ("flat", 2, False), ("flat", 2, True)],
)
def test_an_update_left_out_where_gradients_are_averaged_by_hand_is_told(two, tmp_path, how, updates, beside):
    import trueline

    # Where ranks exchange more, nothing ends the sums of a rank that is ahead: they are waited for in vain.
    patience_s = 2.0 if updates and beside else 10.0
    two.run(train_by_hand, str(tmp_path / "run"), how, updates, beside, patience_s)
    report = trueline.check(tmp_path / "run")
    (finding,) = [finding for finding in report.findings if finding.is_grave]
    assert (finding.code, finding.severity, finding.ranks) == ("updates-apart", "error", (1,))
    assert finding.step_first == TRIGGER
    assert "Ranks are not compared from there on" in finding.claim


def test_collectives_that_ranks_come_to_at_other_times_are_no_update(three, tmp_path):
    import trueline

    three.run(train_by_hand, str(tmp_path / "run"), "flat", 1, True)
    assert [f.claim for f in trueline.check(tmp_path / "run").findings if f.is_grave] == []
