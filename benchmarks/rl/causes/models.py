"""The two policies as a trainer has them: a small decoder of 256 words, and a mixture of experts of transformers with
grouped queries and tied embeddings of 8,000 words.

B sequences, T positions, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from gallery.rollouts.policy import Policy
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Shape:
    """What an engine has to know of a model beside its weights. ``names`` are those of its parameters, by part;
    ``experts`` of a token of a mixture, 0 for none.
    """

    vocabulary: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    eps: float
    theta: float
    scale: float
    experts: int
    names: dict[str, str]

    def name(self, part: str, layer: int = 0) -> str:
        """The name of a part's parameter."""
        return self.names[part].format(layer)


class Small:
    """``gallery.rollouts.policy``: three layers of width 64, of 256 words."""

    parts = ("q", "k", "v", "o", "gate", "up", "down")

    def __init__(self) -> None:
        self.module: nn.Module = Policy(scale=4.0)
        front = "layers.{}."
        projections = {part: f"{front}{part}_proj.weight" for part in self.parts}
        norms = {"norm_attn": f"{front}norm_attn.weight", "norm_mlp": f"{front}norm_mlp.weight"}
        ends = {"embed": "embed.weight", "norm": "norm.weight", "head": "head.weight"}
        self.shape = Shape(256, 3, 4, 4, 16, 1e-5, 10_000.0, 4.0, 0, projections | norms | ends)

    def logits(self, ids_BT: Tensor, position_BT: Tensor, seen_BT: Tensor) -> Tensor:
        """[B, T, V] of the token that follows each position; padding is not ``seen``."""
        policy: Any = self.module
        length = ids_BT.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool).tril()
        mask = causal & seen_BT[:, None, None, :] | torch.eye(length, dtype=torch.bool)
        x_BTD = policy.embed(ids_BT)
        for layer in policy.layers:
            q, k, v = layer.qkv(x_BTD, position_BT[:, None, :])
            x_BTD = layer.rest(x_BTD, functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))
        return policy.head(policy.norm(x_BTD)) * policy.scale

    def drop(self, share: float) -> None:
        """Switch dropout on, or off with 0."""
        for layer in self.module.layers:
            layer.dropout = share


class Large:
    """Qwen3-MoE of transformers: two layers of width 64, four experts of which each token has two, 8,000 words."""

    parts = ("q", "k", "v", "o", "experts_up", "experts_down")

    def __init__(self) -> None:
        from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

        config = Qwen3MoeConfig(
            vocab_size=8000,
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            moe_intermediate_size=64,
            num_experts=4,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            tie_word_embeddings=True,
            max_position_embeddings=512,
            rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
            rms_norm_eps=1e-6,
            attn_implementation="sdpa",
        )
        self.module: nn.Module = Qwen3MoeForCausalLM(config).eval()
        for name, param in self.module.named_parameters():
            if param.ndim > 1:
                nn.init.normal_(param, std=0.65 if "embed" in name else 1 / math.sqrt(param.shape[-1]))
        # With tied embeddings a token would predict itself: signs let the likeliest words be others, as learning does.
        self.module.model.norm.weight.data = torch.randint(2, (64,)).float() * 2 - 1
        front = "model.layers.{}."
        names = {part: f"{front}self_attn.{part}_proj.weight" for part in ("q", "k", "v", "o")}
        names |= {f"norm_{part}": f"{front}self_attn.{part}_norm.weight" for part in ("q", "k")}
        names |= {"norm_attn": f"{front}input_layernorm.weight", "norm_mlp": f"{front}post_attention_layernorm.weight"}
        names |= {"router": f"{front}mlp.gate.weight", "experts_up": f"{front}mlp.experts.gate_up_proj"}
        names |= {"experts_down": f"{front}mlp.experts.down_proj"}
        names |= {"embed": "model.embed_tokens.weight", "norm": "model.norm.weight", "head": "lm_head.weight"}
        self.shape = Shape(8000, 2, 4, 2, 16, 1e-6, 10_000.0, 1.0, 2, names)

    def logits(self, ids_BT: Tensor, position_BT: Tensor, seen_BT: Tensor) -> Tensor:
        """[B, T, V] of the token that follows each position; padding is not ``seen``."""
        mask = None if bool(seen_BT.all()) else seen_BT.long()
        return self.module(ids_BT, attention_mask=mask, position_ids=position_BT, use_cache=False).logits

    def drop(self, share: float) -> None:
        """Switch dropout of attention on, or off with 0."""
        self.module.train(share > 0)
        for layer in self.module.model.layers:
            layer.self_attn.attention_dropout = share


MODELS = {"small": Small, "large": Large}
Model = Small | Large
