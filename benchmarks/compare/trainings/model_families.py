"""Small models with random weights that `benchmarks.compare.models` trains: seven of transformers, and our problems.

Letters: B batch, L sequence length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from gallery.problems import CausalLM, Problem, Regression, Vision
from torch import Tensor, nn
from torch.nn import functional

BATCH_SIZE, LENGTH, VOCABULARY = 4, 16, 96
_SHAPE = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_LLAMA = {**_SHAPE, "intermediate_size": 64, "num_key_value_heads": 2, "max_position_embeddings": 64}


@dataclass(frozen=True)
class Family:
    """How a model is made, fed and scored, and which of its modules faults are planted in.

    ``linear`` and ``norm`` name a module of the second layer; '' where the model has none of that kind. ``gelu`` and
    ``causal`` say that there is an exact GELU, and attention with a causal mask through one kernel.
    """

    name: str
    model: Callable[[int], nn.Module]
    batch: Callable[[torch.Generator], Mapping[str, Tensor]]
    loss: Callable[[nn.Module, Mapping[str, Tensor]], Tensor]
    linear: str
    norm: str
    hugging_face: bool = True
    gelu: bool = False
    causal: bool = False


def _tokens(draw: torch.Generator) -> Mapping[str, Tensor]:
    ids_BL = torch.randint(VOCABULARY, (BATCH_SIZE, LENGTH), generator=draw)
    return {"input_ids": ids_BL, "labels": ids_BL}


def _images(draw: torch.Generator) -> Mapping[str, Tensor]:
    labels_B = torch.randint(4, (BATCH_SIZE,), generator=draw)
    return {"pixel_values": torch.randn(BATCH_SIZE, 3, 16, 16, generator=draw), "labels": labels_B}


def _its_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return model(**_cast(batch, model)).loss


def _cast(batch: Mapping[str, Tensor], model: nn.Module) -> dict[str, Tensor]:
    """The batch with floating-point columns in the dtype of the model."""
    floating = next(model.parameters()).dtype
    return {name: value.to(floating) if value.is_floating_point() else value for name, value in batch.items()}


def _of_problem(name: str, problem: Problem, linear: str, norm: str, **traits: bool) -> Family:
    def batch(draw: torch.Generator) -> Mapping[str, Tensor]:
        seed = int(torch.randint(1 << 30, (), generator=draw))
        return problem.dataset(BATCH_SIZE, seed=seed).columns

    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        cast = _cast(batch, model)
        if "y" in cast:
            return functional.mse_loss(model(cast["x"]).float(), batch["y"])
        return problem.loss(model, cast)

    return Family(name, lambda seed: problem.model(seed=seed), batch, loss, linear, norm, False, **traits)


def _hugging_face(
    name: str, made: str, config: str, linear: str, norm: str, *, traits: dict[str, Any], **settings: Any
) -> Family:
    def model(seed: int) -> nn.Module:
        import transformers

        torch.manual_seed(seed)
        return getattr(transformers, made)(getattr(transformers, config)(**settings)).train()

    return Family(name, model, loss=_its_loss, linear=linear, norm=norm, **{"batch": _tokens, **traits})


_CAUSAL, _GELU = {"causal": True}, {"gelu": True}
_MODEL_LAYER = ("model.layers.1.mlp.up_proj", "model.layers.1.input_layernorm")
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "activation_function": "gelu"}
_T5 = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "dropout_rate": 0.0}
_LAYERS = {key: value for key, value in _SHAPE.items() if key != "vocab_size"}
_VIT = {**_LAYERS, **_NO_DROPOUT, "intermediate_size": 64, "image_size": 16, "patch_size": 4, "num_labels": 4}

FAMILIES = (
    _hugging_face("Llama", "LlamaForCausalLM", "LlamaConfig", *_MODEL_LAYER, traits=_CAUSAL, **_LLAMA),
    _hugging_face("Qwen2", "Qwen2ForCausalLM", "Qwen2Config", *_MODEL_LAYER, traits=_CAUSAL, **_LLAMA),
    _hugging_face(
        *("Mixtral", "MixtralForCausalLM", "MixtralConfig"),
        *("model.layers.1.self_attn.o_proj", "model.layers.1.input_layernorm"),
        **{"traits": _CAUSAL, **_LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2},
    ),
    _hugging_face(
        *("GPT-2", "GPT2LMHeadModel", "GPT2Config", "transformer.h.1.mlp.c_fc", "transformer.h.1.ln_1"),
        **{"traits": _GELU | _CAUSAL, "vocab_size": VOCABULARY, **_GPT2},
        **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
    ),
    _hugging_face(
        *("BERT", "BertForMaskedLM", "BertConfig"),
        *("bert.encoder.layer.1.intermediate.dense", "bert.encoder.layer.1.attention.output.LayerNorm"),
        **{"traits": _GELU, **_SHAPE, **_NO_DROPOUT, "intermediate_size": 64, "max_position_embeddings": 64},
    ),
    _hugging_face(
        *("T5", "T5ForConditionalGeneration", "T5Config"),
        *("encoder.block.1.layer.1.DenseReluDense.wi", "encoder.block.1.layer.1.layer_norm"),
        **{"traits": {}, "vocab_size": VOCABULARY, **_T5, "decoder_start_token_id": 0},
    ),
    _hugging_face(
        *("ViT", "ViTForImageClassification", "ViTConfig", "", ""), traits=_GELU | {"batch": _images}, **_VIT
    ),
    _of_problem("CausalLM", CausalLM(), "blocks.1.mlp.0", "blocks.1.norm_attn", gelu=True, causal=True),
    _of_problem("CausalLM, tied", CausalLM(tied=True), "blocks.1.mlp.0", "blocks.1.norm_attn", gelu=True, causal=True),
    _of_problem("Regression", Regression(), "2", ""),
    _of_problem("Vision", Vision(), "3", "4"),
)
