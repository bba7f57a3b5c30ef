"""The language model that is recorded: a Llama of 4 layers with random weights, 512 tokens a step, float32, AdamW."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCAB, WIDTH, INNER, LAYERS, HEADS, LENGTH, BATCH = 1000, 256, 688, 4, 4, 128, 4


def build() -> nn.Module:
    """The model, the same at every call."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=LENGTH,
        use_cache=False,
    )
    return LlamaForCausalLM(config).train()


def tokens(step: int) -> Tensor:
    """int64 [BATCH, LENGTH], different at every step."""
    return torch.randint(0, VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(step))


def train_one(model: nn.Module, optimizer: torch.optim.Optimizer, batch: Tensor) -> float:
    """Forward, backward and update on int64 [BATCH, LENGTH]; the loss."""
    optimizer.zero_grad()
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    return loss.item()
