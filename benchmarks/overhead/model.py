"""The language model that is trained: 8.4M parameters at its own width, 512 tokens a rank and step, float32, AdamW."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCAB, WIDTH, LAYERS, HEADS, LENGTH, BATCH = 4096, 256, 8, 4, 128, 4


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_BTC: Tensor) -> Tensor:
        batch, length, width = x_BTC.shape
        q, k, v = (
            part.view(batch, length, HEADS, -1).transpose(1, 2) for part in self.qkv(self.norm1(x_BTC)).chunk(3, dim=-1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x_BTC = x_BTC + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x_BTC + self.down(nn.functional.gelu(self.up(self.norm2(x_BTC))))


class LanguageModel(nn.Module):
    """Embedding, blocks, head; returns the mean loss over next tokens."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.layers = nn.ModuleList([Block(width) for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, VOCAB, bias=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        x_BTC = self.embed(input_ids[:, :-1])
        for layer in self.layers:
            x_BTC = layer(x_BTC)
        logits = self.head(self.norm(x_BTC))
        return nn.functional.cross_entropy(logits.flatten(0, 1), input_ids[:, 1:].flatten())


def tokens(step: int, rank: int, device: str = "cpu") -> Tensor:
    """int64 [BATCH, LENGTH + 1], different on every rank and step."""
    generator = torch.Generator().manual_seed(100_000 * rank + step)
    return torch.randint(0, VOCAB, (BATCH, LENGTH + 1), generator=generator).to(device)
