"""Gradients that are negated, zeroed, scaled or missing while the forward pass is right."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.compare.corpus.families.language import Gated
from benchmarks.compare.corpus.kit import FIRST, STRUCTURE, Training, after, before, fault, gradient, hooked
from torch import Tensor

CUT = (FIRST, STRUCTURE)
BOTH = ("fwd", "bwd", "grad")


def negated(g: Tensor) -> Tensor:
    """The other way."""
    return -g


def zeroed(g: Tensor) -> Tensor:
    """Nothing arrives."""
    return torch.zeros_like(g)


@fault("mlp", "gradient negated in fc2", "gradient", "fc2", phase=BOTH, codes=CUT)
def _(t: Training) -> None:
    after(t.model.fc2, gradient(negated))


@fault("mlp", "gradient zeroed by a hook at act1", "gradient", "act1", phase=("bwd", "grad"), codes=CUT)
def _(t: Training) -> None:
    after(t.model.act1, hooked(zeroed))


@fault("dlrm", "gradient halved at the interaction", "gradient", "@:cat|view_as", phase=BOTH, codes=CUT)
def _(t: Training) -> None:
    after(t.model, gradient(lambda g: 0.5 * g), "interact")


@fault("dlrm", "a bag detached", "gradient", "tables.2", phase=BOTH, codes=CUT)
def _(t: Training) -> None:
    after(t.model.tables[2], Tensor.detach)


@fault("gnn", "gradient doubled in the scores", "gradient", "layers.1.score", phase=BOTH, codes=CUT)
def _(t: Training) -> None:
    after(t.model.layers[1].score, gradient(lambda g: 2 * g))


@fault(
    "gnn", "gradient zeroed by a hook at the messages", "gradient", "layers.0.other", phase=("bwd", "grad"), codes=CUT
)
def _(t: Training) -> None:
    after(t.model.layers[0].other, hooked(zeroed))


@fault("vae", "reparametrisation detached", "gradient", "@:detach|mul|add|exp", phase=BOTH, codes=CUT)
def _(t: Training) -> None:
    t.model.sample = lambda mean, log_var: mean + (torch.exp(0.5 * log_var) * torch.randn_like(mean)).detach()


@fault("resnet", "gradient times 1.05 in a BatchNorm", "gradient", "layer2.bn2", phase=BOTH, codes=CUT)
def _(t: Training) -> None:
    after(t.model.layer2.bn2, gradient(lambda g: 1.05 * g))


@fault("resnet", "shortcut detached", "gradient", "layer2.downsample", phase=BOTH, codes=CUT)
def _(t: Training) -> None:
    after(t.model.layer2.downsample, Tensor.detach)


@fault("convnext", "gradient of gamma zeroed", "gradient", "stages.1.gamma", phase=("bwd", "grad"))
def _(t: Training) -> None:
    t.model.stages[1].gamma.register_hook(zeroed)


@fault("unet", "gradient negated through the skip", "gradient", ("@:cat|view_as", "down1"), phase=BOTH, codes=CUT)
def _(t: Training) -> None:
    join = t.model.join
    t.model.join = lambda up, skip: join(up, gradient(negated)(skip))


@fault(
    "vit", "gradient halved in an attention", "gradient", ("blocks.0.attn", "blocks.0.attn.proj"), phase=BOTH, codes=CUT
)
def _(t: Training) -> None:
    after(t.model.blocks[0].attn, gradient(lambda g: 0.5 * g))


@fault("gpt", "gradient zeroed behind the cap", "gradient", "@:mul|tanh|div|view_as", phase=BOTH, codes=CUT)
def _(t: Training) -> None:
    after(t.model, gradient(zeroed), "limit")


@fault(
    "gpt", "gradient negated in an attention", "gradient", ("blocks.1.attn", "blocks.1.attn.out"), phase=BOTH, codes=CUT
)
def _(t: Training) -> None:
    after(t.model.blocks[1].attn, gradient(negated))


@fault("gpt", "gradient of q halved", "gradient", "blocks.1.attn:transpose|matmul|view_as", phase=BOTH, codes=CUT)
def _(t: Training) -> None:
    after(t.model.blocks[1].attn, lambda qkv: (gradient(lambda g: 0.5 * g)(qkv[0]), *qkv[1:]), "split")


@fault("gpt", "a perceptron without gradients", "gradient", ("blocks.0.mlp.2", "blocks.0.mlp"), phase=BOTH, codes=CUT)
def _(t: Training) -> None:
    mlp = t.model.blocks[0].mlp
    mlp.forward = torch.no_grad()(mlp.forward)


@fault(
    *("llama", "adapter detached", "gradient"),
    ("layers.0.self_attn.q_proj.A", "layers.0.self_attn.q_proj.B:detach"),
    phase=BOTH,
    codes=CUT,
)
def _(t: Training) -> None:
    before(t.model.layers[0].self_attn.q_proj.B, Tensor.detach)


@fault("llama", "gradient doubled into the gate", "gradient", "layers.1.mlp.gate_proj", phase=BOTH, codes=CUT)
def _(t: Training) -> None:
    after(t.model.layers[1].mlp.gate_proj, gradient(lambda g: 2 * g))


@fault("moe", "router weights detached", "gradient", "layers.0.moe:detach|to|div", phase=BOTH, codes=CUT)
def _(t: Training) -> None:
    after(t.model.layers[0].moe, lambda routed: (routed[0].detach(), routed[1]), "route")


@fault("mamba", "state detached at each position", "gradient", "mixers.1:detach|mul|add", phase=BOTH, codes=CUT)
def _(t: Training) -> None:
    mixer = t.model.mixers[1]

    def scan(x: Tensor, dt: Tensor, b: Tensor, c: Tensor) -> Tensor:
        decay, state, out = mixer.decay(), torch.zeros(*x.shape[::2], mixer.num_states), []
        for at in range(x.shape[1]):
            put = dt[:, at, :, None] * b[:, at, None, :] * x[:, at, :, None]
            state = torch.exp(dt[:, at, :, None] * decay) * state.detach() + put
            out.append((state * c[:, at, None, :]).sum(-1))
        return torch.stack(out, 1).to(x.dtype)

    mixer.scan = scan


@fault("mamba", "gradient times 1.05 in dt_proj", "gradient", "mixers.0.dt_proj", phase=BOTH, codes=CUT)
def _(t: Training) -> None:
    after(t.model.mixers[0].dt_proj, gradient(lambda g: 1.05 * g))


@fault(
    "llama",
    "a term left out of a custom backward",
    "gradient",
    ("layers.1.mlp:mul|silu|Gated", "layers.1.mlp.gate_proj", "~:rsub|add|sigmoid"),
    phase=("bwd", "grad"),
)
def _(t: Training) -> None:
    class Wrong(Gated):
        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
            gate, up = ctx.saved_tensors
            return gradients[0] * up * torch.sigmoid(gate), gradients[0] * gate * torch.sigmoid(gate)

    t.model.layers[1].mlp.activate = Wrong.apply


@fault(
    *("moe", "a sign wrong in a custom backward", "gradient"),
    ("layers.0.moe.experts.1:mul|silu|Gated", "layers.0.moe.experts.1.up_proj"),
    phase=("bwd", "grad"),
    needs="eager",  # dynamo traces no autograd function with a backward of its own that calls another's
)
def _(t: Training) -> None:
    class Wrong(Gated):
        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
            of_gate, of_up = Gated.backward(ctx, *gradients)
            return of_gate, -of_up

    t.model.layers[0].moe.experts[1].activate = Wrong.apply
