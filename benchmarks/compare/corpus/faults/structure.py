"""Calls that are inserted, removed, replaced or rewired."""

from __future__ import annotations

import torch
from benchmarks.compare.corpus.kit import FIRST, STRUCTURE, Training, after, before, fault
from torch import Tensor, nn
from torch.nn import functional

EITHER = (STRUCTURE, FIRST)


@fault("mlp", "Tanh for GELU", "structure", "act2", codes=EITHER)
def _(t: Training) -> None:
    t.model.act2 = nn.Tanh()


@fault("mlp", "residual left out", "structure", ("@:add", "head"), codes=EITHER)
def _(t: Training) -> None:
    m = t.model
    m.forward = lambda x: m.head(m.act2(m.norm2(m.fc2(m.act1(m.norm1(m.fc1(x)))))))


@fault("resnet", "amax for mean", "structure", "@:amax|mean", codes=EITHER)
def _(t: Training) -> None:
    t.model.pool = lambda x: x.amax((2, 3))


@fault("resnet", "norm after the sum", "structure", ("layer1.bn2", "layer1:add"), codes=EITHER)
def _(t: Training) -> None:
    b = t.model.layer1
    b.forward = lambda x: b.relu(b.bn2(b.conv2(b.relu(b.bn1(b.conv1(x)))) + x))


@fault("resnet", "LeakyReLU for ReLU", "structure", "layer3.relu", codes=EITHER)
def _(t: Training) -> None:
    t.model.layer3.relu = nn.LeakyReLU(0.01)


@fault("convnext", "drop_path in one run", "structure", "stages.1:rand|ge|to|mul|truediv|div", codes=EITHER)
def _(t: Training) -> None:
    t.model.stages[1].drop_path = 0.3


@fault("unet", "skip from elsewhere", "structure", "@:cat", codes=EITHER)
def _(t: Training) -> None:
    kept: list[Tensor] = []
    join = t.model.join
    after(t.model.conv_in, lambda x: kept.append(x) or x)
    t.model.join = lambda up, skip: join(up, kept.pop())


@fault("unet", "time left out of a block", "structure", ("down2:add|getitem|silu", "down2.time"), codes=EITHER)
def _(t: Training) -> None:
    b = t.model.down2

    def forward(x: Tensor, time: Tensor) -> Tensor:
        h = b.conv1(functional.silu(b.norm1(x)))
        return b.conv2(functional.silu(b.norm2(h))) + b.skip(x)

    b.forward = forward


@fault(
    *("vit", "norm behind the attention", "structure"),
    ("blocks.1.norm1", "blocks.1.attn", "blocks.1:add", "blocks.1.attn.qkv"),
    codes=EITHER,
)
def _(t: Training) -> None:
    b = t.model.blocks[1]

    def forward(x: Tensor) -> Tensor:
        x = b.norm1(x + b.attn(x))
        return x + b.mlp(b.norm2(x))

    b.forward = forward


@fault("vit", "mean for the class token", "structure", "@:mean|getitem", codes=EITHER)
def _(t: Training) -> None:
    t.model.pool = lambda x: x.mean(1)


@fault("vit", "ReLU for GELU", "structure", "blocks.0.mlp.act", codes=EITHER)
def _(t: Training) -> None:
    t.model.blocks[0].mlp.act = nn.ReLU()


@fault("gpt", "dropout in one run", "structure", "blocks.2.mlp:dropout", codes=EITHER)
def _(t: Training) -> None:
    after(t.model.blocks[2].mlp, lambda x: functional.dropout(x, 0.1))


@fault("gpt", "normalised twice", "structure", "blocks.1.attn:layer_norm", codes=EITHER)
def _(t: Training) -> None:
    before(t.model.blocks[1].attn, lambda x: functional.layer_norm(x, (48,)))


@fault(
    *("llama", "k is not rotated", "structure"),
    "layers.1.self_attn:mul|add|cat|chunk|neg|repeat_interleave|scaled_dot_product_attention",
    codes=EITHER,
)
def _(t: Training) -> None:
    attn = t.model.layers[1].self_attn
    rotate = attn.rotate
    attn.rotate = lambda x, cos, sin: rotate(x, cos, sin) if x.shape[1] == attn.num_heads else x


@fault("llama", "gate and up exchanged", "structure", "layers.0.mlp:silu|mul|Gated", codes=EITHER)
def _(t: Training) -> None:
    mlp = t.model.layers[0].mlp
    activate = mlp.activate
    mlp.activate = lambda gate, up: activate(up, gate)


@fault("llama", "adapter not scaled", "structure", "layers.1.self_attn.v_proj:mul|add", codes=EITHER)
def _(t: Training) -> None:
    lora = t.model.layers[1].self_attn.v_proj
    lora.forward = lambda x: lora.base(x) + lora.B(lora.A(x))


@fault("mamba", "exp for softplus", "structure", "mixers.0:softplus|exp", codes=EITHER)
def _(t: Training) -> None:
    mixer = t.model.mixers[0]
    mixer.step_size = lambda dt: mixer.dt_proj(dt).exp()


@fault("mamba", "D left out", "structure", "mixers.1:mul|add", codes=EITHER)
def _(t: Training) -> None:
    t.model.mixers[1].skip = lambda scanned, x: scanned


@fault("gnn", "graphs summed, not averaged", "structure", ("@:truediv|div|bincount|getitem|to", "head"), codes=EITHER)
def _(t: Training) -> None:
    m = t.model

    def forward(x: Tensor, source: Tensor, target: Tensor, graph: Tensor) -> Tensor:
        x = m.embed(x)
        for layer in m.layers:
            x = x + layer(x, source, target)
        return m.head(torch.zeros(4, 32, dtype=x.dtype).index_add(0, graph, x))

    m.forward = forward


@fault("dlrm", "ReLU left out of the bottom", "structure", ("bottom.3", "bottom.2"), codes=EITHER)
def _(t: Training) -> None:
    t.model.bottom[3] = nn.Identity()


@fault("vae", "log variance taken for log deviation", "structure", "@:mul|exp", codes=EITHER)
def _(t: Training) -> None:
    t.model.sample = lambda mean, log_var: mean + torch.exp(log_var) * torch.randn_like(mean)


@fault(
    *("moe", "one expert answers for another", "structure"),
    (
        *("layers.1.moe.experts.2", "layers.1.moe.experts.2.gate_proj"),
        *("layers.1.moe.experts.1", "layers.1.moe.experts.1.gate_proj"),
    ),
    codes=EITHER,
)
def _(t: Training) -> None:
    experts = t.model.layers[1].moe.experts
    experts[2].forward = experts[1].forward
