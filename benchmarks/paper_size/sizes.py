"""How large the model is, how much is trained, and the rows of text that it is trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from trueline.demo.corpus import library_triples, load_triples
from trueline.demo.fine_tune import Material
from trueline.demo.model import ModelSpec
from trueline.demo.tokens import Sample, encode_triple, train_tokenizer

VOCAB_SIZE = 32_000
STIRRED = 5
"""Seed of the order in which triples are laid into rows."""


@dataclass(frozen=True, slots=True)
class Size:
    """One model and one training: ``workers`` of one row of ``num_tokens`` each, ``steps`` for each cell."""

    shape: dict[str, int]
    num_tokens: int = 1024
    workers: int = 8
    steps: int = 4


FULL = Size(
    {
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 22,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
    }
)
"""Those of TinyLlama-1.1B (its config.json): 1,100,048,384 parameters."""

TENTH = Size(
    {
        "hidden_size": 640,
        "intermediate_size": 1760,
        "num_hidden_layers": 14,
        "num_attention_heads": 10,
        "num_key_value_heads": 2,
    },
    num_tokens=256,
    steps=2,
)


def build(size: Size, *, seed: int) -> nn.Module:
    """A Llama of this size in bfloat16, with random weights from ``seed`` and without dropout."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=size.num_tokens,
        attn_implementation="sdpa",
        use_cache=False,
        **size.shape,
    )
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.bfloat16)
    try:
        return LlamaForCausalLM(config).train()
    finally:
        torch.set_default_dtype(torch.float32)


def read(data: Path | None, size: Size) -> Material:
    """Rows of just ``size.num_tokens`` tokens: samples of the demo, one behind the other, of which only the responses
    count in the loss. ``data`` is an Alpaca-format file (None: the standard library's sources).
    """
    triples = library_triples() if data is None else load_triples(data)
    tokenizer = train_tokenizer(triples, vocab_size=VOCAB_SIZE)
    order = np.random.default_rng(STIRRED).permutation(len(triples))
    samples = [encode_triple(triples[index], tokenizer, max_length=size.num_tokens) for index in order]
    return Material(_rows(samples, size.num_tokens), tokenizer.pad_id, ModelSpec(None, VOCAB_SIZE, size.num_tokens))


def _rows(samples: Sequence[Sample], length: int) -> list[Sample]:
    ids, labels = (_cut([getattr(sample, name) for sample in samples], length) for name in ("input_ids", "labels"))
    return [Sample(input_ids=one, labels=other) for one, other in zip(ids, labels, strict=True)]


def _cut(parts: list[Any], length: int) -> np.ndarray:
    whole = np.concatenate(parts)
    return whole[: len(whole) // length * length].reshape(-1, length)
