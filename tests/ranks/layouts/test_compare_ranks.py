"""Runs of several ranks beside a run of one: what is merged is what one rank has, up to rounding."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, gelu, scaled_dot_product_attention

import trueline
from trueline.comparison.arrange import arrange
from trueline.comparison.match.align import align
from trueline.comparison.match.names import NameMap

STEPS = 2
BATCH, LENGTH, VOCAB, WIDTH, HEADS = 8, 6, 32, 16, 4


class Block(nn.Module):
    """Attention over heads that are cut along columns where there is tensor parallelism, then an MLP."""

    def __init__(self):
        super().__init__()
        self.norm_attn, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        h = self.norm_attn(x)
        q, k, v = (part(h).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(-2))
        return x + self.down(gelu(self.up(self.norm_mlp(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def parallel(model, how, world):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if how == "fsdp2":
        for part in (*model.blocks, model):
            fully_shard(part, mesh=init_device_mesh("cpu", (world,), mesh_dim_names=("shard",)))
    if how == "tp":
        mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
        plan = dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel()) | dict.fromkeys(
            ("out", "down"), RowwiseParallel()
        )
        for block in model.blocks:
            parallelize_module(block, mesh, plan)
    return model


def train(rank, world, out, how="single", num_micro=1, plan=None, spoil=None, reduction="mean"):
    """Train; every way sees the same global batches."""
    torch.manual_seed(0)
    model = Model()
    model = parallel(model, how, world)
    if spoil is not None:
        with torch.no_grad():
            spoil(rank, model.module)
    shares = world if how in ("ddp", "fsdp2") else 1
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "depth": "tensor"} | (plan or {}))
    draw = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        ids = torch.randint(VOCAB, (BATCH, LENGTH), generator=draw)
        own = ids.chunk(shares)[rank if shares > 1 else 0]
        with watch.step(own):
            for part in own.chunk(num_micro):
                logits = model(part)
                labels = part[:, 1:].flatten()
                loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels, reduction=reduction)
                (loss / num_micro if num_micro > 1 else loss).backward()
            optimizer.step()
            optimizer.zero_grad()
    watch.close()


@pytest.fixture(scope="module")
def single(one, tmp_path_factory):
    out = tmp_path_factory.mktemp("single") / "run"
    one.run(train, str(out))
    return trueline.open_run(out)


@pytest.fixture(scope="module")
def recorded(ranks_of, tmp_path_factory):
    """The Run of so many ranks that train ``how``, trained once."""

    @functools.cache
    def run(world, how, num_micro=1):
        out = tmp_path_factory.mktemp(how) / "run"
        ranks_of(world).run(train, str(out), how, num_micro)
        return trueline.open_run(out)

    return run


FLOOR = 3e-6
"""Fifty roundings of float32 (2**-24) in a row: what was measured is at most 6e-7, in the squares that AdamW keeps."""


def compared(run, ref, *, index=0):
    """The pairs of a step by what became of them: compared, without numbers (with why), without twin. What ranks send
    each other is not merged, and left out of the second.
    """
    arrangement = arrange(run, ref)[index]
    mine, theirs = arrangement.read().sides
    pairs = align(mine, theirs, NameMap()).pairs
    both = [(pair.mine, pair.theirs) for pair in pairs if not pair.reason]
    told = [(one, other) for one, other in both if one.load is not None]
    untold = [(one, other) for one, other in both if one.load is None and one.site.phase != "comm"]
    return arrangement, told, untold, [pair for pair in pairs if pair.reason]


def assert_merged_is_whole(told):
    """Shapes, values and statistics of what was merged are those of the run of one rank, up to rounding."""
    for one, other in told:
        assert one.shape == other.shape, one.site
        mine, theirs = (np.asarray(value.load(), np.float64) for value in (one, other))
        assert mine.shape == theirs.shape, one.site
        # What is tiny beside others is what is left over when they cancel.
        room = FLOOR * max(np.linalg.norm(theirs), 1e-7)
        assert np.linalg.norm(mine - theirs) <= room, one.site
        if one.stats is not None:
            assert one.stats.numel == other.stats.numel, one.site
            assert one.stats.norm == pytest.approx(np.linalg.norm(mine), rel=FLOOR, abs=1e-12), one.site
            assert one.stats.sum == pytest.approx(mine.sum(), rel=FLOOR, abs=room * np.sqrt(mine.size)), one.site
            assert one.stats.min == pytest.approx(mine.min(), rel=FLOOR, abs=1e-12), one.site


@pytest.mark.in_turn
@pytest.mark.parametrize("num_micro", [1, 2])
def test_four_data_parallel_ranks_merge_to_one(recorded, single, num_micro):
    run = recorded(4, "ddp", num_micro)
    for index in range(STEPS):
        arrangement, told, untold, unmatched = compared(run, single, index=index)
        unmatched = [pair for pair in unmatched if pair.theirs is not None or pair.mine.site.phase != "comm"]
        assert (arrangement.step, arrangement.rank) == (index, None)
        assert "ranks 0, 1, 2, 3 of 4" in arrangement.note
        assert_merged_is_whole(told)
        assert not untold
        # what divides the loss by the number of micro-batches
        assert {pair.mine.site.name for pair in unmatched} <= {"div", "AdamW.div"} if num_micro > 1 else not unmatched
    head = next(one for one, _ in told if str(one.site).startswith("1.0/r0/bwd/head#0:in0"))
    assert (head.ranks, head.scale) == ((0, 1, 2, 3), 0.25)
    assert trueline.compare(run.path, single.path).exit_code == 0


@pytest.mark.in_turn
def test_fsdp2_shards_and_activations_merge_to_one_rank(recorded, single):
    run = recorded(2, "fsdp2")
    _, told, untold, unmatched = compared(run, single)
    assert trueline.compare(run.path, single.path).exit_code == 0
    assert_merged_is_whole(told)
    assert not untold
    assert {"param", "grad", "opt", "fwd", "bwd"} == {one.site.phase for one, _ in told}
    # FSDP2 shows no gradient of a parameter before it is reduced
    assert {(pair.theirs.site.phase, pair.theirs.kind) for pair in unmatched if pair.mine is None} == {("bwd", "param")}
    assert {pair.mine.site.phase for pair in unmatched if pair.theirs is None} == {"comm"}


@pytest.mark.in_turn
def test_tensor_parallel_ranks_merge_to_one(two, single, tmp_path):
    two.run(train, str(tmp_path / "run"), "tp")
    _, told, untold, _ = compared(trueline.open_run(tmp_path / "run"), single)
    assert trueline.compare(tmp_path / "run", single.path).exit_code == 0
    assert_merged_is_whole(told)
    assert not untold
    for name in ("blocks.0.out", "blocks.1.down.linear"):  # what rows of a weight give is a sum over ranks
        out = next(one for one, _ in told if (one.site.name, one.site.slot, one.site.phase) == (name, "out0", "fwd"))
        assert out.note.startswith("the value after the collective, as seen in blocks.")
    cut = {one.site.name: one.shape for one, _ in told if one.site.slot == "in0" and one.site.phase == "fwd"}
    assert cut["blocks.0.gelu"] == (BATCH, LENGTH, 2 * WIDTH)
    assert cut["blocks.0.scaled_dot_product_attention"] == (BATCH, HEADS, LENGTH, WIDTH // HEADS)


@pytest.mark.in_turn
def test_ranks_of_other_ways_to_share_the_batch_compare(recorded):
    fsdp2, ddp2, ddp4 = recorded(2, "fsdp2"), recorded(2, "ddp"), recorded(4, "ddp")
    for run, ref, note in ((fsdp2, ddp2, "sharded differently"), (ddp4, ddp2, "of 4"), (fsdp2, ddp4, "of 2")):
        arrangement, told, untold, _ = compared(run, ref)
        assert note in arrangement.note
        assert_merged_is_whole(told)
        assert not untold


@pytest.mark.in_turn
def test_ranks_are_compared_one_by_one_where_they_are_the_same_and_micro_batches_merged(recorded):
    whole, parts = recorded(2, "ddp"), recorded(2, "ddp", 2)
    found = arrange(parts, whole)
    assert [(each.step, each.rank) for each in found] == [(step, rank) for step in range(STEPS) for rank in (0, 1)]
    for index in (0, 1):
        _, told, untold, _ = compared(parts, whole, index=index)
        assert_merged_is_whole(told)
        assert not untold


@pytest.mark.in_turn
def test_losses_that_are_summed_are_not_averaged(four, one, tmp_path):
    one.run(train, str(tmp_path / "one"), "single", 1, None, None, "sum")
    four.run(train, str(tmp_path / "run"), "ddp", 1, None, None, "sum")
    _, told, _, _ = compared(trueline.open_run(tmp_path / "run"), trueline.open_run(tmp_path / "one"))
    before_reduction = [(one, other) for one, other in told if one.site.phase in ("fwd", "bwd")]
    assert_merged_is_whole(before_reduction)
    assert {one.scale for one, _ in before_reduction} == {1.0}


def test_replicas_that_differ_are_named(four, single, tmp_path):
    four.run(train, str(tmp_path / "run"), "ddp", 1, None, drift)
    arrangement = arrange(trueline.open_run(tmp_path / "run"), single)[0]
    mine, _ = arrangement.read().sides
    notes = {value.site.name: value.note for value in mine.values if value.site.phase == "param" and value.note}
    assert notes == {"blocks.1.up.bias": "replicas differ: rank 2 (shown) from rank 0, 1, 3"}


def drift(rank, model):
    if rank == 2:
        model.blocks[1].up.bias[3] += 1.0


def test_a_share_that_was_not_recorded_is_missed_where_it_counts(four, single, tmp_path):
    four.run(train, str(tmp_path / "run"), "ddp", 1, {"ranks": [0, 1]})
    _, told, untold, _ = compared(trueline.open_run(tmp_path / "run"), single)
    assert {one.site.phase for one, other in told if one.shape == other.shape} >= {"param", "grad", "opt"}
    notes = {one.note for one, _ in untold}
    assert any("2 of 4 shares of the batch have no record of it" in note for note in notes)
