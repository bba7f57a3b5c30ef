"""The same numbers in another order."""

from __future__ import annotations

import torch
from benchmarks.compare.corpus.kit import FIRST, STRUCTURE, Training, after, fault
from torch import Tensor

EITHER = (STRUCTURE, FIRST)
DATA = (FIRST, STRUCTURE)


@fault("unet", "concatenated the other way round", "order", "@:cat", codes=EITHER)
def _(t: Training) -> None:
    t.model.join = lambda up, skip: torch.cat([skip, up], 1)


@fault("vit", "patches reshaped, not transposed", "order", "@:reshape|transpose|flatten", codes=EITHER)
def _(t: Training) -> None:
    t.model.patches = lambda x: t.model.patch_embed(x).flatten(2).reshape(len(x), 16, 32)


@fault("vit", "k taken for q", "order", "blocks.1.attn:unbind|permute|mul|transpose|matmul", codes=EITHER)
def _(t: Training) -> None:
    after(t.model.blocks[1].attn, lambda qkv: (qkv[1], qkv[0], qkv[2]), "split")


@fault("vit", "heads interleaved", "order", "blocks.0.attn:reshape|permute|unbind", codes=EITHER)
def _(t: Training) -> None:
    attn = t.model.blocks[0].attn
    attn.split = lambda x: attn.qkv(x).reshape(*x.shape[:2], 3, 8, 4).permute(2, 0, 4, 1, 3).unbind(0)


@fault("resnet", "images transposed", "order", "~:transpose|sub", codes=DATA)
def _(t: Training) -> None:
    prepare = t.prepare
    t.prepare = lambda batch: prepare({**batch, "image": batch["image"].transpose(2, 3)})


@fault("convnext", "channels flipped", "order", "~:flip", codes=DATA)
def _(t: Training) -> None:
    prepare = t.prepare

    def flipped(batch: dict) -> dict:
        batch = prepare(batch)
        return {**batch, "image": batch["image"].flip(1)}

    t.prepare = flipped


@fault("gpt", "positions rolled by one", "order", "@:roll|add|getitem", codes=EITHER)
def _(t: Training) -> None:
    m = t.model

    def forward(ids: Tensor) -> Tensor:
        x = m.embed(ids) + m.position[: ids.shape[1]].roll(1, 0)
        for block in m.blocks:
            x = block(x)
        return m.limit(m.head(m.norm(x)))

    m.forward = forward


@fault("gpt", "heads joined the wrong way", "order", "blocks.1.attn:permute|transpose|flatten", codes=EITHER)
def _(t: Training) -> None:
    t.model.blocks[1].attn.join = lambda mixed: mixed.permute(0, 2, 3, 1).flatten(-2)


@fault("gpt", "q and k exchanged", "order", "blocks.2.attn:chunk|view|transpose|matmul", codes=EITHER)
def _(t: Training) -> None:
    after(t.model.blocks[2].attn, lambda qkv: (qkv[1], qkv[0], qkv[2]), "split")


@fault(
    *("llama", "rotary pairs interleaved", "order"),
    "layers.0.self_attn:chunk|cat|neg|stack|flatten|getitem",
    codes=EITHER,
)
def _(t: Training) -> None:
    t.model.layers[0].self_attn.rotate_half = lambda x: torch.stack([-x[..., 1::2], x[..., ::2]], -1).flatten(-2)


@fault("llama", "rotated the other way", "order", "layers.1.self_attn:neg|cat", codes=EITHER)
def _(t: Training) -> None:
    def other(x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([second, -first], -1)

    t.model.layers[1].self_attn.rotate_half = other


@fault("llama", "groups tiled, not repeated", "order", "layers.1.self_attn:repeat_interleave|repeat", codes=EITHER)
def _(t: Training) -> None:
    t.model.layers[1].self_attn.repeat = lambda x: x.repeat(1, 2, 1, 1)


@fault("mamba", "B and C exchanged", "order", "mixers.1:split|mul|getitem", codes=EITHER)
def _(t: Training) -> None:
    after(t.model.mixers[1], lambda parts: (parts[0], parts[2], parts[1]), "project")


@fault(
    *("gnn", "edges the other way round", "order"),
    ("layers.1", "layers.1:getitem|scatter_add|index_add|cat"),
    codes=EITHER,
)
def _(t: Training) -> None:
    layer = t.model.layers[1]
    forward = layer.forward
    layer.forward = lambda x, source, target: forward(x, target, source)


@fault("dlrm", "dense features last", "order", "@:cat", codes=EITHER)
def _(t: Training) -> None:
    def interact(dense: Tensor, bags: list[Tensor]) -> Tensor:
        stacked = torch.stack([dense, *bags], 1)
        rows, columns = torch.tril_indices(5, 5, offset=-1)
        return torch.cat([torch.bmm(stacked, stacked.transpose(1, 2))[:, rows, columns], dense], 1)

    t.model.interact = interact


@fault("moe", "weights of the two experts exchanged", "order", "layers.0.moe:flip|to|getitem", codes=EITHER)
def _(t: Training) -> None:
    after(t.model.layers[0].moe, lambda routed: (routed[0].flip(-1), routed[1]), "route")
