"""Models of transformers, small and with random weights."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.compare.corpus.kit import Batch, Training, family
from torch import Tensor, nn

VOCABULARY, LENGTH, PADDING, MASK = 64, 12, 0, 1


def _made(model: str, config: str, **settings: Any) -> nn.Module:
    import transformers

    made = getattr(transformers, config)(**settings, use_cache=False)
    made._attn_implementation = "eager"
    return getattr(transformers, model)(made)


def _loss(model: nn.Module, batch: Batch) -> Tensor:
    return model(**{name: value for name, value in batch.items() if name != "ids"}).loss


def _tokens(draw: torch.Generator, size: int = 4) -> Batch:
    return {"ids": torch.randint(3, VOCABULARY, (size, LENGTH), generator=draw)}


def _padded(draw: torch.Generator) -> Batch:
    lengths = torch.randint(6, LENGTH + 1, (4, 1), generator=draw)
    here = torch.arange(LENGTH) < lengths
    return {"ids": _tokens(draw)["ids"].where(here, PADDING), "attention_mask": here.long()}


@family("gpt2")
def gpt2() -> Training:
    size = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": VOCABULARY}
    off = {"initializer_range": 0.2, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}
    model = _made("GPT2LMHeadModel", "GPT2Config", **size, **off, bos_token_id=2, eos_token_id=2)
    settings = {"lr": 1e-3, "betas": (0.9, 0.95), "weight_decay": 0.1, "foreach": False}
    return Training(
        *(model, _tokens, _loss, lambda batch: {"input_ids": batch["ids"], "labels": batch["ids"]}), settings=settings
    )


@family("bert", micro=False)
def bert() -> Training:
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    off = {"initializer_range": 0.2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = _made("BertForMaskedLM", "BertConfig", **size, **off, vocab_size=VOCABULARY, max_position_embeddings=32)

    def batch(draw: torch.Generator) -> Batch:
        return {**_padded(draw), "chance": torch.rand(4, LENGTH, generator=draw)}

    def prepare(batch: Batch) -> Batch:
        hidden = (batch["chance"].float() < 0.3) & batch["attention_mask"].bool()
        masked, labels = batch["ids"].masked_fill(hidden, MASK), batch["ids"].masked_fill(~hidden, -100)
        return {"input_ids": masked, "labels": labels, "attention_mask": batch["attention_mask"]}

    return Training(model, batch, _loss, prepare)


@family("t5", micro=False)
def t5() -> Training:
    size = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": VOCABULARY}
    model = _made("T5ForConditionalGeneration", "T5Config", **size, dropout_rate=0.0, decoder_start_token_id=0)

    def prepare(batch: Batch) -> Batch:
        labels = batch["ids"].flip(1).masked_fill(batch["ids"].flip(1) == PADDING, -100)
        return {"input_ids": batch["ids"], "attention_mask": batch["attention_mask"], "labels": labels}

    return Training(model, _padded, _loss, prepare, torch.optim.Adafactor, {"lr": 1e-2, "foreach": False})


@family("whisper")
def whisper() -> Training:
    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    size = {"d_model": 32, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8, "max_source_positions": 16}
    tokens = {"init_std": 0.2, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    model = _made(
        *("WhisperForConditionalGeneration", "WhisperConfig"),
        **{**layers, **size, **tokens, "vocab_size": VOCABULARY, "max_target_positions": 16},
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )

    def batch(draw: torch.Generator) -> Batch:
        return {**_tokens(draw), "power": torch.rand(4, 8, 32, generator=draw) + 1e-3}

    def prepare(batch: Batch) -> Batch:
        loud = torch.log10(batch["power"].clamp(min=1e-10))
        loud = torch.maximum(loud, loud.amax((1, 2), keepdim=True) - 8)
        return {"input_features": (loud + 4) / 4, "labels": batch["ids"]}

    return Training(model, batch, _loss, prepare)
