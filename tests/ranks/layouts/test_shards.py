"""FSDP2: what becomes of a shard after the reduce-scatter, gradients that are held back, parameters beside shards."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

STEPS, FROM = 6, 3


class Net(nn.Module):
    """A scale that may stay whole, and two layers; 5 rows are no multiple of 2 ranks."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(31))
        self.up = nn.Linear(31, 64)
        self.down = nn.Linear(64, 5)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x * self.scale)))


def train(rank, world, out, fault, options):
    """Losses and local weights of a short training, in which rank 1 does ``fault`` from step ``FROM`` on."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    import trueline

    torch.manual_seed(0)
    model = Net()
    if fault == "own":
        model.scale.data += rank
    dtypes = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if "bf16" in options else MixedPrecisionPolicy()
    fully_shard(model.up, mp_policy=dtypes)
    fully_shard(model, mp_policy=dtypes, ignored_params={model.scale} if "whole" in options else None)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    plan = {"every": 1, "params_every": 1}
    gather(model, options)
    watch = trueline.watch(model, optimizer, out=out, plan=plan) if out is not None else None
    sharded = [param for param in model.parameters() if hasattr(param, "to_local")]
    micros, losses = 3 if "micros" in options else 1, []
    for step in range(STEPS):
        bad = step >= FROM
        for micro in range(micros):
            model.set_requires_gradient_sync(micro + 1 == micros and not (bad and fault == "held back"))
            generator = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
            if "gathered" in options:
                model.unshard()
            x, y = torch.randn(8, 31, generator=generator), torch.randint(0, 5, (8,), generator=generator)
            loss = nn.functional.cross_entropy(model(x).float(), y)
            (loss / micros).backward()
            losses.append(loss.item())
        if "whole" in options and fault not in ("own", "unreduced"):
            dist.all_reduce(model.scale.grad)
        if "clipped" in options:
            nn.utils.clip_grad_norm_(sharded, 0.05)
        if "clipped by value" in options:
            nn.utils.clip_grad_value_(sharded, 0.01)
        if bad and rank == 1:
            spoil(fault, model, [param.grad.to_local() for param in sharded if param.grad is not None])
        optimizer.step()
        optimizer.zero_grad()
    if watch is not None:
        watch.close()
    weights = [param.to_local() if hasattr(param, "to_local") else param for param in model.parameters()]
    return losses, [weight.detach().clone() for weight in weights]


@torch.no_grad()
def gather(model, options):
    if "evaluated" in options:
        model(torch.zeros(8, 31))
    if "gathered" in options:
        model.unshard()


@torch.no_grad()
def spoil(fault, model, shards):
    if fault == "clips alone":
        norm = torch.cat([shard.flatten() for shard in shards]).norm()
        for shard in shards:
            shard *= 0.05 / norm
    elif fault == "scales alone":
        for shard in shards:
            shard *= 1.001
    elif fault == "zeroes":
        for shard in shards:
            shard.zero_()
    elif fault == "takes away":
        for param in model.parameters():
            param.grad = None if hasattr(param, "to_local") else param.grad
    elif fault == "scales whole":
        model.scale.grad *= 1.5
    elif fault == "drifts":
        model.scale *= 1.001


def findings(two, tmp_path, fault, *options):
    """What is found besides notes, after training was the same with and without watching."""
    import trueline

    out = str(tmp_path / "run")
    for (losses, weights), (seen_losses, seen_weights) in zip(
        two.run(train, None, fault, options), two.run(train, out, fault, options), strict=True
    ):
        assert losses == seen_losses
        assert all(map(torch.equal, weights, seen_weights))
    assert trueline.open_run(out).live_findings == []
    return [finding for finding in trueline.check(out).findings if finding.code != "rng-streams"]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("fault", "factor"), [("clips alone", 0.073), ("scales alone", 1.001), ("zeroes", 0.0), ("takes away", 0.0)]
)
def test_a_rank_that_changes_its_shards_alone_is_named(two, tmp_path, fault, factor):
    (finding,) = findings(two, tmp_path, fault)
    assert (finding.code, finding.severity) == ("reduction-mismatch", "error")
    assert (finding.ranks, finding.step_first, finding.step_last) == ((1,), FROM, STEPS - 1)
    assert finding.measured == pytest.approx(factor, rel=0.1, abs=1e-6)
    assert finding.expected == 1.0
    assert finding.claim == (
        "The gradient of all parameters was multiplied after the reduction by another factor than on the other ranks "
        "on rank 1 at steps 3-5."
    )


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "options", [("clipped",), ("clipped by value",), ("micros", "clipped"), ("micros", "bf16", "clipped")]
)
def test_what_all_ranks_do_to_their_shards_is_left_alone(two, tmp_path, options):
    assert findings(two, tmp_path, "", *options) == []


@pytest.mark.parametrize("options", [("evaluated",), ("gathered", "micros")])
def test_parameters_that_are_gathered_when_watching_begins_are_shards(two, tmp_path, options):
    """As a forward pass without a backward pass leaves the root's, and as ``unshard`` does ahead of a forward pass."""
    assert findings(two, tmp_path, "", *options) == []


def test_gradients_that_are_held_back_at_the_update_are_told(two, tmp_path):
    (finding,) = findings(two, tmp_path, "held back", "micros", "bf16")
    assert (finding.code, finding.severity, finding.ranks) == ("gradient-not-reduced", "error", (0, 1))
    assert finding.claim == (
        "FSDP2 still held gradients of all parameters on ranks 0 and 1, not reduced, when the optimizer updated at "
        "steps 3-5: they missed that update and go into a later one."
    )


def test_a_parameter_beside_shards_that_drifts_is_found(two, tmp_path):
    (finding,) = findings(two, tmp_path, "drifts", "whole")
    assert (finding.code, finding.severity, finding.step_first) == ("replica-drift", "error", FROM)
    assert "1 parameter, equal before the update of step 2 and different before that of step 3: scale" in finding.claim


def test_a_parameter_beside_shards_that_nobody_reduces_is_found(two, tmp_path):
    unreduced, drift = findings(two, tmp_path, "unreduced", "whole")
    assert (unreduced.code, drift.code) == ("gradient-not-reduced", "replica-drift")
    assert unreduced.claim == "Ranks 0 and 1 used their own gradients of scale unreduced at steps 0-5."
    assert unreduced.measured > unreduced.expected > 0


def test_a_parameter_beside_shards_that_is_scaled_on_one_rank_is_found(two, tmp_path):
    mismatch, drift = findings(two, tmp_path, "scales whole", "whole")
    assert (mismatch.code, drift.code) == ("reduction-mismatch", "replica-drift")
    assert (
        mismatch.claim
        == "The gradient of scale reached the optimizers of the replicas in different versions at steps 3-5."
    )


@pytest.mark.parametrize(("fault", "told"), [("", []), ("own", ["info"])])
def test_parameters_beside_shards_that_are_reduced_or_each_ranks_own_are_no_fault(two, tmp_path, fault, told):
    assert [finding.severity for finding in findings(two, tmp_path, fault, "whole", "clipped")] == told
