"""What the recorder owes every probe: its moments, its column, and that the failure of one is nobody else's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn

from trueline.demo.ranks import Ranks

STEPS, WORLD, LR = 4, 2, 0.1


@pytest.fixture(scope="module")
def two():
    with Ranks(WORLD) as ranks:
        yield ranks


class UpdateProbe:
    """By how much the first parameter moves at an update, and by how much SGD should have moved it, as a law has it.
    Its column stands for one that the probe of a law would have.
    """

    name = "update law"
    moments = ("output", "update", "gradients", "updated", "closed")
    between = moments

    def __init__(self, failing=""):
        self.failing, self.seen, self.unwatched = failing, [], 0

    def begin(self, step):
        self.unwatched += not step.watched
        self._fail("begin", step)
        return step.number != 2  # its own schedule

    def take(self, moment, step):
        self._fail(moment, step)
        self.seen.append((step.number, moment))
        param = step.layout.params[0].detach()
        if moment == "update":
            self._before = param.clone()
        elif moment == "gradients":
            return {"expected_move": step.layout.params[0].grad.norm() * step.optimizer.param_groups[0]["lr"]}
        elif moment == "updated":
            return {"move": (param - self._before).norm()}
        elif moment == "output":
            assert isinstance(step.output, torch.Tensor)
        return {}

    def columns(self, host, step, row):
        self._fail("columns", step)
        if self.failing == "column":
            return {"no_such_column": 1.0}
        return {"exact_cosines": [float(host["move"]), float(host["expected_move"]), row["lr"][0]]}

    def _fail(self, where, step):
        if where == self.failing and step.number == 1:
            raise ZeroDivisionError("no law today")


def train(rank, world, out, failing, probed=True):
    """Weights after training by DDP, what the probe was asked, and what it heard of steps that are not watched."""
    import trueline
    from trueline.capture import beginning

    probe, original = UpdateProbe(failing if rank == 0 else ""), beginning.StandardProbes

    class More(original):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            self.probes.append(probe)

    beginning.StandardProbes = More if probed else original
    torch.manual_seed(0)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    watch = trueline.watch(model, optimizer, out=out, plan={"every": 1, "params_every": 1}) if out else None
    beginning.StandardProbes = original
    for step in range(STEPS):
        x = torch.randn(5, 8, generator=torch.Generator().manual_seed(10 * step + rank))
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if watch is not None:
        watch.close()
    dist.barrier()
    return [param.detach().clone() for param in model.parameters()], probe.seen, probe.unwatched


@pytest.fixture(scope="module")
def plain(two):
    return [weights for weights, _, _ in two.run(train, None, "")]


def assert_same_weights(plain, results):
    for ours, (theirs, _, _) in zip(plain, results, strict=True):
        assert all(map(torch.equal, ours, theirs))


def test_a_probe_of_its_own_is_asked_at_its_moments_and_fills_its_column(two, tmp_path, plain):
    import trueline

    results = two.run(train, str(tmp_path / "run"), "")
    assert_same_weights(plain, results)
    once = ["output", "update", "gradients", "updated"]
    for _, seen, _ in results:
        assert seen == [(step, moment) for step in (0, 1, 3) for moment in once] + [(STEPS, "closed")]
    run = trueline.open_run(tmp_path / "run")
    assert run.live_findings == []
    rows = run.table().to_pylist()
    assert len(rows) == STEPS * WORLD
    for row in rows:
        assert (row["exact_cosines"] is None) == (row["step"] == 2)
    moved = np.array([row["exact_cosines"] for row in rows if row["step"] != 2])
    np.testing.assert_allclose(moved[:, 0], moved[:, 1], rtol=1e-5)  # one float32 rounding of each weight
    assert (moved[:, 0] > 0).all()
    assert (moved[:, 2] == LR).all(), "what probes before it know of the row"


@pytest.mark.in_turn
@pytest.mark.parametrize("failing", ["begin", "output", "updated", "columns", "column"])
def test_a_probe_that_fails_on_one_rank_is_the_only_thing_that_ends(two, tmp_path, plain, failing):
    import trueline

    results = two.run(train, str(tmp_path / "run"), failing)
    assert_same_weights(plain, results)
    run = trueline.open_run(tmp_path / "run")
    (finding,) = run.live_findings
    assert finding.claim.startswith("Watching of update law stopped on rank 0 at step ")
    assert results[0][2] == 1, "told once more, of a step that is not watched"
    rows = run.table().to_pylist()
    assert len(rows) == STEPS * WORLD
    for name in ("loss", "lr", "sample_digests", "param_digests", "rng_torch", "grad_norm", "cosine_mean", "step_s"):
        assert all(row[name] is not None for row in rows), name
    own = {(row["rank"], row["step"]) for row in rows if row["exact_cosines"] is not None}
    assert {(1, 0), (1, 1), (1, 3)} <= own
    assert (0, 3) not in own
