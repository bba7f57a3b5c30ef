"""Faults of recurrent models, of tensor parallelism by hand, of a cache, and of two towers."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.compare.corpus.kit import (
    DTYPE,
    FIRST,
    OPTIMIZER,
    STRUCTURE,
    WEIGHT,
    Training,
    after,
    before,
    fault,
    gradient,
    hooked,
)
from torch import Tensor, nn
from torch.nn import functional

EITHER = (FIRST, STRUCTURE)
BOTH = ("fwd", "bwd", "grad")


@fault("lstm", "gates in another order", "order", ("lstm2", "lstm2.weight_ih_l0"), phase=("fwd", "param"), codes=WEIGHT)
def _(t: Training) -> None:
    weight = t.model.lstm2.weight_ih_l0
    weight.data = torch.cat([weight.data[32:64], weight.data[:32], weight.data[64:]])


@fault("lstm", "begins with ones", "structure", ("@:zeros|ones", "@:lstm", "lstm2"), codes=EITHER)
def _(t: Training) -> None:
    layer = t.model.lstm2
    forward = layer.forward
    layer.forward = lambda x, state: forward(x, (torch.ones_like(state[0]), state[1]))


@fault("lstm", "gradient halved between layers", "gradient", "lstm1", phase=BOTH, codes=EITHER)
def _(t: Training) -> None:
    after(t.model.lstm1, lambda result: (gradient(lambda g: 0.5 * g)(result[0]), result[1]))


@fault("lstm", "residual detached", "gradient", ("@:detach|add", "embed"), phase=BOTH, codes=EITHER)
def _(t: Training) -> None:
    m = t.model

    def forward(ids: Tensor) -> Tensor:
        x = m.embed(ids)
        h, _ = m.lstm1(x, m.start(x))
        h, _ = m.lstm2(h, m.start(h))
        return m.head(m.norm(h + x.detach()))

    m.forward = forward


@fault("lstm", "RMSprop's alpha 0.9", "setting", "RMSprop:-", phase=("opt", "param"), codes=OPTIMIZER, word="alpha")
def _(t: Training) -> None:
    t.settings = {**t.settings, "alpha": 0.9}


@fault("lstm", "forget bias of one", "weight", ("lstm1.bias_hh_l0", "lstm1"), phase=("param", "fwd"), codes=WEIGHT)
def _(t: Training) -> None:
    t.model.lstm1.bias_hh_l0.data[32:64] += 1


@fault("lstm", "tokens reversed", "between", "~:flip", codes=EITHER)
def _(t: Training) -> None:
    t.prepare = lambda batch: {"inputs": batch["ids"][:, :-1].flip(1), "labels": batch["ids"][:, 1:]}


@fault("gru", "update gate the other way", "structure", "cell:rsub|mul|add|sub", codes=EITHER)
def _(t: Training) -> None:
    t.model.cell.mix = lambda new, update, state: update * new + (1 - update) * state


@fault("gru", "reset before the product", "structure", ("cell:mul|add|chunk", "cell.of_state"), codes=EITHER)
def _(t: Training) -> None:
    cell = t.model.cell

    def forward(x: Tensor, state: Tensor) -> Tensor:
        reset_x, update_x, new_x = cell.of_input(x).chunk(3, -1)
        reset_h, update_h, _ = cell.of_state(state).chunk(3, -1)
        reset, update = torch.sigmoid(reset_x + reset_h), torch.sigmoid(update_x + update_h)
        new_h = cell.of_state(reset * state).chunk(3, -1)[2]
        return cell.mix(torch.tanh(new_x + new_h), update, state)

    cell.forward = forward


@fault("gru", "gates exchanged", "order", "cell:chunk|add|sigmoid", codes=EITHER)
def _(t: Training) -> None:
    cell = t.model.cell

    def forward(x: Tensor, state: Tensor) -> Tensor:
        update_x, reset_x, new_x = cell.of_input(x).chunk(3, -1)
        reset_h, update_h, new_h = cell.of_state(state).chunk(3, -1)
        reset, update = torch.sigmoid(reset_x + reset_h), torch.sigmoid(update_x + update_h)
        return cell.mix(torch.tanh(new_x + reset * new_h), update, state)

    cell.forward = forward


@fault("gru", "lengths ignored", "mask", "@:where|lt|getitem", codes=EITHER)
def _(t: Training) -> None:
    t.model.carry = lambda new, state, living: new


@fault("gru", "lengths off by one", "mask", "@:add|lt", codes=EITHER)
def _(t: Training) -> None:
    forward = t.model.forward
    t.model.forward = lambda x, length: forward(x, length + 1)


@fault("gru", "gradient of the state zeroed", "gradient", "cell:add|mul|rsub", phase=("bwd", "grad"), codes=EITHER)
def _(t: Training) -> None:
    after(t.model.cell, hooked(torch.zeros_like), "mix")


@fault("gru", "state in bfloat16", "precision", "@:to|where|bfloat16", codes=(DTYPE, *EITHER), needs="fp32")
def _(t: Training) -> None:
    after(t.model, lambda state: state.to(torch.bfloat16).to(state.dtype), "carry")


@fault(
    "gru",
    "NAdam's momentum decay",
    "setting",
    "NAdam:-",
    phase=("opt", "param"),
    codes=OPTIMIZER,
    word="momentum_decay",
)
def _(t: Training) -> None:
    t.settings = {**t.settings, "momentum_decay": 0.04}


@fault("tp", "a partial sum left out", "structure", ("blocks.1.out:add", "blocks.1.out"), codes=EITHER)
def _(t: Training) -> None:
    t.model.blocks[1].out.reduce = lambda partial: partial[0]


@fault("tp", "partial sums averaged", "structure", "blocks.0.down:truediv|div|add|mul", codes=EITHER)
def _(t: Training) -> None:
    after(t.model.blocks[0].down, lambda total: total / 2, "reduce")


@fault("tp", "the bias on either shard", "structure", "blocks.1.down:add|mul", phase=BOTH, codes=EITHER)
def _(t: Training) -> None:
    row = t.model.blocks[1].down
    after(row, lambda y: y + row.bias)


@fault("tp", "shards gathered the wrong way round", "order", "@:cat", codes=EITHER)
def _(t: Training) -> None:
    t.model.gather = lambda parts: torch.cat(parts[::-1], -1)


@fault("tp", "shards interleaved", "order", "@:cat|stack|flatten", codes=EITHER)
def _(t: Training) -> None:
    t.model.gather = lambda parts: torch.stack(parts, -1).flatten(-2)


@fault("tp", "first id of a shard left out", "mask", "embed:ge|gt|and", codes=EITHER)
def _(t: Training) -> None:
    t.model.embed.own = lambda ids, index: (ids > index * 32) & (ids < (index + 1) * 32)


@fault(
    "tp",
    "a shard of another checkpoint",
    "weight",
    ("blocks.0.up.shards.1.weight", "blocks.0.up.shards.1"),
    phase=("param", "fwd"),
    codes=WEIGHT,
)
def _(t: Training) -> None:
    t.model.blocks[0].up.shards[1].weight.data.copy_(t.model.blocks[1].up.shards[1].weight.data)


@fault("tp", "gradient of one shard negated", "gradient", "blocks.0.down.shards.1", phase=BOTH, codes=EITHER)
def _(t: Training) -> None:
    after(t.model.blocks[0].down.shards[1], gradient(torch.neg))


@fault(
    "tp", "partial sums in bfloat16", "precision", "blocks.0.out:to|bfloat16|add", codes=(DTYPE, *EITHER), needs="fp32"
)
def _(t: Training) -> None:
    low = torch.bfloat16
    t.model.blocks[0].out.reduce = lambda partial: (partial[0].to(low) + partial[1].to(low)).to(partial[0].dtype)


@fault("perceiver", "mask inverted", "mask", "reader:invert|bitwise_not|getitem|masked_fill|logical_not", codes=EITHER)
def _(t: Training) -> None:
    look = t.model.reader.look
    t.model.reader.look = lambda q, k, v, here: look(q, k, v, ~here)


@fault("perceiver", "mask of the cache off by one", "mask", "attn:le|lt|arange|getitem|sub", codes=EITHER)
def _(t: Training) -> None:
    t.model.attn.mask = lambda num, length: torch.arange(length) <= torch.arange(length - num, length)[:, None] - 1


@fault("perceiver", "cache in bfloat16", "precision", "attn:to|bfloat16|cat", codes=(DTYPE, *EITHER), needs="fp32")
def _(t: Training) -> None:
    after(t.model.attn, lambda cache: [each.to(torch.bfloat16).to(each.dtype) for each in cache], "append")


@fault("perceiver", "cache in another order", "order", "attn:cat", codes=EITHER)
def _(t: Training) -> None:
    attn = t.model.attn
    attn.append = lambda cache, k, v: (
        [torch.cat([new, old], 2) for old, new in zip(cache, (k, v), strict=True)] if cache else [k, v]
    )


@fault("perceiver", "a stale cache", "in place", ("attn:cat|scaled_dot_product_attention", "attn"), codes=EITHER)
def _(t: Training) -> None:
    def stale(cache: list[Tensor]) -> list[Tensor]:
        cache[0].data[:, :, 0].mul_(1.5)
        return cache

    after(t.model.attn, stale, "append")


@fault(
    "perceiver",
    "k and v exchanged",
    "order",
    ("reader:chunk|view|transpose|matmul|masked_fill", "reader.kv"),
    codes=EITHER,
)
def _(t: Training) -> None:
    look = t.model.reader.look
    t.model.reader.look = lambda q, k, v, here: look(q, v, k, here)


@fault("perceiver", "latents without gradient", "gradient", "reader.latents", phase=BOTH, codes=EITHER)
def _(t: Training) -> None:
    t.model.reader.latents.register_hook(torch.zeros_like)


@fault("perceiver", "SiLU for ReLU", "structure", "mlp.1", codes=EITHER)
def _(t: Training) -> None:
    t.model.mlp[1] = nn.ReLU()


@fault("clip", "texts rolled by one", "order", "text:roll", codes=EITHER)
def _(t: Training) -> None:
    after(t.model.text, lambda x: x.roll(1, 0))


@fault("clip", "normalised over the batch", "numerics", "text:normalize|linalg_vector_norm|div|clamp_min", codes=EITHER)
def _(t: Training) -> None:
    t.model.text.unit = lambda x: functional.normalize(x, dim=0)


@fault("clip", "not normalised", "structure", ("image:normalize|div", "@:mul|matmul"), codes=EITHER)
def _(t: Training) -> None:
    t.model.image.unit = lambda x: x


@fault("clip", "scale not exponentiated", "structure", "@:exp|mul", codes=EITHER)
def _(t: Training) -> None:
    m = t.model
    m.compare = lambda image, text: m.logit_scale * image @ text.t()


@fault("clip", "one direction only", "loss", "~:cross_entropy|add|truediv|t", codes=EITHER)
def _(t: Training) -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        logits = model(batch["image"], batch["ids"]).float()
        return functional.cross_entropy(logits, torch.arange(len(logits)))

    t.loss = loss


@fault("clip", "a tower frozen by detach", "gradient", ("text:detach", "text"), phase=BOTH, codes=EITHER)
def _(t: Training) -> None:
    after(t.model.text, Tensor.detach)


@fault("clip", "rare tokens taken for one", "decision", "text.body.embed:clamp", codes=EITHER)
def _(t: Training) -> None:
    before(t.model.text.body.embed, lambda ids: ids.clamp(max=60))


@fault("clip", "one temperature", "weight", ("logit_scale", "@:exp"), phase=("param", "fwd"), codes=WEIGHT)
def _(t: Training) -> None:
    t.model.logit_scale.data.fill_(2.6)
