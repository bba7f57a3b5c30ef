"""Faults of models of transformers, whose code is not ours: planted in what a script does with them."""

from __future__ import annotations

import torch
from benchmarks.compare.corpus.kit import (
    DTYPE,
    FIRST,
    OPTIMIZER,
    STRUCTURE,
    WEIGHT,
    Batch,
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
DATA = (FIRST, STRUCTURE)
UPDATE = ("opt", "param", "grad")
ATTENTION = "bert.encoder.layer.1.attention.self"


@fault("gpt2", "exact GELU", "structure", "transformer.h.1.mlp.act", codes=EITHER)
def _(t: Training) -> None:
    t.model.transformer.h[1].mlp.act = nn.GELU()


@fault("gpt2", "LayerNorm left out", "structure", ("transformer.h.1.ln_2", "transformer.h.1.mlp.c_fc"), codes=EITHER)
def _(t: Training) -> None:
    t.model.transformer.h[1].ln_2 = nn.Identity()


@fault("gpt2", "positions from one", "order", ("transformer.wpe:add", "transformer.wpe"), codes=EITHER)
def _(t: Training) -> None:
    before(t.model.transformer.wpe, lambda ids: ids + 1)


@fault(
    "gpt2",
    "q and v exchanged",
    "order",
    ("transformer.h.0.attn.c_attn:cat|roll|split", "transformer.h.0.attn.c_attn:-"),
    codes=EITHER,
)
def _(t: Training) -> None:
    after(t.model.transformer.h[0].attn.c_attn, lambda x: x.roll(32, -1))


@fault("gpt2", "gradient zeroed in a perceptron", "gradient", ("transformer.h.0.mlp.c_fc",), phase=BOTH, codes=EITHER)
def _(t: Training) -> None:
    after(t.model.transformer.h[0].mlp.c_fc, gradient(torch.zeros_like))


@fault("gpt2", "dropout left on", "structure", "transformer.h.1.mlp.dropout", codes=EITHER)
def _(t: Training) -> None:
    t.model.transformer.h[1].mlp.dropout.p = 0.1


@fault("gpt2", "weight decay 0.01", "setting", "AdamW:-", phase=UPDATE, codes=OPTIMIZER, word="weight_decay")
def _(t: Training) -> None:
    t.settings = {**t.settings, "weight_decay": 0.01}


@fault(
    "gpt2", "first token ignored", "loss", ("~:setitem|clone|masked_fill", "@:cross_entropy|pad|getitem"), codes=DATA
)
def _(t: Training) -> None:
    def prepare(batch: Batch) -> Batch:
        labels = batch["ids"].clone()
        labels[:, 1] = -100
        return {"input_ids": batch["ids"], "labels": labels}

    t.prepare = prepare


@fault(
    "gpt2",
    "an embedding that was not loaded",
    "weight",
    ("transformer.wpe.weight", "transformer.wpe"),
    phase=("param", "fwd"),
    codes=WEIGHT,
)
def _(t: Training) -> None:
    t.model.transformer.wpe.weight.data.normal_(std=0.02)


@fault(
    "gpt2",
    "attention's output in bfloat16",
    "precision",
    "transformer.h.0.attn.c_proj:to|bfloat16",
    codes=(DTYPE, *EITHER),
    needs="fp32",
)
def _(t: Training) -> None:
    before(t.model.transformer.h[0].attn.c_proj, lambda x: x.to(torch.bfloat16).to(x.dtype))


@fault("bert", "padding not masked", "mask", "~:ones_like", codes=DATA)
def _(t: Training) -> None:
    prepare = t.prepare
    t.prepare = lambda batch: {**prepare(batch), "attention_mask": torch.ones_like(batch["attention_mask"])}


@fault("bert", "padding mask inverted", "mask", "~:rsub", codes=DATA)
def _(t: Training) -> None:
    prepare = t.prepare
    t.prepare = lambda batch: {**prepare(batch), "attention_mask": 1 - batch["attention_mask"]}


@fault("bert", "tokens masked too often", "between", "~:mul|lt", codes=DATA)
def _(t: Training) -> None:
    prepare = t.prepare
    t.prepare = lambda batch: prepare({**batch, "chance": batch["chance"] * 0.8})


@fault("bert", "padding is scored", "loss", ("~:masked_fill", "@:cross_entropy"), codes=DATA)
def _(t: Training) -> None:
    prepare = t.prepare

    def scored(batch: Batch) -> Batch:
        made = prepare(batch)
        return {**made, "labels": made["labels"].masked_fill(batch["attention_mask"] == 0, 0)}

    t.prepare = scored


@fault("bert", "keys negated in the backward pass", "gradient", f"{ATTENTION}.key", phase=BOTH, codes=EITHER)
def _(t: Training) -> None:
    after(t.model.get_submodule(ATTENTION).key, gradient(torch.neg))


@fault("bert", "eps of a LayerNorm 1e-3", "numerics", "bert.encoder.layer.0.output.LayerNorm")
def _(t: Training) -> None:
    t.model.bert.encoder.layer[0].output.LayerNorm.eps = 1e-3


@fault("bert", "scale of attention", "numerics", f"{ATTENTION}:mul")
def _(t: Training) -> None:
    t.model.get_submodule(ATTENTION).scaling *= 1.1


@fault(
    "bert", "token types all one", "decision", ("bert.embeddings.token_type_embeddings:add|ones_like",), codes=EITHER
)
def _(t: Training) -> None:
    before(t.model.bert.embeddings.token_type_embeddings, torch.ones_like)


@fault("bert", "lr of another run", "setting", "AdamW:-", phase=UPDATE, codes=OPTIMIZER, word="lr")
def _(t: Training) -> None:
    t.settings = {**t.settings, "lr": 5e-4}


@fault("t5", "attention scaled", "numerics", "decoder.block.1.layer.0.SelfAttention:mul")
def _(t: Training) -> None:
    t.model.decoder.block[1].layer[0].SelfAttention.scaling = 8**-0.5


@fault(
    "t5",
    "relative positions of the other side",
    "order",
    "encoder.block.0.layer.0.SelfAttention:neg|flip|permute|transpose|unsqueeze",
    codes=EITHER,
)
def _(t: Training) -> None:
    after(t.model.encoder.block[0].layer[0].SelfAttention, lambda bias: bias.transpose(-1, -2), "compute_bias")


@fault(
    "t5",
    "RMSNorm with the mean removed",
    "structure",
    "encoder.block.1.layer.1.layer_norm:sub|mean|layer_norm",
    codes=EITHER,
)
def _(t: Training) -> None:
    before(t.model.encoder.block[1].layer[1].layer_norm, lambda x: x - x.mean(-1, keepdim=True))


@fault(
    "t5",
    "encoder detached",
    "gradient",
    ("encoder.final_layer_norm:detach", "encoder.final_layer_norm"),
    phase=BOTH,
    codes=EITHER,
)
def _(t: Training) -> None:
    after(t.model.encoder.final_layer_norm, Tensor.detach)


@fault("t5", "labels shifted once more", "between", "~:roll", codes=DATA)
def _(t: Training) -> None:
    prepare = t.prepare

    def rolled(batch: Batch) -> Batch:
        made = prepare(batch)
        return {**made, "labels": made["labels"].roll(1, 1)}

    t.prepare = rolled


@fault("t5", "cross attention sees padding", "mask", "~:ones_like", codes=DATA)
def _(t: Training) -> None:
    prepare = t.prepare
    t.prepare = lambda batch: {**prepare(batch), "attention_mask": torch.ones_like(batch["attention_mask"])}


@fault(
    "t5",
    "one row of the vocabulary",
    "weight",
    ("shared.weight", "shared", "lm_head.weight", "lm_head"),
    phase=("param", "fwd"),
    codes=WEIGHT,
)
def _(t: Training) -> None:
    t.model.shared.weight.data[9] *= 1.2


@fault("t5", "Adafactor's decay", "setting", "Adafactor:-", phase=UPDATE, codes=OPTIMIZER, word="beta2_decay")
def _(t: Training) -> None:
    t.settings = {**t.settings, "beta2_decay": -0.5}


@fault(
    "t5",
    "gradient zeroed by a hook in the decoder",
    "gradient",
    "decoder.block.0.layer.2.DenseReluDense.wi",
    phase=("bwd", "grad"),
    codes=EITHER,
)
def _(t: Training) -> None:
    after(t.model.decoder.block[0].layer[2].DenseReluDense.wi, hooked(torch.zeros_like))


@fault("whisper", "logarithm to base e", "between", "~:log|log10", codes=DATA)
def _(t: Training) -> None:
    def prepare(batch: Batch) -> Batch:
        loud = torch.log(batch["power"].clamp(min=1e-10))
        loud = torch.maximum(loud, loud.amax((1, 2), keepdim=True) - 8)
        return {"input_features": (loud + 4) / 4, "labels": batch["ids"]}

    t.prepare = prepare


@fault("whisper", "channels of the spectrogram flipped", "order", "~:flip", codes=DATA)
def _(t: Training) -> None:
    prepare = t.prepare
    t.prepare = lambda batch: prepare({**batch, "power": batch["power"].flip(1)})


@fault(
    "whisper", "positions not added", "structure", ("model.encoder.embed_positions", "model.encoder:add"), codes=EITHER
)
def _(t: Training) -> None:
    after(t.model.model.encoder.embed_positions, torch.zeros_like)


@fault("whisper", "a frame late", "order", "model.encoder.conv2:roll", codes=EITHER)
def _(t: Training) -> None:
    after(t.model.model.encoder.conv2, lambda x: x.roll(1, -1))


@fault(
    "whisper",
    "a convolution inside of autocast",
    "precision",
    "model.encoder.conv2",
    codes=(DTYPE, *EITHER),
    needs="fp32",
)
def _(t: Training) -> None:
    conv = t.model.model.encoder.conv2
    low = torch.bfloat16
    conv.forward = lambda x: functional.conv1d(
        x.to(low), conv.weight.to(low), conv.bias.to(low), stride=2, padding=1
    ).to(x.dtype)


@fault("whisper", "keys 1.1 times", "structure", "model.decoder.layers.0.encoder_attn.k_proj:mul", codes=EITHER)
def _(t: Training) -> None:
    after(t.model.model.decoder.layers[0].encoder_attn.k_proj, lambda x: 1.1 * x)


@fault("whisper", "gradient doubled in the decoder", "gradient", "model.decoder.layers.0.fc2", phase=BOTH, codes=EITHER)
def _(t: Training) -> None:
    after(t.model.model.decoder.layers[0].fc2, gradient(lambda g: 2 * g))


@fault(
    "whisper",
    "a head tied no more",
    "weight",
    ("proj_out.weight", "proj_out", "model.decoder.embed_tokens.weight"),
    phase=("param", "fwd", "bwd", "grad"),
    codes=(WEIGHT, STRUCTURE, "site-missing"),
)
def _(t: Training) -> None:
    t.model.proj_out.weight = nn.Parameter(t.model.proj_out.weight.detach().clone())
