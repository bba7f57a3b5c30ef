"""Small models with random weights that `benchmarks.compare.models` trains: seven of transformers, and our problems.

Letters: B batch, L sequence length.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from trueline.testing.problems import CausalLM, Problem, Regression, Vision

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


def _hugging_face(made: str, config: str, **settings: Any) -> Callable[[int], nn.Module]:
    def model(seed: int) -> nn.Module:
        import transformers

        torch.manual_seed(seed)
        return getattr(transformers, made)(getattr(transformers, config)(**settings)).train()

    return model


def _tokens(draw: torch.Generator) -> Mapping[str, Tensor]:
    ids_BL = torch.randint(VOCABULARY, (BATCH_SIZE, LENGTH), generator=draw)
    return {"input_ids": ids_BL, "labels": ids_BL}


def _images(draw: torch.Generator) -> Mapping[str, Tensor]:
    labels_B = torch.randint(4, (BATCH_SIZE,), generator=draw)
    return {"pixel_values": torch.randn(BATCH_SIZE, 3, 16, 16, generator=draw), "labels": labels_B}


def _its_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    floating = next(model.parameters()).dtype
    cast = {name: value.to(floating) if value.is_floating_point() else value for name, value in batch.items()}
    return model(**cast).loss


def _of_problem(name: str, problem: Problem, linear: str, norm: str, **traits: bool) -> Family:
    def batch(draw: torch.Generator) -> Mapping[str, Tensor]:
        seed = int(torch.randint(1 << 30, (), generator=draw))
        return problem.dataset(BATCH_SIZE, seed=seed).columns

    def loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
        floating = next(model.parameters()).dtype
        cast = {name: value.to(floating) if value.is_floating_point() else value for name, value in batch.items()}
        if "y" in cast:
            return functional.mse_loss(model(cast["x"]).float(), batch["y"])
        return problem.loss(model, cast)

    return Family(name, lambda seed: problem.model(seed=seed), batch, loss, linear, norm, False, **traits)


def _hf(name: str, model: Callable[[int], nn.Module], linear: str, norm: str, **traits: Any) -> Family:
    batch = traits.pop("batch", _tokens)
    return Family(name, model, batch, _its_loss, linear, norm, **traits)


FAMILIES = (
    _hf(
        "Llama",
        _hugging_face("LlamaForCausalLM", "LlamaConfig", **_LLAMA),
        "model.layers.1.mlp.up_proj",
        "model.layers.1.input_layernorm",
        causal=True,
    ),
    _hf(
        "Qwen2",
        _hugging_face("Qwen2ForCausalLM", "Qwen2Config", **_LLAMA),
        "model.layers.1.mlp.up_proj",
        "model.layers.1.input_layernorm",
        causal=True,
    ),
    _hf(
        "Mixtral",
        _hugging_face("MixtralForCausalLM", "MixtralConfig", **_LLAMA, num_local_experts=4, num_experts_per_tok=2),
        "model.layers.1.self_attn.o_proj",
        "model.layers.1.input_layernorm",
        causal=True,
    ),
    _hf(
        "GPT-2",
        _hugging_face(
            "GPT2LMHeadModel",
            "GPT2Config",
            vocab_size=VOCABULARY,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=64,
            activation_function="gelu",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
        ),
        "transformer.h.1.mlp.c_fc",
        "transformer.h.1.ln_1",
        gelu=True,
        causal=True,
    ),
    _hf(
        "BERT",
        _hugging_face(
            "BertForMaskedLM",
            "BertConfig",
            **_SHAPE,
            intermediate_size=64,
            max_position_embeddings=64,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        "bert.encoder.layer.1.intermediate.dense",
        "bert.encoder.layer.1.attention.output.LayerNorm",
        gelu=True,
    ),
    _hf(
        "T5",
        _hugging_face(
            "T5ForConditionalGeneration",
            "T5Config",
            vocab_size=VOCABULARY,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=2,
            num_heads=4,
            dropout_rate=0.0,
            decoder_start_token_id=0,
        ),
        "encoder.block.1.layer.1.DenseReluDense.wi",
        "encoder.block.1.layer.1.layer_norm",
    ),
    _hf(
        "ViT",
        _hugging_face(
            "ViTForImageClassification",
            "ViTConfig",
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            image_size=16,
            patch_size=4,
            num_labels=4,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        ),
        "",
        "",
        batch=_images,
        gelu=True,
    ),
    _of_problem("CausalLM", CausalLM(), "blocks.1.mlp.0", "blocks.1.norm_attn", gelu=True, causal=True),
    _of_problem("CausalLM, tied", CausalLM(tied=True), "blocks.1.mlp.0", "blocks.1.norm_attn", gelu=True, causal=True),
    _of_problem("Regression", Regression(), "2", ""),
    _of_problem("Vision", Vision(), "3", "4"),
)
