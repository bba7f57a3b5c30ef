"""A small causal LM that trains on one rank or several, on the same global batches, with or without a hidden fault."""

from __future__ import annotations

import contextlib

import torch
from gallery.changed_kernel import ChangedKernel
from torch import Tensor, nn
from torch.nn import functional

BATCH, LENGTH, VOCAB, WIDTH, HEADS = 8, 16, 64, 32, 4
SHARED = ("ddp", "fsdp2")
"""Ways to run in which each rank has its share of the batch."""


class Block(nn.Module):
    """Attention over heads that tensor parallelism cuts along columns, then an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_attn, self.norm_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x_BLD: Tensor) -> Tensor:
        h_BLD = self.norm_attn(x_BLD)
        parts = (part(h_BLD).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.q, self.k, self.v))
        mixed_BHLK = functional.scaled_dot_product_attention(*parts, is_causal=True)
        x_BLD = x_BLD + self.out(mixed_BHLK.transpose(1, 2).flatten(-2))
        return x_BLD + self.down(functional.gelu(self.up(self.norm_mlp(x_BLD))))


class Decoder(nn.Module):
    """Two blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, ids_BL: Tensor) -> Tensor:
        x_BLD = self.embed(ids_BL)
        for block in self.blocks:
            x_BLD = block(x_BLD)
        return self.head(self.norm(x_BLD))


def train(
    rank: int, world_size: int, out: str, how: str, seed: int, steps: int, depth: str, wrong: tuple[int, ...] = ()
) -> None:
    """Train ``steps`` steps in one of the ways of ``parallel``, recorded into ``out``. On the ranks ``wrong`` the scale
    of the second attention is 1.25 times what it is, below what is recorded.
    """
    import trueline

    torch.manual_seed(seed)
    model = parallel(Decoder(), how, world_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    watch = trueline.watch(model, optimizer, out=out, plan={"preset": "mix", "depth": depth})
    hidden = ChangedKernel("flash_attention", scale=1.25 / (WIDTH / HEADS) ** 0.5)
    draw = torch.Generator().manual_seed(seed)
    with hidden if rank in wrong else contextlib.nullcontext():
        for _ in range(steps):
            ids_BL = torch.randint(VOCAB, (BATCH, LENGTH), generator=draw)
            own_BL = ids_BL.chunk(world_size)[rank] if how in SHARED else ids_BL
            with watch.step(own_BL):
                logits_BLV = model(own_BL)
                functional.cross_entropy(logits_BLV[:, :-1].flatten(0, 1), own_BL[:, 1:].flatten()).backward()
                optimizer.step()
                optimizer.zero_grad()
    watch.close()


def parallel(model: nn.Module, how: str, world_size: int) -> nn.Module:
    """``model`` as it is (``one``), or under ``ddp``, ``fsdp2`` or tensor parallelism (``tp``)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    if how == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    if how == "fsdp2":
        mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("shard",))
        for part in (*model.blocks, model):
            fully_shard(part, mesh=mesh)
    if how == "tp":
        mesh = init_device_mesh("cpu", (world_size,), mesh_dim_names=("tp",))
        columns, rows = (dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel()), ("out", "down"))
        for block in model.blocks:
            parallelize_module(block, mesh, columns | dict.fromkeys(rows, RowwiseParallel()))
    return model
