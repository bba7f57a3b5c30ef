"""Ways to compute the same that do not: as ``corpus.equivalents``, each with a slip."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.compare.corpus.equivalents import packed
from benchmarks.compare.corpus.kit import DTYPE, FIRST, OPTIMIZER, STRUCTURE, Batch, Training, fault, healthy
from torch import Tensor, nn
from torch.nn import functional

OTHERWISE = (FIRST, STRUCTURE)
BOTH = ("fwd", "bwd", "grad")


@fault(
    "lstm", "packed sequences", "structure", "lstm1:as_tensor|sort|index_select|pad_packed_sequence", codes=STRUCTURE
)
def _(t: Training) -> None:
    """Of one length, which the reference takes as it is: of others it would read the padding."""
    for lstm in (t.model.lstm1, t.model.lstm2):
        lstm.forward = lambda x, state, lstm=lstm: packed(lstm, x, state, [x.shape[1]] * len(x))


@fault("gpt", "a mask of -1e9, off by one", "mask", "blocks.0.attn:triu|ones|masked_fill", codes=OTHERWISE)
def _(t: Training) -> None:
    def mask(scores: Tensor) -> Tensor:
        later = torch.ones(*scores.shape[-2:], dtype=torch.bool).triu(2)
        return torch.zeros(*scores.shape[-2:], dtype=scores.dtype).masked_fill(later, -1e9)

    for block in t.model.blocks:
        block.attn.mask = mask


@fault("gpt", "scores filled with -10", "mask", "blocks.0.attn:masked_fill", codes=OTHERWISE)
def _(t: Training) -> None:
    def mask(scores: Tensor) -> Tensor:
        later = torch.ones(*scores.shape[-2:], dtype=torch.bool).triu(1)
        return torch.zeros(*scores.shape[-2:], dtype=scores.dtype).masked_fill(later, -10.0)

    for block in t.model.blocks:
        block.attn.mask = mask


@fault("gpt", "blocks of keys not rescaled", "numerics", "blocks.0.attn", codes=OTHERWISE)
def _(t: Training) -> None:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at, total, mixed = torch.arange(q.shape[2]), 0.0, 0.0
        for begin in range(0, k.shape[2], 4):
            some = slice(begin, begin + 4)
            scores = q @ k[:, :, some].transpose(-2, -1) * q.shape[-1] ** -0.5
            scores = scores.masked_fill(at[some] > at[:, None], -1e30)
            weight = torch.exp(scores - scores.amax(-1, keepdim=True))
            total, mixed = total + weight.sum(-1, keepdim=True), mixed + weight @ v[:, :, some]
        return mixed / total

    for block in t.model.blocks:
        block.attn.attend = attend


@fault("mlp", "addmm without a bias", "structure", "fc2", codes=OTHERWISE)
def _(t: Training) -> None:
    layer = t.model.fc2
    layer.forward = lambda x: torch.addmm(torch.zeros_like(layer.bias), x, layer.weight.t())


@fault("resnet", "unfolded without padding on one side", "numerics", "layer1.conv1", codes=OTHERWISE)
def _(t: Training) -> None:
    conv = t.model.layer1.conv1

    def forward(x: Tensor) -> Tensor:
        columns = functional.unfold(functional.pad(x, (2, 0, 1, 1)), 3)
        return (conv.weight.flatten(1) @ columns).unflatten(-1, x.shape[-2:])

    conv.forward = forward


@fault("gru", "a sum divided by one more", "loss", "~:div|truediv|cross_entropy", codes=OTHERWISE)
def _(t: Training) -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits = model(batch["x"], batch["length"]).float()
        return functional.cross_entropy(logits, batch["y"], reduction="sum") / (len(logits) + 1)

    t.loss = loss


@fault("lstm", "a scaled loss that nothing unscales", "loss", "~:mul", phase=("fwd", "bwd", "grad"), codes=OTHERWISE)
def _(t: Training) -> None:
    loss = t.loss
    t.loss = lambda model, batch: loss(model, batch) * 8.0


@fault(
    "gpt",
    "clipped before it is unscaled",
    "loss",
    "~:mul|mul_|clamp|rdiv|norm|foreach_norm|stack|linalg_vector_norm|vector_norm|foreach_mul_|clip",
    phase=("fwd", "bwd", "grad", "opt"),
    codes=(FIRST, STRUCTURE, OPTIMIZER),
)
def _(t: Training) -> None:
    loss = t.loss
    t.loss = lambda model, batch: loss(model, batch) * 1024.0

    def clip_and_unscale(_: torch.optim.Optimizer) -> None:
        nn.utils.clip_grad_norm_(t.model.parameters(), 1.0)
        for param in t.model.parameters():
            param.grad.mul_(1 / 1024.0)

    t.before_update = clip_and_unscale


@fault("gnn", "edges in another order, targets not", "order", "layers.0:flip|index_add", codes=OTHERWISE)
def _(t: Training) -> None:
    for layer in t.model.layers:
        layer.gather = lambda sent, target, num: sent.new_zeros(num, sent.shape[1]).index_add(0, target, sent.flip(0))


@fault("gnn", "each target counted once", "numerics", "layers.0:new_zeros|index_put|index_put_", codes=OTHERWISE)
def _(t: Training) -> None:
    for layer in t.model.layers:
        layer.gather = lambda sent, target, num: sent.new_zeros(num, sent.shape[1]).index_put((target,), sent)


@fault("gnn", "put_ without adding up", "numerics", "layers.0:new_zeros|put|put_", codes=OTHERWISE)
def _(t: Training) -> None:
    def gather(sent: Tensor, target: Tensor, num: int) -> Tensor:
        places = target[:, None] * sent.shape[1] + torch.arange(sent.shape[1])
        return sent.new_zeros(num, sent.shape[1]).put(places, sent)

    for layer in t.model.layers:
        layer.gather = gather


@fault("gnn", "index_reduce by mean, for a sum", "numerics", "layers.0:new_zeros|index_reduce", codes=OTHERWISE)
def _(t: Training) -> None:
    for layer in t.model.layers:
        layer.gather = lambda sent, target, num: sent.new_zeros(num, sent.shape[1]).index_reduce(
            0, target, sent, "mean", include_self=False
        )


@fault("lstm", "packed one short", "mask", ("lstm1", "lstm2"), codes=OTHERWISE)
def _(t: Training) -> None:
    for lstm in (t.model.lstm1, t.model.lstm2):
        lstm.forward = lambda x, state, lstm=lstm: packed(lstm, x, state, [x.shape[1] - 1] * len(x))


@fault("dlrm", "a bag averaged, not summed", "numerics", "tables.0", codes=OTHERWISE)
def _(t: Training) -> None:
    for table in t.model.tables:
        table.mode = "mean"


@fault("moe", "experts in another order, weights not", "order", "layers.0.moe", codes=OTHERWISE)
def _(t: Training) -> None:
    moe = t.model.layers[0].moe

    def forward(x_BLD: Tensor) -> Tensor:
        x_ND = x_BLD.flatten(0, 1)
        weight_NK, expert_NK = moe.route(x_ND)
        sum_ND = torch.zeros_like(x_ND)
        for index in (3, 1, 0, 2):
            rows, slots = torch.where(expert_NK == index)
            done = moe.experts[index](x_ND[rows]) * weight_NK[rows, 1 - slots, None]
            sum_ND = sum_ND.index_add(0, rows, done.to(sum_ND.dtype))
        return sum_ND.view_as(x_BLD)

    moe.forward = forward


@fault(
    "t5",
    "Adafactor's epsilon of bfloat16",
    "precision",
    "Adafactor:clamp_|clamp",
    phase=("opt", "param", "grad"),
    codes=(OPTIMIZER, DTYPE),
    word="min|eps",
    needs="fp32",
)
def _(t: Training) -> None:
    t.dtype = torch.bfloat16


class Gelu(torch.autograd.Function):
    """GELU in two calls, and ``slope`` for its derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope = slope
        return x * torch.special.ndtr(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.slope(ctx.saved_tensors[0]), None


def _gelus(t: Training, slope: Callable[[Tensor], Tensor]) -> None:
    for module in t.model.modules():
        if isinstance(module, nn.GELU):
            module.forward = lambda x: Gelu.apply(x, slope)


@healthy("gpt", "own GELU with its backward")
def _(t: Training) -> None:
    _gelus(t, lambda x: torch.special.ndtr(x) + x * torch.exp(-x * x / 2) * (2 * torch.pi) ** -0.5)


@fault("gpt", "own GELU that forgets half of its derivative", "gradient", "blocks.2.mlp.1", phase=BOTH, codes=OTHERWISE)
def _(t: Training) -> None:
    _gelus(t, torch.special.ndtr)


@fault("vit", "own GELU with the slope of another", "gradient", "blocks.1.mlp.act", phase=BOTH, codes=OTHERWISE)
def _(t: Training) -> None:
    _gelus(t, lambda x: torch.sigmoid(1.702 * x) * (1 + 1.702 * x * torch.sigmoid(-1.702 * x)))


@fault("bert", "fused attention without its scale", "numerics", "bert.encoder.layer.0.attention.self", codes=OTHERWISE)
def _(t: Training) -> None:
    t.model.set_attn_implementation("sdpa")
    for layer in t.model.bert.encoder.layer:
        layer.attention.self.scaling = 1.0


@fault("gpt2", "fused attention without its scale", "numerics", "transformer.h.0.attn", phase=BOTH, codes=OTHERWISE)
def _(t: Training) -> None:
    """Queries and keys are small, as with the usual initialisation."""
    t.model.set_attn_implementation("sdpa")
    for block in t.model.transformer.h:
        block.attn.scaling = 1.0
