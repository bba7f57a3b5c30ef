"""A tiny Mixtral and a tiny DeepSeek of transformers with the parameters that vLLM makes of theirs.

Written after `stacked_params_mapping` of `vllm/model_executor/models/mixtral.py` and `deepseek_v2.py`, and `FusedMoE`:
q, k, v in one, q_a and kv_a in one, gate and up in one, w13 and w2 of all experts. What is computed of them is the code
of transformers.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers
from torch import Tensor, nn

B, L, VOCABULARY = 3, 8, 60
_SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "attn_implementation": "eager",
    "experts_implementation": "eager",
}


def mixtral() -> Any:
    """Four experts, two of which each token goes through."""
    torch.manual_seed(0)
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**_SMALL, num_local_experts=4)).eval()


def deepseek() -> Any:
    """The first layer is dense; latent attention, experts in two groups, a shared one."""
    torch.manual_seed(0)
    config = transformers.DeepseekV3Config(
        **_SMALL | {"num_key_value_heads": 4},
        q_lora_rank=12,
        kv_lora_rank=8,
        qk_rope_head_dim=4,
        qk_nope_head_dim=8,
        v_head_dim=8,
        n_routed_experts=4,
        n_group=2,
        topk_group=1,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        first_k_dense_replace=1,
    )
    return transformers.DeepseekV3ForCausalLM(config).eval()


class Part:
    """What a projection of transformers was: columns of the output of the one that it became a part of."""

    def __init__(self, whole: nn.Linear, columns: slice, *, first: bool) -> None:
        self.whole, self.columns, self.first = whole, columns, first

    def __call__(self, x: Tensor) -> Tensor:
        """The first part computes all."""
        if self.first:
            self.whole.made = self.whole(x)
        return self.whole.made[..., self.columns]


def _fuse(module: nn.Module, names: tuple[str, ...], whole: str) -> None:
    parts = [module._modules.pop(name) for name in names]
    fused = nn.Linear(parts[0].in_features, sum(part.out_features for part in parts), bias=False)
    fused.weight.data = torch.cat([part.weight.data for part in parts])
    setattr(module, whole, fused)
    start = 0
    for index, (name, part) in enumerate(zip(names, parts, strict=True)):
        object.__setattr__(module, name, Part(fused, slice(start, start + part.out_features), first=index == 0))
        start += part.out_features


def _rename(experts: nn.Module) -> None:
    for own, theirs in (("gate_up_proj", "w13_weight"), ("down_proj", "w2_weight")):
        param = experts._parameters.pop(own)
        experts.register_parameter(theirs, param)
        object.__setattr__(experts, own, param)


def served(model: Any) -> Any:
    """The same with vLLM's parameters."""
    model = copy.deepcopy(model)
    for name, module in list(model.named_modules()):
        if name.endswith("self_attn"):
            if hasattr(module, "q_a_proj"):
                _fuse(module, ("q_a_proj", "kv_a_proj_with_mqa"), "fused_qkv_a_proj")
            else:
                _fuse(module, ("q_proj", "k_proj", "v_proj"), "qkv_proj")
        elif name.endswith(".experts"):
            _rename(module)
        elif hasattr(module, "gate_proj"):
            _fuse(module, ("gate_proj", "up_proj"), "gate_up_proj")
    return model
