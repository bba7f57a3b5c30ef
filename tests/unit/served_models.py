"""A causal language model as vLLM and as Megatron lay it out, with the weights of a Llama of transformers.

Written after `vllm/model_executor/models/llama.py` and `megatron/core/transformer/attention.py` (GQA through
`linear_qkv`, whose rows are grouped by key-value heads), without their kernels.

Letters: B batch, L length, T tokens (B·L), D width, H query heads, G key-value heads, d size of a head.
"""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

B, L, VOCABULARY = 3, 8, 60
D, H, G, INNER, LAYERS = 32, 4, 2, 48, 2
d = D // H


def llama(seed: int = 0) -> Any:
    """The Llama of transformers."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=D,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=H,
        num_key_value_heads=G,
        max_position_embeddings=64,
        initializer_range=0.2,
    )
    return transformers.LlamaForCausalLM(config)


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """[..., heads, d] rotated by [...] positions; neox style."""
    inverse = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.int64).float() / d)
    angle = torch.cat([positions[..., None].float() * inverse] * 2, dim=-1)[..., None, :]
    turned = torch.cat([-x[..., d // 2 :], x[..., : d // 2]], dim=-1)
    return x * angle.cos() + turned * angle.sin()


class RMSNorm(nn.Module):
    """Of the sum with a residual, where there is one, which is then returned as well."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """The norm in float32, as that of transformers."""
        x = x if residual is None else x + residual
        normed = self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))
        return normed if residual is None else (normed, x)


class VllmAttention(nn.Module):
    """One projection whose outputs are q, k and v one behind the other."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv_proj = nn.Linear(D, (H + 2 * G) * d, bias=False)
        self.o_proj = nn.Linear(D, D, bias=False)
        self.scale = d**-0.5

    def forward(self, positions_T: Tensor, x_TD: Tensor) -> Tensor:
        """[T, D]"""
        q, k, v = self.qkv_proj(x_TD).split([H * d, G * d, G * d], dim=-1)
        q, k = (rotated(part.view(len(part), -1, d), positions_T) for part in (q, k))
        q, k, v = (part.reshape(B, L, -1, d).transpose(1, 2) for part in (q, k, v))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).reshape(B * L, D))


class VllmMLP(nn.Module):
    """One projection for the gate and what it gates."""

    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(D, 2 * INNER, bias=False)
        self.down_proj = nn.Linear(INNER, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[T, D]"""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        return self.down_proj(functional.silu(gate) * up)


class VllmLayer(nn.Module):
    """Norms add the residual that they get."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn, self.mlp = VllmAttention(), VllmMLP()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(), RMSNorm()

    def forward(self, positions: Tensor, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor]:
        """What is to be added, and what to."""
        if residual is None:
            residual, x = x, self.input_layernorm(x)
        else:
            x, residual = self.input_layernorm(x, residual)
        x, residual = self.post_attention_layernorm(self.self_attn(positions, x), residual)
        return self.mlp(x), residual


class VllmModel(nn.Module):
    """Tokens in, hidden states out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, D)
        self.layers = nn.ModuleList(VllmLayer() for _ in range(LAYERS))
        self.norm = RMSNorm()

    def forward(self, ids_T: Tensor, positions_T: Tensor) -> Tensor:
        """[T, D]"""
        x, residual = self.embed_tokens(ids_T), None
        for layer in self.layers:
            x, residual = layer(positions_T, x, residual)
        return self.norm(x, residual)[0]


class Vllm(nn.Module):
    """All tokens of the batch one behind the other."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.model = VllmModel()
        self.lm_head = nn.Linear(D, VOCABULARY, bias=False)
        weights = source.state_dict()
        for layer in range(LAYERS):
            where = f"model.layers.{layer}"
            q, k, v = (weights.pop(f"{where}.self_attn.{name}_proj.weight") for name in "qkv")
            gate, up = (weights.pop(f"{where}.mlp.{name}_proj.weight") for name in ("gate", "up"))
            weights[f"{where}.self_attn.qkv_proj.weight"] = torch.cat([q, k, v])
            weights[f"{where}.mlp.gate_up_proj.weight"] = torch.cat([gate, up])
        self.load_state_dict(weights)

    def forward(self, input_ids: Tensor) -> Tensor:
        """[B, L, VOCABULARY]"""
        positions_T = torch.arange(L).repeat(B)
        return self.lm_head(self.model(input_ids.flatten(), positions_T)).view(B, L, -1)


class MegatronAttention(nn.Module):
    """One projection whose rows are, for each key-value head, its query heads, its key and its value."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_qkv = nn.Linear(D, (H + 2 * G) * d, bias=False)
        self.linear_proj = nn.Linear(D, D, bias=False)
        self.scale = d**-0.5

    def forward(self, x_LBD: Tensor) -> Tensor:
        """[L, B, D]"""
        mixed = self.linear_qkv(x_LBD).view(L, B, G, (H // G + 2) * d)
        q, k, v = mixed.split([H // G * d, d, d], dim=-1)
        positions_LB = torch.arange(L)[:, None].expand(L, B)
        q, k = (rotated(part.reshape(L, B, -1, d), positions_LB) for part in (q, k))
        q, k, v = (part.permute(1, 2, 0, 3) for part in (q, k, v.reshape(L, B, G, d)))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=True)
        return self.linear_proj(out.permute(2, 0, 1, 3).reshape(L, B, D))


class MegatronMLP(nn.Module):
    """The gate first, then what it gates."""

    def __init__(self) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(D, 2 * INNER, bias=False)
        self.linear_fc2 = nn.Linear(INNER, D, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[L, B, D]"""
        gate, up = self.linear_fc1(x).chunk(2, dim=-1)
        return self.linear_fc2(functional.silu(gate) * up)


class MegatronLayer(nn.Module):
    """Residuals outside of the norms."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm, self.pre_mlp_layernorm = RMSNorm(), RMSNorm()
        self.self_attention, self.mlp = MegatronAttention(), MegatronMLP()

    def forward(self, x: Tensor) -> Tensor:
        """[L, B, D]"""
        x = x + self.self_attention(self.input_layernorm(x))
        return x + self.mlp(self.pre_mlp_layernorm(x))


class Megatron(nn.Module):
    """Samples along the second dim."""

    def __init__(self, source: Any) -> None:
        super().__init__()
        self.embedding = nn.Module()
        self.embedding.word_embeddings = nn.Embedding(VOCABULARY, D)
        self.decoder = nn.Module()
        self.decoder.layers = nn.ModuleList(MegatronLayer() for _ in range(LAYERS))
        self.decoder.final_layernorm = RMSNorm()
        self.output_layer = nn.Linear(D, VOCABULARY, bias=False)
        self.load_state_dict(_of_megatron(source.state_dict()))

    def forward(self, input_ids: Tensor) -> Tensor:
        """[B, L, VOCABULARY]"""
        x = self.embedding.word_embeddings(input_ids).transpose(0, 1).contiguous()
        for layer in self.decoder.layers:
            x = layer(x)
        return self.output_layer(self.decoder.final_layernorm(x)).transpose(0, 1).contiguous()


def _of_megatron(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    found = {
        "embedding.word_embeddings.weight": weights["model.embed_tokens.weight"],
        "decoder.final_layernorm.weight": weights["model.norm.weight"],
        "output_layer.weight": weights["lm_head.weight"],
    }
    for layer in range(LAYERS):
        theirs, own = f"model.layers.{layer}", f"decoder.layers.{layer}"
        q, k, v = (weights[f"{theirs}.self_attn.{name}_proj.weight"] for name in "qkv")
        rows = [q.view(G, -1, d, D), k.view(G, 1, d, D), v.view(G, 1, d, D)]
        gate, up = (weights[f"{theirs}.mlp.{name}_proj.weight"] for name in ("gate", "up"))
        found |= {
            f"{own}.input_layernorm.weight": weights[f"{theirs}.input_layernorm.weight"],
            f"{own}.pre_mlp_layernorm.weight": weights[f"{theirs}.post_attention_layernorm.weight"],
            f"{own}.self_attention.linear_qkv.weight": torch.cat(rows, dim=1).reshape(-1, D),
            f"{own}.self_attention.linear_proj.weight": weights[f"{theirs}.self_attn.o_proj.weight"],
            f"{own}.mlp.linear_fc1.weight": torch.cat([gate, up]),
            f"{own}.mlp.linear_fc2.weight": weights[f"{theirs}.mlp.down_proj.weight"],
        }
    return found
