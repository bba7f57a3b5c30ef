"""Language models written out. Letters: B batch, L positions, D width, H heads, K width of a head, V vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.compare.corpus.kit import Batch, Training, family
from torch import Tensor, nn
from torch.nn import functional

VOCABULARY, LENGTH = 64, 12


def tokens(draw: torch.Generator, size: int = 4, length: int = LENGTH) -> Batch:
    """Random tokens."""
    return {"ids": torch.randint(VOCABULARY, (size, length + 1), generator=draw)}


def shifted(batch: Batch) -> Batch:
    """Each position predicts the next."""
    return {**batch, "inputs": batch["ids"][:, :-1], "labels": batch["ids"][:, 1:]}


def next_token(model: nn.Module, batch: Batch) -> Tensor:
    """The mean cross-entropy of all positions."""
    logits_BLV = model(batch["inputs"])
    return functional.cross_entropy(logits_BLV.flatten(0, 1).float(), batch["labels"].flatten())


def heads(x_BLD: Tensor, num: int) -> Tensor:
    """[B, H, L, K]."""
    return x_BLD.view(*x_BLD.shape[:2], num, -1).transpose(1, 2)


class CausalAttention(nn.Module):
    """Scores, a mask of finfo.min that is added, softmax: nothing fused."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads, self.scale = num_heads, (width // num_heads) ** -0.5
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def split(self, x_BLD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x_BLD).chunk(3, -1)
        return heads(q, self.num_heads), heads(k, self.num_heads), heads(v, self.num_heads)

    def mask(self, scores: Tensor) -> Tensor:
        length = scores.shape[-1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        return torch.zeros(length, length, dtype=scores.dtype).masked_fill(later, torch.finfo(scores.dtype).min)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.matmul(q, k.transpose(-2, -1)) * self.scale
        weights = torch.softmax(scores + self.mask(scores), -1)
        return torch.matmul(weights, v)

    def join(self, mixed: Tensor) -> Tensor:
        return mixed.transpose(1, 2).flatten(-2)

    def forward(self, x_BLD: Tensor) -> Tensor:
        return self.out(self.join(self.attend(*self.split(x_BLD))))


class GPTBlock(nn.Module):
    """LayerNorm, attention, LayerNorm, perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(width), CausalAttention(width, 4)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLD = x_BLD + self.attn(self.norm1(x_BLD))
        return x_BLD + self.mlp(self.norm2(x_BLD))


class GPT(nn.Module):
    """Three blocks, a head tied to the embedding, logits capped at 15."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCABULARY, 48), nn.Parameter(0.02 * torch.randn(LENGTH, 48))
        self.blocks = nn.ModuleList(GPTBlock(48) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(48), nn.Linear(48, VOCABULARY, bias=False)
        self.head.weight = self.embed.weight
        self.cap = 15.0

    def limit(self, logits_BLV: Tensor) -> Tensor:
        return self.cap * torch.tanh(logits_BLV / self.cap)

    def forward(self, ids_BL: Tensor) -> Tensor:
        x_BLD = self.embed(ids_BL) + self.position[: ids_BL.shape[1]]
        for block in self.blocks:
            x_BLD = block(x_BLD)
        return self.limit(self.head(self.norm(x_BLD)))


@family("gpt")
def gpt() -> Training:
    model = GPT()

    def clip(_: torch.optim.Optimizer) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)

    def schedule(optimizer: torch.optim.Optimizer) -> object:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 10)

    settings = {"lr": 3e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "foreach": False}
    return Training(*(model, tokens, next_token, shifted), settings=settings, schedule=schedule, before_update=clip)


class Rotary(nn.Module):
    """Cosines and sines of positions, for halves of a head."""

    def __init__(self, width: int, base: float = 10000.0) -> None:
        super().__init__()
        self.register_buffer("rates", base ** (-torch.arange(0, width, 2) / width), persistent=False)

    def forward(self, length: int) -> tuple[Tensor, Tensor]:
        angles_LK = torch.outer(torch.arange(length), self.rates.float()).repeat(1, 2)
        return angles_LK.cos().to(self.rates.dtype), angles_LK.sin().to(self.rates.dtype)


class LoRA(nn.Module):
    """A frozen linear and an adapter of low rank."""

    def __init__(self, inside: int, outside: int, rank: int = 4, alpha: float = 8.0) -> None:
        super().__init__()
        self.base, self.scaling = nn.Linear(inside, outside, bias=False), alpha / rank
        self.A, self.B = nn.Linear(inside, rank, bias=False), nn.Linear(rank, outside, bias=False)
        self.base.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.B(self.A(x)) * self.scaling


class LlamaAttention(nn.Module):
    """Grouped queries, rotary positions, LoRA on q and v, one fused kernel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_heads, self.num_groups = 4, 2
        self.q_proj, self.v_proj = LoRA(width, width), LoRA(width, width // 2)
        self.k_proj, self.o_proj = nn.Linear(width, width // 2, bias=False), nn.Linear(width, width, bias=False)
        self.rotary = Rotary(width // 4)
        self.attend = functional.scaled_dot_product_attention

    def rotate_half(self, x: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return torch.cat([-second, first], -1)

    def rotate(self, x: Tensor, cos_LK: Tensor, sin_LK: Tensor) -> Tensor:
        return x * cos_LK + self.rotate_half(x) * sin_LK

    def repeat(self, x_BGLK: Tensor) -> Tensor:
        return x_BGLK.repeat_interleave(self.num_heads // self.num_groups, 1)

    def forward(self, x_BLD: Tensor) -> Tensor:
        q, k = heads(self.q_proj(x_BLD), self.num_heads), heads(self.k_proj(x_BLD), self.num_groups)
        v = heads(self.v_proj(x_BLD), self.num_groups)
        turns = self.rotary(x_BLD.shape[1])
        q, k = self.rotate(q, *turns), self.rotate(k, *turns)
        mixed = self.attend(q, self.repeat(k), self.repeat(v), is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).flatten(-2))


class Gated(torch.autograd.Function):
    """``silu(gate) * up`` that keeps only its inputs, as fused kernels have it."""

    @staticmethod
    def forward(ctx: Any, gate: Tensor, up: Tensor) -> Tensor:
        ctx.save_for_backward(gate, up)
        return functional.silu(gate) * up

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        gate, up = ctx.saved_tensors
        chance = torch.sigmoid(gate)
        slope = chance * (1 + gate * (1 - chance))
        return gradients[0] * up * slope, gradients[0] * gate * chance


class SwiGLU(nn.Module):
    """A gated perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(width, 96, bias=False), nn.Linear(width, 96, bias=False)
        self.down_proj = nn.Linear(96, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activate(self.gate_proj(x), self.up_proj(x)))

    def activate(self, gate: Tensor, up: Tensor) -> Tensor:
        return Gated.apply(gate, up)


class RMSNorm(nn.Module):
    """As Llama has it: the mean in float32."""

    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


class LlamaLayer(nn.Module):
    """RMSNorm, attention, RMSNorm, gated perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.input_layernorm, self.self_attn = RMSNorm(width), LlamaAttention(width)
        self.post_attention_layernorm, self.mlp = RMSNorm(width), SwiGLU(width)

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLD = x_BLD + self.self_attn(self.input_layernorm(x_BLD))
        return x_BLD + self.mlp(self.post_attention_layernorm(x_BLD))


class Llama(nn.Module):
    """Two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, 48)
        self.layers = nn.ModuleList(LlamaLayer(48) for _ in range(2))
        self.norm, self.lm_head = RMSNorm(48), nn.Linear(48, VOCABULARY, bias=False)

    def forward(self, ids_BL: Tensor) -> Tensor:
        x_BLD = self.embed_tokens(ids_BL)
        for layer in self.layers:
            x_BLD = layer(x_BLD)
        return self.lm_head(self.norm(x_BLD))


@family("llama")
def llama() -> Training:
    model = Llama()
    settings = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.0, "foreach": False}
    return Training(model, tokens, next_token, shifted, settings=settings)


class MoE(nn.Module):
    """Each token goes to two of four experts; what they return is added up by ``index_add``."""

    def __init__(self, width: int, num_experts: int = 4, num_chosen: int = 2) -> None:
        super().__init__()
        self.num_chosen = num_chosen
        self.router = nn.Linear(width, num_experts, bias=False)
        self.experts = nn.ModuleList(SwiGLU(width) for _ in range(num_experts))
        self.order = list(range(num_experts))
        self.balance = torch.zeros(())

    def route(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        chances_NE = torch.softmax(self.router(x_ND).float(), -1)
        weight_NK, expert_NK = torch.topk(chances_NE, self.num_chosen)
        share_E = torch.zeros(len(self.experts)).scatter_add(0, expert_NK.flatten(), torch.ones(expert_NK.numel()))
        self.balance = (share_E / expert_NK.numel() * chances_NE.mean(0)).sum() * len(self.experts)
        return (weight_NK / weight_NK.sum(-1, keepdim=True)).to(x_ND.dtype), expert_NK

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_ND = x_BLD.flatten(0, 1)
        weight_NK, expert_NK = self.route(x_ND)
        sum_ND = torch.zeros_like(x_ND)
        for index in self.order:
            rows, slots = torch.where(expert_NK == index)
            done = self.experts[index](x_ND[rows]) * weight_NK[rows, slots, None]
            sum_ND = sum_ND.index_add(0, rows, done.to(sum_ND.dtype))
        return sum_ND.view_as(x_BLD)


class MoELayer(nn.Module):
    """Attention in one kernel, then experts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attn = RMSNorm(width), LlamaAttention(width)
        self.norm2, self.moe = RMSNorm(width), MoE(width)

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLD = x_BLD + self.attn(self.norm1(x_BLD))
        return x_BLD + self.moe(self.norm2(x_BLD))


class MoELM(nn.Module):
    """Two layers, each with four experts."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Embedding(VOCABULARY, 32), nn.ModuleList(MoELayer(32) for _ in range(2))
        self.norm, self.head = RMSNorm(32), nn.Linear(32, VOCABULARY, bias=False)

    def forward(self, ids_BL: Tensor) -> tuple[Tensor, Tensor]:
        x_BLD = self.embed(ids_BL)
        for layer in self.layers:
            x_BLD = layer(x_BLD)
        return self.head(self.norm(x_BLD)), sum(layer.moe.balance for layer in self.layers)


@family("moe", micro=False)
def moe() -> Training:
    model = MoELM()

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits_BLV, balance = model(batch["inputs"])
        main = functional.cross_entropy(logits_BLV.flatten(0, 1).float(), batch["labels"].flatten())
        return main + 0.01 * balance

    return Training(model, tokens, loss, shifted)


class SelectiveScan(nn.Module):
    """As Mamba has it: a causal convolution, then a state that is carried on in a loop."""

    def __init__(self, width: int, num_states: int = 4, rank: int = 4) -> None:
        super().__init__()
        self.rank, self.num_states = rank, num_states
        self.in_proj = nn.Linear(width, 2 * width, bias=False)
        self.conv1d = nn.Conv1d(width, width, 4, padding=3, groups=width)
        self.x_proj = nn.Linear(width, rank + 2 * num_states, bias=False)
        self.dt_proj = nn.Linear(rank, width)
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, num_states + 1)).repeat(width, 1))
        self.D, self.out_proj = nn.Parameter(torch.ones(width)), nn.Linear(width, width, bias=False)

    def convolve(self, x_BLD: Tensor) -> Tensor:
        return functional.silu(self.conv1d(x_BLD.transpose(1, 2))[..., : x_BLD.shape[1]].transpose(1, 2))

    def project(self, x_BLD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        dt_BLR, b_BLS, c_BLS = self.x_proj(x_BLD).split([self.rank, self.num_states, self.num_states], -1)
        return self.step_size(dt_BLR), b_BLS, c_BLS

    def step_size(self, dt_BLR: Tensor) -> Tensor:
        return functional.softplus(self.dt_proj(dt_BLR))

    def skip(self, scanned_BLD: Tensor, x_BLD: Tensor) -> Tensor:
        return scanned_BLD + x_BLD * self.D

    def decay(self) -> Tensor:
        return -torch.exp(self.A_log.float())

    def scan(self, x_BLD: Tensor, dt_BLD: Tensor, b_BLS: Tensor, c_BLS: Tensor) -> Tensor:
        decay_DS, state_BDS, out = self.decay(), torch.zeros(*x_BLD.shape[::2], self.num_states), []
        for at in range(x_BLD.shape[1]):
            kept_BDS = torch.exp(dt_BLD[:, at, :, None] * decay_DS)
            put_BDS = dt_BLD[:, at, :, None] * b_BLS[:, at, None, :] * x_BLD[:, at, :, None]
            state_BDS = kept_BDS * state_BDS + put_BDS
            out.append((state_BDS * c_BLS[:, at, None, :]).sum(-1))
        return torch.stack(out, 1).to(x_BLD.dtype)

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLD, gate_BLD = self.in_proj(x_BLD).chunk(2, -1)
        x_BLD = self.convolve(x_BLD)
        scanned_BLD = self.scan(x_BLD, *self.project(x_BLD))
        return self.out_proj(self.skip(scanned_BLD, x_BLD) * functional.silu(gate_BLD))


class Mamba(nn.Module):
    """Two scans, each behind an RMSNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.norms = nn.ModuleList(RMSNorm(32) for _ in range(2))
        self.mixers = nn.ModuleList(SelectiveScan(32) for _ in range(2))
        self.norm_f, self.head = RMSNorm(32), nn.Linear(32, VOCABULARY, bias=False)

    def forward(self, ids_BL: Tensor) -> Tensor:
        x_BLD = self.embed(ids_BL)
        for norm, mixer in zip(self.norms, self.mixers, strict=True):
            x_BLD = x_BLD + mixer(norm(x_BLD))
        return self.head(self.norm_f(x_BLD))


@family("mamba")
def mamba() -> Training:
    model = Mamba()
    return Training(model, lambda draw: tokens(draw, length=8), next_token, shifted)
