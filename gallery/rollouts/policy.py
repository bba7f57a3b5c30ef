"""A small decoder with rotary positions, and an engine that samples from it token by token with a cache.

The engine shares no forward pass with the trainer: it keeps keys and values, computes one position at a time, and in a
dtype of its own. B sequences, T positions, D width, H heads, K width of a head, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


class Policy(nn.Module):
    """[B, T] token ids to logits [B, T, V]; ``scale`` of the logits makes it flat (small) or sharp (large)."""

    def __init__(
        self, *, vocabulary: int = 256, width: int = 64, layers: int = 3, heads: int = 4, scale: float = 2.5
    ) -> None:
        super().__init__()
        self.heads, self.scale = heads, scale
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.embed.weight)
        nn.init.normal_(self.head.weight, std=1 / math.sqrt(width))

    def forward(self, ids_BT: Tensor) -> Tensor:
        """The logits of the token that follows each position."""
        x_BTD = self.embed(ids_BT)
        for layer in self.layers:
            x_BTD = layer(x_BTD)
        return self.head(self.norm(x_BTD)) * self.scale


class Layer(nn.Module):
    """Causal attention with rotary positions, then a gated MLP, each behind a norm; ``dropout`` is 0 unless set."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.dropout = heads, 0.0
        self.norm_attn, self.norm_mlp = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gate_proj, self.up_proj = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.down_proj = nn.Linear(2 * width, width, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        """All positions at once."""
        q, k, v = self.qkv(x_BTD, torch.arange(x_BTD.shape[1]))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.rest(x_BTD, mixed)

    def qkv(self, x_BTD: Tensor, position_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[B, H, T, K] each; the first two turned by their positions."""
        y = self.norm_attn(x_BTD)
        q, k, v = (
            each(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q_proj, self.k_proj, self.v_proj)
        )
        return turned(q, position_T), turned(k, position_T), v

    def rest(self, x_BTD: Tensor, mixed_BHTK: Tensor) -> Tensor:
        """What follows the attention."""
        x_BTD = x_BTD + self.o_proj(mixed_BHTK.transpose(1, 2).flatten(-2))
        y = self.norm_mlp(x_BTD)
        y = self.down_proj(functional.silu(self.gate_proj(y)) * self.up_proj(y))
        return x_BTD + (functional.dropout(y, self.dropout) if self.dropout else y)


def turned(x_BHTK: Tensor, position_T: Tensor) -> Tensor:
    """Rotary embedding, halves as pairs (Su et al., arXiv 2104.09864, as Llama lays it out)."""
    half = x_BHTK.shape[-1] // 2
    rate_K = 10_000.0 ** (-torch.arange(half) / half)
    angle_TK = position_T[..., None] * rate_K
    cos, sin = angle_TK.cos().to(x_BHTK.dtype), angle_TK.sin().to(x_BHTK.dtype)
    a, b = x_BHTK[..., :half], x_BHTK[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


@dataclass(frozen=True)
class Sampling:
    """How an engine samples, and whether it records log-probabilities as they are after that (``processed``)."""

    temperature: float = 1.0
    top_p: float = 1.0
    processed: bool = True


@dataclass(frozen=True)
class Sampled:
    """``ids`` [B, L], ``logp`` [B, L] as the engine recorded them, ``top`` [B, L, 2] its two likeliest tokens and their
    log-odds ``odds``.
    """

    ids: Tensor
    logp: Tensor
    top: Tensor
    odds: Tensor


@torch.no_grad()
def generate(
    policy: Policy,
    prompt_BP: Tensor,
    *,
    length: int,
    sampling: Sampling,
    generator: torch.Generator,
    cache_drift: float = 0.0,
    forced_BL: Tensor | None = None,
) -> Sampled:
    """Sample ``length`` tokens after each prompt. ``cache_drift`` is the relative error that values in the cache take
    on with every token; ``forced_BL`` has tokens that are not sampled, -1 elsewhere.
    """
    cache: list[tuple[Tensor, Tensor]] = []
    logits = _extend(policy, prompt_BP, cache)
    parts: list[tuple[Tensor, ...]] = []
    for place in range(length):
        raw, processed = logits.float().log_softmax(-1), processed_logp(logits.float(), sampling)
        ids_B = torch.multinomial(processed.exp(), 1, generator=generator)[:, 0]
        if forced_BL is not None:
            ids_B = torch.where(forced_BL[:, place] >= 0, forced_BL[:, place], ids_B)
        recorded = processed if sampling.processed else raw
        top = recorded.topk(2, -1)
        parts.append(
            (ids_B, recorded.gather(-1, ids_B[:, None])[:, 0], top.indices, top.values[:, 0] - top.values[:, 1])
        )
        if cache_drift:
            cache = [(k, v * (1 + cache_drift * torch.randn(v.shape, generator=generator))) for k, v in cache]
        if place + 1 < length:
            logits = _extend(policy, ids_B[:, None], cache)
    ids, logp, top, odds = (torch.stack(each, 1) for each in zip(*parts, strict=True))
    return Sampled(ids, logp, top, odds)


def processed_logp(logits: Tensor, sampling: Sampling) -> Tensor:
    """Log-probabilities after temperature, then top-p: the fewest likeliest tokens that hold at least that much."""
    logp = (logits / sampling.temperature).log_softmax(-1)
    if sampling.top_p >= 1:
        return logp
    ordered, order = logp.sort(-1, descending=True)
    beyond = ordered.exp().cumsum(-1) - ordered.exp() >= sampling.top_p
    cut = torch.zeros_like(beyond).scatter(-1, order, beyond)
    return logp.masked_fill(cut, -math.inf).log_softmax(-1)


def _extend(policy: Policy, ids_BT: Tensor, cache: list[tuple[Tensor, Tensor]]) -> Tensor:
    """[B, V] logits after the last of some more tokens, whose keys and values join the ``cache``."""
    known = cache[0][0].shape[2] if cache else 0
    x = policy.embed(ids_BT)
    kept = [*cache]
    cache.clear()
    for index, layer in enumerate(policy.layers):
        q, k, v = layer.qkv(x, torch.arange(known, known + ids_BT.shape[1]))
        if known:
            k, v = torch.cat([kept[index][0], k], 2), torch.cat([kept[index][1], v], 2)
        cache.append((k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=not known)
        x = layer.rest(x, mixed)
    return policy.head(policy.norm(x[:, -1])) * policy.scale
