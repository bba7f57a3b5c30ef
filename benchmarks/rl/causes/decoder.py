"""A rollout engine by hand, for both models: weights that are fused as they are loaded, a cache of keys and values, one
token at a time.

B sequences, T positions, D width, H heads, G heads of keys, K width of a head, E experts, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from benchmarks.rl.causes.models import Shape
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Sampling:
    """How an engine samples. ``records`` says of which distribution its log-probabilities are: what it samples from
    (``processed``), or that of the logits as they are (``raw``).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition: float = 1.0
    presence: float = 0.0
    records: str = "processed"


@dataclass
class Cache:
    """Keys and values [B, G, T, K] of each layer, and which of the T positions are no padding."""

    keys: list[Tensor]
    values: list[Tensor]
    seen_BT: Tensor


@dataclass(frozen=True)
class Sampled:
    """``ids`` [B, L], ``logp`` [B, L] as recorded, ``top`` [B, L, 2] its two likeliest words, their log-odds ``odds``;
    ``mask`` [B, L] is 0 where a token was forced, and behind the end.
    """

    ids: Tensor
    logp: Tensor
    top: Tensor
    odds: Tensor
    mask: Tensor


@dataclass
class Engine:
    """Samples from weights that ``load`` took over. ``params`` are these as it holds them, ``derived`` is what it makes
    of them to compute with.
    """

    shape: Shape
    sampling: Sampling
    generator: torch.Generator
    params: dict[str, Tensor] = field(default_factory=dict)
    derived: dict[str, Any] = field(default_factory=dict)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take over the trainer's weights, by name."""
        self.params = {name: self.taken(name, value) for name, value in weights.items()}
        self.derived = self.derive()

    def taken(self, name: str, value: Tensor) -> Tensor:
        """A weight as it is kept."""
        del name
        return value.detach().clone()

    def weight(self, part: str, layer: int = 0) -> Tensor:
        """The weight of a part as it is kept."""
        return self.params[self.shape.name(part, layer)]

    def derive(self) -> dict[str, Any]:
        """What is computed with: matrices of several parts in one, the output's transposed, tables of positions."""
        derived: dict[str, Any] = {}
        for layer in range(self.shape.layers):
            derived[f"qkv.{layer}"] = torch.cat([self.weight(part, layer) for part in ("q", "k", "v")])
            if self.shape.experts:
                derived[f"up.{layer}"] = self.weight("experts_up", layer)
                derived[f"down.{layer}"] = self.weight("experts_down", layer)
            else:
                derived[f"up.{layer}"] = torch.cat([self.weight(part, layer) for part in ("gate", "up")])[None]
                derived[f"down.{layer}"] = self.weight("down", layer)[None]
        tied = self.shape.name("head") not in self.params
        derived["head"] = self.weight("embed" if tied else "head").T.contiguous()
        derived["rate"] = self.rates()
        return derived

    def rates(self) -> Tensor:
        """[K/2] by which a position turns each pair."""
        half = self.shape.head_width // 2
        return self.shape.theta ** (-torch.arange(half) / half)

    def forward(
        self, ids_BT: Tensor, position_BT: Tensor, seen_BT: Tensor, cache: Cache | None
    ) -> tuple[Tensor, Cache]:
        """[B, V] logits after the last of some more tokens, and the cache with these."""
        seen = seen_BT if cache is None else torch.cat([cache.seen_BT, seen_BT], 1)
        longer = Cache([], [], seen)
        x = self.weight("embed")[ids_BT]
        for layer in range(self.shape.layers):
            q, k, v = self.qkv(self.normed(x, "norm_attn", layer), position_BT, layer)
            if cache is not None:
                k, v = torch.cat([cache.keys[layer], k], 2), torch.cat([cache.values[layer], v], 2)
            longer.keys.append(k)
            longer.values.append(v)
            x = x + self.attended(q, k, v, seen, layer) @ self.weight("o", layer).T
            x = x + self.mixed(self.normed(x, "norm_mlp", layer), layer)
        return self.logits(self.normed(x[:, -1], "norm")), longer

    def logits(self, x_BD: Tensor) -> Tensor:
        """[B, V] float32."""
        return (x_BD @ self.derived["head"]).float() * self.shape.scale

    def normed(self, x: Tensor, part: str, layer: int = 0) -> Tensor:
        """Divided by the root of its mean square, in float32."""
        y = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + self.shape.eps)
        return y.to(x.dtype) * self.weight(part, layer)

    def qkv(self, y_BTD: Tensor, position_BT: Tensor, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """[B, H, T, K], [B, G, T, K] twice; the first two turned by their positions."""
        shape = self.shape
        parts = (y_BTD @ self.derived[f"qkv.{layer}"].T).unflatten(-1, (-1, shape.head_width)).transpose(1, 2)
        q, k, v = parts.split([shape.heads, shape.kv_heads, shape.kv_heads], 1)
        if "norm_q" in shape.names:
            q, k = self.normed(q, "norm_q", layer), self.normed(k, "norm_k", layer)
        return self.turned(q, position_BT), self.turned(k, position_BT), v

    def turned(self, x_BHTK: Tensor, position_BT: Tensor) -> Tensor:
        """Rotary embedding, halves as pairs."""
        half = x_BHTK.shape[-1] // 2
        angle = position_BT[:, None, :, None] * self.derived["rate"]
        cos, sin = angle.cos().to(x_BHTK.dtype), angle.sin().to(x_BHTK.dtype)
        a, b = x_BHTK[..., :half], x_BHTK[..., half:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def attended(self, q: Tensor, k: Tensor, v: Tensor, seen_BT: Tensor, layer: int) -> Tensor:
        """[B, T, H K]: causal, and blind to padding."""
        del layer
        each = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
        scores = q @ k.transpose(-1, -2) / math.sqrt(self.shape.head_width)
        new, known = q.shape[2], k.shape[2]
        causal = torch.ones(new, known, dtype=torch.bool).tril(known - new)
        visible = self.visible(causal) & seen_BT[:, None, None, :]
        # padding sees itself, so that no row is empty
        visible = visible | torch.eye(new, known, dtype=torch.bool) if new == known else visible
        share = scores.float().masked_fill(~visible, -math.inf).softmax(-1).to(v.dtype)
        return (share @ v).transpose(1, 2).flatten(-2)

    def visible(self, causal: Tensor) -> Tensor:
        """Which of all positions each of the new ones sees."""
        return causal

    def mixed(self, y_BTD: Tensor, layer: int) -> Tensor:
        """What the MLP makes of it, or the experts that the router chooses."""
        up, down = self.derived[f"up.{layer}"], self.derived[f"down.{layer}"]
        if not self.shape.experts:
            return self.expert(y_BTD, up[0], down[0])
        share_BTE = self.routed(y_BTD, layer)
        return sum(share_BTE[..., e, None] * self.expert(y_BTD, up[e], down[e]) for e in range(len(up)))

    def expert(self, y_BTD: Tensor, up: Tensor, down: Tensor) -> Tensor:
        """A gated MLP."""
        gate, rest = (y_BTD @ up.T).chunk(2, -1)
        return (functional.silu(gate) * rest) @ down.T

    def routed(self, y_BTD: Tensor, layer: int) -> Tensor:
        """[B, T, E] the share of each expert, 0 for those that are not chosen."""
        p_BTE = (y_BTD @ self.weight("router", layer).T).float().softmax(-1)
        best = p_BTE.topk(self.shape.experts, -1)
        share = best.values / best.values.sum(-1, keepdim=True)
        return torch.zeros_like(p_BTE).scatter(-1, best.indices, share).to(y_BTD.dtype)

    def tokens(self, prompts: Sequence[Sequence[int]]) -> list[list[int]]:
        """The prompts as the engine has them."""
        return [list(prompt) for prompt in prompts]

    def prefill(self, prompts: list[list[int]]) -> tuple[Tensor, Cache, Tensor]:
        """[B, V] logits after the prompts, the cache, and [B] the next position of each."""
        ids, position, seen = padded(prompts)
        logits, cache = self.forward(ids, position, seen, None)
        return logits, cache, position[:, -1] + 1

    @torch.no_grad()
    def generate(self, prompts: Sequence[Sequence[int]], length: int, forced_BL: Tensor, ends: int) -> Sampled:
        """Sample ``length`` tokens after each prompt. ``forced_BL`` has tokens that are not sampled, -1 elsewhere; a
        sampled token below ``ends`` ends its sequence.
        """
        own = self.tokens(prompts)
        logits, cache, position_B = self.prefill(own)
        history = History(own, self.shape.vocabulary)
        parts: list[tuple[Tensor, ...]] = []
        open_B = torch.ones(len(own), dtype=torch.bool)
        for place in range(length):
            raw = logits.log_softmax(-1)
            processed = self.processed(logits, history)
            ids_B = self.drawn(processed)
            free_B = forced_BL[:, place] < 0
            ids_B = torch.where(free_B, ids_B, forced_BL[:, place])
            recorded = self.recorded(raw, processed)
            top = recorded.topk(2, -1)
            odds = top.values[:, 0] - top.values[:, 1]
            parts.append((ids_B, recorded.gather(-1, ids_B[:, None])[:, 0], top.indices, odds, open_B & free_B))
            open_B = open_B & ~(free_B & (ids_B < ends))
            history.add(ids_B)
            if place + 1 < length:
                logits, cache = self.decode(ids_B, position_B + place, cache)
        ids, logp, tops, odds, mask = (torch.stack(part, 1) for part in zip(*parts, strict=True))
        return Sampled(ids, logp, tops, torch.where(odds.isfinite(), odds, math.nan), mask.long())

    def drawn(self, logp_BV: Tensor) -> Tensor:
        """[B] a word of each distribution: ``torch.multinomial`` takes ten times as long for 8,000 words."""
        below = logp_BV.exp().cumsum(-1, dtype=torch.float64)
        at = torch.rand(len(logp_BV), 1, generator=self.generator, dtype=torch.float64) * below[:, -1:]
        return torch.searchsorted(below, at, right=True)[:, 0]

    def decode(self, ids_B: Tensor, position_B: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """[B, V] logits after one more token of each sequence."""
        return self.forward(ids_B[:, None], position_B[:, None], torch.ones(len(ids_B), 1, dtype=torch.bool), cache)

    def processed(self, logits_BV: Tensor, history: History) -> Tensor:
        """[B, V] log-probabilities that are sampled from."""
        return processed_logp(logits_BV, self.sampling, history)

    def recorded(self, raw_BV: Tensor, processed_BV: Tensor) -> Tensor:
        """[B, V] log-probabilities of which those of the tokens are recorded."""
        return raw_BV if self.sampling.records == "raw" else processed_BV


class History:
    """Which words each sequence has had: in its prompt and since, for penalties."""

    def __init__(self, prompts: Sequence[Sequence[int]], vocabulary: int) -> None:
        self.prompt_BV = torch.zeros(len(prompts), vocabulary, dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            self.prompt_BV[row, torch.tensor(list(prompt))] = True
        self.output_BV = torch.zeros_like(self.prompt_BV)

    def add(self, ids_B: Tensor) -> None:
        """One more token of each."""
        self.output_BV[torch.arange(len(ids_B)), ids_B] = True


def processed_logp(logits_BV: Tensor, sampling: Sampling, history: History) -> Tensor:
    """[B, V] log-probabilities after penalties, temperature, and cuts, in the order of engines."""
    if sampling.repetition != 1.0:
        had = history.prompt_BV | history.output_BV
        lower = torch.where(logits_BV > 0, logits_BV / sampling.repetition, logits_BV * sampling.repetition)
        logits_BV = torch.where(had, lower, logits_BV)
    if sampling.presence:
        logits_BV = logits_BV - sampling.presence * history.output_BV
    logp = (logits_BV / sampling.temperature).log_softmax(-1)
    if sampling.min_p:
        least = logp.amax(-1, keepdim=True) + math.log(sampling.min_p)
        logp = logp.masked_fill(logp < least, -math.inf).log_softmax(-1)
    if sampling.top_k:
        least = logp.topk(sampling.top_k, -1).values[..., -1:]
        logp = logp.masked_fill(logp < least, -math.inf).log_softmax(-1)
    if sampling.top_p < 1:
        ordered, order = logp.sort(-1, descending=True)
        beyond = ordered.exp().cumsum(-1) - ordered.exp() >= sampling.top_p
        logp = logp.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -math.inf).log_softmax(-1)
    return logp


def padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor, Tensor]:
    """Ids [B, T] with padding on the left, positions [B, T] that do not count it, and where there is none [B, T]."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    seen = torch.tensor([[False] * (width - len(prompt)) + [True] * len(prompt) for prompt in prompts])
    return ids, (seen.long().cumsum(-1) - 1).clamp(min=0), seen
