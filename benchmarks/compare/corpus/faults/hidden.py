"""What no call shows: masks, changes in place, memory, decisions over integers."""

from __future__ import annotations

import ctypes

import torch
from benchmarks.compare.corpus.kit import FIRST, STRUCTURE, WEIGHT, Training, after, before, fault
from torch import Tensor

EITHER = (FIRST, STRUCTURE)
MASK = "triu|tril|ones|zeros|masked_fill|full|neg|clamp|zeros_like"


@fault("gpt", "causal mask off by one", "mask", f"blocks.1.attn:{MASK}", codes=EITHER)
def _(t: Training) -> None:
    def mask(scores: Tensor) -> Tensor:
        length = scores.shape[-1]
        later = torch.ones(length, length, dtype=torch.bool).triu(2)
        return torch.zeros(length, length, dtype=scores.dtype).masked_fill(later, torch.finfo(scores.dtype).min)

    t.model.blocks[1].attn.mask = mask


@fault("gpt", "mask dropped", "mask", f"blocks.2.attn:{MASK}|add", codes=EITHER)
def _(t: Training) -> None:
    after(t.model.blocks[2].attn, torch.zeros_like, "mask")


@fault("gpt", "mask too weak", "mask", f"blocks.0.attn:{MASK}", codes=EITHER)
def _(t: Training) -> None:
    after(t.model.blocks[0].attn, lambda mask: mask.clamp(min=-4), "mask")


@fault("gpt", "a head masked out", "mask", "blocks.1.attn:mul|matmul|stack|cat|tensor|transpose", codes=EITHER)
def _(t: Training) -> None:
    keep = torch.tensor([1.0, 0.0, 1.0, 1.0]).view(1, 4, 1, 1)
    after(t.model.blocks[1].attn, lambda mixed: mixed * keep.to(mixed.dtype), "attend")


@fault("llama", "attention not causal", "mask", "layers.1.self_attn:scaled_dot_product_attention")
def _(t: Training) -> None:
    attn = t.model.layers[1].self_attn
    attend = attn.attend
    attn.attend = lambda q, k, v, is_causal: attend(q, k, v)


@fault("gnn", "an edge in ten is dropped", "mask", "layers.0:mul|index_add|truediv|div", codes=EITHER)
def _(t: Training) -> None:
    kept = (torch.arange(160) % 10 != 0).float()
    after(t.model.layers[0], lambda weight: weight * kept.to(weight.dtype), "weigh")


@fault("gpt", "changed in place through .data", "in place", "blocks.1.mlp:mul_|data", codes=EITHER)
def _(t: Training) -> None:
    before(t.model.blocks[1].mlp, lambda x: (x.data.mul_(1.02), x)[1])


@fault(
    *("gpt", "changed in place through memory", "in place"),
    ("blocks.2.mlp", "blocks.2.mlp.0", "blocks.2.norm2"),
    codes=EITHER,
)
def _(t: Training) -> None:
    before(t.model.blocks[2].mlp, lambda x: (_write(x, 0, 3.0), x)[1])


def _write(x: Tensor, index: int, value: float) -> None:
    """Write one element of memory, as a stray pointer does."""
    bits = torch.tensor([value], dtype=x.dtype).view(torch.uint8).tolist()
    ctypes.memmove(x.data_ptr() + index * x.element_size(), bytes(bits), len(bits))


@fault(
    *("resnet", "a shortcut that is changed in place", "in place"),
    ("layer3:clamp_|data|add", "layer3.conv1", "layer2.relu"),
    codes=EITHER,
)
def _(t: Training) -> None:
    before(t.model.layer3.bn1, lambda x: (kept[-1].data.clamp_(max=1.0), x)[1])
    kept: list[Tensor] = []
    before(t.model.layer3.conv1, lambda x: (kept.append(x), x)[1])


@fault(
    *("convnext", "a stale copy of a feature map", "in place"),
    ("stages.2.dwconv", "stages.1", "stages.2"),
    codes=EITHER,
)
def _(t: Training) -> None:
    before(t.model.stages[2].dwconv, lambda x: (_write(x, 5, 4.0), x)[1])


@fault(
    *("llama", "a row of the embedding altered", "in place", ("embed_tokens", "embed_tokens.weight")),
    phase=("fwd", "param"),
    codes=(WEIGHT, FIRST),
)
def _(t: Training) -> None:
    t.model.embed_tokens.weight.data[7] *= 1.5


@fault(
    *("gpt", "memory overwritten after the first update", "in place"),
    ("blocks.1.mlp.0.weight", "blocks.1.mlp.0"),
    phase=("fwd", "param"),
    codes=WEIGHT,
)
def _(t: Training) -> None:
    weight = t.model.blocks[1].mlp[0].weight
    t.after_update = lambda step: _write(weight, 100, 2.0) if step == 0 else None


@fault("moe", "one expert for each token", "decision", "layers.0.moe:topk", codes=EITHER)
def _(t: Training) -> None:
    t.model.layers[0].moe.num_chosen = 1


@fault("moe", "noise in the router", "decision", ("layers.1.moe.router:randn_like|mul|add",), codes=EITHER)
def _(t: Training) -> None:
    after(t.model.layers[1].moe.router, lambda x: x + 0.1 * torch.randn_like(x))


@fault("moe", "experts numbered from one", "decision", "layers.1.moe:add|remainder|topk", codes=EITHER)
def _(t: Training) -> None:
    after(t.model.layers[1].moe, lambda routed: (routed[0], (routed[1] + 1) % 4), "route")


@fault(
    *("moe", "the least likely experts", "decision"),
    "layers.0.moe:topk|softmax|neg",
    codes=EITHER,
)
def _(t: Training) -> None:
    moe = t.model.layers[0].moe

    def route(x: Tensor) -> tuple[Tensor, Tensor]:
        weight, expert = torch.topk(torch.softmax(moe.router(x).float(), -1), 2, largest=False)
        return (weight / weight.sum(-1, keepdim=True)).to(x.dtype), expert

    moe.route = route


@fault("dlrm", "ids hashed into one row fewer", "decision", "~:remainder", codes=EITHER)
def _(t: Training) -> None:
    prepare = t.prepare
    t.prepare = lambda batch: prepare({**batch, "ids": batch["ids"] % 63})
