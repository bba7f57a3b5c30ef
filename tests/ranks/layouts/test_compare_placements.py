"""Runs that shard the sequence (context parallelism), the weights within groups of ranks (HSDP) or the layers (a
pipeline), beside a run of one rank: healthy ones differ by rounding alone, and a fault is found in its call.

Letters: B batch, L length.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
import torch.distributed as dist
from tests.ranks.layouts.test_compare_ranks import BATCH, HEADS, LENGTH, VOCAB, WIDTH, Model
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import trueline
from trueline.comparison.arrange import arrange

STEPS = 2
FAULT = 1.25
"""Times the scale of attention in the second layer."""


def batches():
    """Tokens [B, L] and the ones that follow, a step each."""
    draw = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        ids = torch.randint(VOCAB, (BATCH, LENGTH + 1), generator=draw)
        yield ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


class Attention(nn.Module):
    """Causal attention of queries that begin at ``first`` of the keys."""

    def __init__(self, block):
        super().__init__()
        self.q, self.k, self.v, self.out = block.q, block.k, block.v, block.out
        self.scale = (WIDTH // HEADS) ** -0.5

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        first = 0
        if k.shape[2] < LENGTH:
            first = dist.get_rank() * k.shape[2]
            k, v = gathered(k), gathered(v)
        seen = torch.arange(LENGTH) <= torch.arange(first, first + q.shape[2])[:, None]
        mixed = scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=self.scale)
        return self.out(mixed.transpose(1, 2).flatten(-2))


def gathered(x):
    """What all ranks have along dim 2; gradients go back to where it came from."""
    from torch.distributed._functional_collectives import all_gather_tensor_autograd

    return all_gather_tensor_autograd(x.contiguous(), gather_dim=2, group=dist.group.WORLD)


class Block(nn.Module):
    def __init__(self, block):
        super().__init__()
        self.norm_attn, self.norm_mlp, self.up, self.down = block.norm_attn, block.norm_mlp, block.up, block.down
        self.attention = Attention(block)

    def forward(self, x):
        x = x + self.attention(self.norm_attn(x))
        return x + self.down(gelu(self.up(self.norm_mlp(x))))


def made(fault):
    torch.manual_seed(0)
    model = Model()
    model.blocks = nn.ModuleList(Block(block) for block in model.blocks)
    if fault:
        model.blocks[1].attention.scale *= FAULT
    return model


def watched(model, out, depth):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    return optimizer, trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "depth": depth})


def train(rank, world, out, how="single", fault=False, depth="tensor"):
    """Train; every way sees the same global batches."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = made(fault)
    if how == "cp":
        model = nn.parallel.DistributedDataParallel(model)
    if how == "hsdp":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
        for part in (*model.blocks, model):
            fully_shard(part, mesh=mesh)
    optimizer, watch = watched(model, out, depth)
    dim = {"cp": 1, "hsdp": 0}.get(how)
    for ids, labels in batches():
        if dim is not None:
            ids, labels = (each.chunk(world, dim)[rank].contiguous() for each in (ids, labels))
        with watch.step(ids):
            cross_entropy(model(ids).flatten(0, 1), labels.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    watch.close()


class Stage(nn.Module):
    """Some layers of a model under the names that they have in all of it."""

    def __init__(self, model, rank):
        super().__init__()
        if rank == 0:
            self.embed = model.embed
        self.blocks = nn.ModuleDict({str(rank): model.blocks[rank]})
        if rank == 1:
            self.norm, self.head = model.norm, model.head

    def forward(self, x):
        x = self.embed(x) if hasattr(self, "embed") else x
        for block in self.blocks.values():
            x = block(x)
        return self.head(self.norm(x)) if hasattr(self, "head") else x


def pipeline(rank, world, out, fault=False, depth="tensor"):
    """Two stages, a batch at a time."""
    model = Stage(made(fault), rank)
    optimizer, watch = watched(model, out, depth)
    for ids, labels in batches():
        with watch.step(ids):
            if rank == 0:
                y = model(ids)
                dist.send(y.detach(), 1)
                gradient = torch.empty_like(y)
                dist.recv(gradient, 1)
                y.backward(gradient)
            else:
                x = torch.empty(BATCH, LENGTH, WIDTH)
                dist.recv(x, 0)
                cross_entropy(model(x.requires_grad_()).flatten(0, 1), labels.flatten()).backward()
                dist.send(x.grad, 0)
            optimizer.step()
            optimizer.zero_grad()
    watch.close()


@pytest.fixture(scope="module")
def single(ranks_of, tmp_path_factory):
    out = tmp_path_factory.mktemp("single")
    for depth in ("tensor", "stats"):
        ranks_of(1).run(train, str(out / depth), "single", False, depth)
    return out


@pytest.fixture(scope="module")
def recorded(ranks_of, tmp_path_factory):
    """The Run of a way to place the model, trained once; with ``fault`` its twin."""

    @functools.cache
    def run(how, depth, fault=False):
        out = tmp_path_factory.mktemp(how) / "run"
        if how == "pp":
            ranks_of(2).run(pipeline, str(out), fault, depth)
        else:
            ranks_of(4 if how == "hsdp" else 2).run(train, str(out), how, fault, depth)
        return out

    return run


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("how", "depth"), [("cp", "tensor"), ("cp", "stats"), ("hsdp", "tensor"), ("pp", "tensor"), ("pp", "stats")]
)
def test_beside_one_rank_only_rounding_differs(recorded, single, how, depth):
    found = trueline.compare(recorded(how, depth), single / depth)
    assert (found.exit_code, found.first) == (0, None)
    compared = [row for row in found.rows if row.judgement in ("equal", "within")]
    assert {row.site.split("/")[2] for row in compared} == {"fwd", "bwd", "param", "grad", "opt"}
    calls = {row.ref_site.split("/")[3].split("#")[0] for row in compared}
    assert {f"blocks.{layer}.{name}" for layer in (0, 1) for name in ("attention.q", "attention", "up")} <= calls
    if depth == "tensor":
        assert {row.how for row in compared if row.judgement == "within" and row.times} == {"tensor"}
    # What has no twin, or cannot be compared, says why.
    assert all(row.note for row in found.rows if row.judgement == "not-comparable")


@pytest.mark.in_turn
@pytest.mark.parametrize(("how", "depth"), [("cp", "stats"), ("hsdp", "tensor"), ("pp", "tensor")])
def test_a_fault_of_all_ranks_is_found_in_its_call(recorded, single, how, depth):
    found = trueline.compare(recorded(how, depth, fault=True), single / depth)
    assert found.exit_code == 1
    assert found.first.site.endswith("fwd/blocks.1.attention.scaled_dot_product_attention#0:out0")


def test_tokens_of_a_sharded_sequence_are_compared_in_the_order_of_the_whole(recorded, single):
    """[B, L] of each rank as tokens is not a part of [B·L] side by side with the others', but sample by sample."""
    run = trueline.open_run(recorded("cp", "tensor"))
    mine, theirs = arrange(run, trueline.open_run(single / "tensor"))[0].read().sides
    loads = [
        {str(value.site).split("/", 2)[2]: value.load for value in side.values if value.site.call == 0}
        for side in (mine, theirs)
    ]
    for site in ("fwd/flatten#0:out0", "bwd/flatten#0:out0"):
        one, other = (np.asarray(side[site]()) for side in loads)
        assert one.shape == (BATCH * LENGTH, VOCAB)
        assert np.linalg.norm(one - other) <= 1e-5 * np.linalg.norm(other), site


def test_stages_of_a_pipeline_say_that_they_hold_one_model(recorded):
    run = trueline.open_run(recorded("pp", "stats"))
    assert (run.manifest.adapter, run.record_ranks) == ("sharded", [0, 1])
    assert run.manifest.notes[0].startswith("2 ranks hold one model together, as their parameters are not the same")
