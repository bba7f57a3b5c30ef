"""Lower precision in one place, and other numbers than were meant: epsilons, approximations, hidden arguments."""

from __future__ import annotations

import torch
from benchmarks.compare.corpus.kit import DTYPE, FIRST, STRUCTURE, Batch, Training, after, fault, hide
from torch import Tensor, nn
from torch.nn import functional

LOWER = (DTYPE, STRUCTURE, FIRST)
EITHER = (FIRST, STRUCTURE)
CASTS = "to|bfloat16|half|float|type_as"


@fault("gpt", "softmax in bfloat16", "precision", f"blocks.1.attn:softmax|{CASTS}|add", codes=LOWER, needs="fp32")
def _(t: Training) -> None:
    attn = t.model.blocks[1].attn

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.matmul(q, k.transpose(-2, -1)) * attn.scale
        weights = torch.softmax((scores + attn.mask(scores)).to(torch.bfloat16), -1)
        return torch.matmul(weights.to(v.dtype), v)

    attn.attend = attend


@fault("llama", "a norm in bfloat16", "precision", f"layers.1.input_layernorm:{CASTS}|pow|mul", codes=LOWER)
def _(t: Training) -> None:
    norm = t.model.layers[1].input_layernorm

    def forward(x: Tensor) -> Tensor:
        low = x.to(torch.bfloat16)
        low = low * torch.rsqrt(low.pow(2).mean(-1, keepdim=True) + norm.eps)
        return norm.weight * low.to(x.dtype)

    norm.forward = forward


@fault("llama", "a perceptron inside of autocast", "precision", "layers.0.mlp.gate_proj", codes=LOWER, needs="fp32")
def _(t: Training) -> None:
    mlp = t.model.layers[0].mlp
    forward = mlp.forward

    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return forward(x)

    mlp.forward = cast


@fault(
    *("gpt", "a perceptron outside of autocast", "precision"),
    ("blocks.1.mlp.0", "blocks.1.mlp"),
    codes=LOWER,
    needs="autocast",
)
def _(t: Training) -> None:
    mlp = t.model.blocks[1].mlp
    forward = mlp.forward

    def cast(x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return forward(x.float())

    mlp.forward = cast


def _outside(module: nn.Module) -> None:
    forward = module.forward

    def cast(*args: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return forward(*(each.float() for each in args))

    module.forward = cast


@fault(
    *("unet", "a block outside of autocast", "precision"),
    ("mid.norm1", "mid.conv1", "mid"),
    codes=LOWER,
    needs="autocast",
)
def _(t: Training) -> None:
    _outside(t.model.mid)


@fault(
    "whisper", "a convolution outside of autocast", "precision", "model.encoder.conv2", codes=LOWER, needs="autocast"
)
def _(t: Training) -> None:
    _outside(t.model.model.encoder.conv2)


@fault("tp", "a shard outside of autocast", "precision", "blocks.1.up.shards.0", codes=LOWER, needs="autocast")
def _(t: Training) -> None:
    _outside(t.model.blocks[1].up.shards[0])


@fault("gpt", "the loss in bfloat16", "precision", "~:cross_entropy|float", codes=LOWER, needs="bf16")
def _(t: Training) -> None:
    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch["inputs"]).flatten(0, 1), batch["labels"].flatten())

    t.loss = loss


@fault("mamba", "the scan in bfloat16", "precision", f"mixers.1:{CASTS}|exp|neg|zeros|mul", codes=LOWER, needs="bf16")
def _(t: Training) -> None:
    mixer = t.model.mixers[1]
    mixer.decay = lambda: -torch.exp(mixer.A_log)


@fault("mamba", "the state in bfloat16", "precision", f"mixers.0:{CASTS}|mul|add|zeros|exp", codes=LOWER)
def _(t: Training) -> None:
    mixer = t.model.mixers[0]

    def scan(x: Tensor, dt: Tensor, b: Tensor, c: Tensor) -> Tensor:
        decay, state, out = mixer.decay(), torch.zeros(*x.shape[::2], mixer.num_states, dtype=torch.bfloat16), []
        for at in range(x.shape[1]):
            put = dt[:, at, :, None] * b[:, at, None, :] * x[:, at, :, None]
            state = (torch.exp(dt[:, at, :, None] * decay) * state + put).to(torch.bfloat16)
            out.append((state * c[:, at, None, :]).sum(-1))
        return torch.stack(out, 1).to(x.dtype)

    mixer.scan = scan


@fault("unet", "a convolution in half", "precision", f"mid:{CASTS}", codes=LOWER, needs="fp32")
def _(t: Training) -> None:
    after(t.model.mid, lambda x: x.half().float())


@fault("vit", "the head's input in bfloat16", "precision", f"@:{CASTS}|getitem", codes=LOWER, needs="fp32")
def _(t: Training) -> None:
    after(t.model, lambda x: x.to(torch.bfloat16).to(x.dtype), "pool")


@fault("moe", "the router in bfloat16", "precision", f"layers.0.moe.router:{CASTS}|linear", codes=LOWER, needs="fp32")
def _(t: Training) -> None:
    router = t.model.layers[0].moe.router
    low = torch.bfloat16
    router.forward = lambda x: functional.linear(x.to(low), router.weight.to(low)).to(x.dtype)


@fault("gnn", "the sum over edges in half", "precision", f"layers.1:{CASTS}|index_add|mul", codes=LOWER, needs="fp32")
def _(t: Training) -> None:
    after(t.model.layers[1], lambda weight: weight.half().float(), "weigh")


@fault("gpt", "eps of a LayerNorm 1e-3", "numerics", "blocks.1.norm1")
def _(t: Training) -> None:
    t.model.blocks[1].norm1.eps = 1e-3


@fault("llama", "eps of an RMSNorm 1e-3", "numerics", "layers.1.post_attention_layernorm:add")
def _(t: Training) -> None:
    t.model.layers[1].post_attention_layernorm.eps = 1e-3


@fault("resnet", "eps of a BatchNorm 1e-3", "numerics", "layer2.bn1")
def _(t: Training) -> None:
    t.model.layer2.bn1.eps = 1e-3


@fault(
    *("llama", "scale of attention hidden in the kernel", "numerics"),
    "layers.1.self_attn:scaled_dot_product_attention",
    needs="eager",
)
def _(t: Training) -> None:
    hide(t, "flash_attention", 1, scale=0.3)


@fault("convnext", "GELU approximate in the kernel", "numerics", "stages.1.act", needs="eager")
def _(t: Training) -> None:
    hide(t, "aten.gelu", 1, approximate="tanh")


@fault("vit", "GELU approximate by argument", "numerics", "blocks.1.mlp.act")
def _(t: Training) -> None:
    t.model.blocks[1].mlp.act = nn.GELU(approximate="tanh")


@fault("vit", "scale of attention 1.05 times", "numerics", "blocks.0.attn:mul")
def _(t: Training) -> None:
    t.model.blocks[0].attn.scale *= 1.05


@fault("unet", "two groups for four", "numerics", "mid.norm1")
def _(t: Training) -> None:
    t.model.mid.norm1.num_groups = 2


@fault("gnn", "negative slope 0.1", "numerics", "layers.0:leaky_relu|cat", codes=EITHER)
def _(t: Training) -> None:
    layer = t.model.layers[0]

    def weigh(x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        pairs = torch.cat([x[source], x[target]], -1)
        weight = functional.leaky_relu(layer.score(pairs), 0.1).squeeze(-1).exp()
        total = torch.zeros(len(x), dtype=weight.dtype).scatter_add(0, target, weight)
        return weight / total[target]

    layer.weigh = weigh


@fault("dlrm", "the mean of a bag", "numerics", "tables.1")
def _(t: Training) -> None:
    t.model.tables[1].mode = "mean"


@fault("mamba", "steps clamped", "numerics", "mixers.1:clamp|softplus", codes=EITHER)
def _(t: Training) -> None:
    after(t.model.mixers[1], lambda dt: dt.clamp(max=0.6), "step_size")


@fault("mlp", "eps of a LayerNorm 1e-4", "numerics", "norm2")
def _(t: Training) -> None:
    t.model.norm2.eps = 1e-4


@fault("gpt", "logits capped at 14", "numerics", "@:div|truediv|mul")
def _(t: Training) -> None:
    t.model.cap = 14.0


@fault("vae", "log variance clamped", "numerics", "log_var:clamp", codes=EITHER)
def _(t: Training) -> None:
    after(t.model.log_var, lambda x: x.clamp(max=0.05))
