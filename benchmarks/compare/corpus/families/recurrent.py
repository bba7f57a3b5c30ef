"""Recurrent models, and one that decodes with a cache. Letters: B batch, L positions, D width, V vocabulary."""

from __future__ import annotations

import torch
from benchmarks.compare.corpus.families.language import VOCABULARY, heads, next_token, shifted, tokens
from benchmarks.compare.corpus.kit import Batch, Training, family
from torch import Tensor, nn
from torch.nn import functional


class LSTMModel(nn.Module):
    """Two layers of torch's LSTM, packed in one call each."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 32)
        self.lstm1, self.lstm2 = nn.LSTM(32, 32, batch_first=True), nn.LSTM(32, 32, batch_first=True)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, VOCABULARY)

    def start(self, x_BLD: Tensor) -> tuple[Tensor, Tensor]:
        zeros = torch.zeros(1, len(x_BLD), 32, dtype=x_BLD.dtype)
        return zeros, zeros

    def forward(self, ids_BL: Tensor) -> Tensor:
        x_BLD = self.embed(ids_BL)
        h_BLD, _ = self.lstm1(x_BLD, self.start(x_BLD))
        h_BLD, _ = self.lstm2(h_BLD, self.start(h_BLD))
        return self.head(self.norm(h_BLD + x_BLD))


@family("lstm")
def lstm() -> Training:
    settings = {"lr": 2e-3, "alpha": 0.99, "eps": 1e-8, "foreach": False}
    t = Training(LSTMModel(), tokens, next_token, shifted, torch.optim.RMSprop, settings)
    # oneDNN has no LSTM in bfloat16 on processors without instructions for it.
    t.around = lambda: torch.backends.mkldnn.flags(enabled=False)
    return t


class GRUCell(nn.Module):
    """A gated recurrent unit written out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.of_input, self.of_state = nn.Linear(width, 3 * width), nn.Linear(width, 3 * width)

    def forward(self, x_BD: Tensor, state_BD: Tensor) -> Tensor:
        reset_x, update_x, new_x = self.of_input(x_BD).chunk(3, -1)
        reset_h, update_h, new_h = self.of_state(state_BD).chunk(3, -1)
        reset, update = torch.sigmoid(reset_x + reset_h), torch.sigmoid(update_x + update_h)
        return self.mix(torch.tanh(new_x + reset * new_h), update, state_BD)

    def mix(self, new_BD: Tensor, update_BD: Tensor, state_BD: Tensor) -> Tensor:
        return (1 - update_BD) * new_BD + update_BD * state_BD


class GRUModel(nn.Module):
    """Sequences of unequal lengths, classified by the state at their end."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.cell = nn.Linear(8, 32), GRUCell(32)
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 6)

    def carry(self, new_BD: Tensor, state_BD: Tensor, living_B: Tensor) -> Tensor:
        return torch.where(living_B[:, None], new_BD, state_BD)

    def forward(self, x_BLD: Tensor, length_B: Tensor) -> Tensor:
        x_BLD = self.embed(x_BLD)
        state_BD = torch.zeros_like(x_BLD[:, 0])
        for at in range(x_BLD.shape[1]):
            state_BD = self.carry(self.cell(x_BLD[:, at], state_BD), state_BD, at < length_B)
        return self.head(self.norm(state_BD))


@family("gru")
def gru() -> Training:
    def batch(draw: torch.Generator) -> Batch:
        return {
            "x": torch.randn(8, 6, 8, generator=draw),
            "length": torch.randint(2, 7, (8,), generator=draw),
            "y": torch.randint(6, (8,), generator=draw),
        }

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return functional.cross_entropy(model(batch["x"], batch["length"]).float(), batch["y"])

    return Training(GRUModel(), batch, loss, optimizer=torch.optim.NAdam, settings={"lr": 2e-3, "foreach": False})


class Reader(nn.Module):
    """Latents that look at a long input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(0.5 * torch.randn(4, width))
        self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def look(self, q: Tensor, k: Tensor, v: Tensor, here_BL: Tensor) -> Tensor:
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        return scores.masked_fill(~here_BL[:, None, None], -torch.inf).softmax(-1) @ v

    def forward(self, x_BLD: Tensor, here_BL: Tensor) -> Tensor:
        x_BLD = self.norm(x_BLD)
        q = heads(self.q(self.latents).expand(len(x_BLD), -1, -1), 4)
        k, v = (heads(each, 4) for each in self.kv(x_BLD).chunk(2, -1))
        return self.latents + self.out(self.look(q, k, v, here_BL).transpose(1, 2).flatten(-2))


class CachedAttention(nn.Module):
    """Attention over what came before, in pieces, with keys and values in a cache."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def append(self, cache: list[Tensor], k: Tensor, v: Tensor) -> list[Tensor]:
        return [torch.cat([old, new], 2) for old, new in zip(cache, (k, v), strict=True)] if cache else [k, v]

    def mask(self, num: int, length: int) -> Tensor:
        return torch.arange(length) <= torch.arange(length - num, length)[:, None]

    def forward(self, x_BLD: Tensor, cache: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        q, k, v = (heads(each, 4) for each in self.qkv(x_BLD).chunk(3, -1))
        k, v = cache = self.append(cache, k, v)
        mask = self.mask(q.shape[2], k.shape[2])
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(mixed.transpose(1, 2).flatten(-2)), cache


class Perceiver(nn.Module):
    """A reader of the input, then a decoder that is given its latents and the tokens, four at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.reader = nn.Linear(6, 32), Reader(32)
        self.embed, self.norm = nn.Embedding(VOCABULARY, 32), nn.LayerNorm(32)
        self.attn, self.norm_out = CachedAttention(32), nn.LayerNorm(32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))
        self.head, self.piece = nn.Linear(32, VOCABULARY), 4

    def forward(self, signal_BLD: Tensor, here_BL: Tensor, ids_BL: Tensor) -> Tensor:
        latents_BLD = self.reader(self.into(signal_BLD), here_BL)
        cache: list[Tensor] = self.attn(self.norm(latents_BLD), [])[1]
        logits = []
        for piece_BL in ids_BL.split(self.piece, 1):
            x_BLD = self.embed(piece_BL)
            mixed_BLD, cache = self.attn(self.norm(x_BLD), cache)
            x_BLD = x_BLD + mixed_BLD
            logits.append(self.head(self.norm_out(x_BLD + self.mlp(x_BLD))))
        return torch.cat(logits, 1)


@family("perceiver")
def perceiver() -> Training:
    def batch(draw: torch.Generator) -> Batch:
        here_BL = torch.arange(16) < torch.randint(6, 17, (4, 1), generator=draw)
        return {**tokens(draw), "signal": torch.randn(4, 16, 6, generator=draw), "here": here_BL}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits_BLV = model(batch["signal"], batch["here"], batch["inputs"])
        return functional.cross_entropy(logits_BLV.flatten(0, 1).float(), batch["labels"].flatten())

    return Training(Perceiver(), batch, loss, shifted)


class Column(nn.Module):
    """A linear whose rows are on two shards; each shard's outputs stay where they are."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.shards = nn.ModuleList(nn.Linear(inside, outside // 2) for _ in range(2))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [shard(x) for shard in self.shards]


class Row(nn.Module):
    """A linear whose columns are on two shards: partial sums are added up, then the bias."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.shards = nn.ModuleList(nn.Linear(inside // 2, outside, bias=False) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(outside))

    def reduce(self, partial: list[Tensor]) -> Tensor:
        return partial[0] + partial[1]

    def forward(self, parts: list[Tensor]) -> Tensor:
        return self.reduce([shard(x) for shard, x in zip(self.shards, parts, strict=True)]) + self.bias


class ShardedEmbedding(nn.Module):
    """Half of the vocabulary on either shard: ids of the other half give zeros."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.shards = nn.ModuleList(nn.Embedding(VOCABULARY // 2, width) for _ in range(2))

    def own(self, ids_BL: Tensor, index: int) -> Tensor:
        half = VOCABULARY // 2
        return (ids_BL >= index * half) & (ids_BL < (index + 1) * half)

    def forward(self, ids_BL: Tensor) -> Tensor:
        total: Tensor | None = None
        for index, shard in enumerate(self.shards):
            own_BL = self.own(ids_BL, index)
            found = shard((ids_BL - index * VOCABULARY // 2).masked_fill(~own_BL, 0)) * own_BL[..., None]
            total = found if total is None else total + found
        return total


class ShardedBlock(nn.Module):
    """Attention with two heads a shard, then a perceptron in halves."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = Column(width, 3 * width), Row(width, width)
        self.up, self.act, self.down = Column(width, 4 * width), nn.GELU(), Row(4 * width, width)

    def attend(self, qkv_BLD: Tensor) -> Tensor:
        q, k, v = (heads(each, 2) for each in qkv_BLD.chunk(3, -1))
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2)

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLD = x_BLD + self.out([self.attend(part) for part in self.qkv(self.norm1(x_BLD))])
        return x_BLD + self.down([self.act(part) for part in self.up(self.norm2(x_BLD))])


class ShardedGPT(nn.Module):
    """Tensor parallelism by hand, in one process."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.blocks = ShardedEmbedding(32), nn.Sequential(ShardedBlock(32), ShardedBlock(32))
        self.norm, self.head = nn.LayerNorm(32), Column(32, VOCABULARY)

    def gather(self, parts: list[Tensor]) -> Tensor:
        return torch.cat(parts, -1)

    def forward(self, ids_BL: Tensor) -> Tensor:
        return self.gather(self.head(self.norm(self.blocks(self.embed(ids_BL)))))


@family("tp")
def tp() -> Training:
    return Training(ShardedGPT(), tokens, next_token, shifted)


class Tower(nn.Module):
    """Embeds one kind of input and puts it on the unit sphere."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.norm, self.proj = body, nn.LayerNorm(32), nn.Linear(32, 16, bias=False)

    def unit(self, x_BD: Tensor) -> Tensor:
        return functional.normalize(x_BD, dim=-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.unit(self.proj(self.norm(self.body(x))))


class MeanOfTokens(nn.Module):
    """Embeddings, a perceptron, the mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc, self.act = nn.Embedding(VOCABULARY, 32), nn.Linear(32, 32), nn.GELU()

    def forward(self, ids_BL: Tensor) -> Tensor:
        return self.act(self.fc(self.embed(ids_BL))).mean(1)


class CLIP(nn.Module):
    """Two towers, all products, a scale that is learned."""

    def __init__(self) -> None:
        super().__init__()
        picture = nn.Sequential(nn.Conv2d(3, 16, 4, 4), nn.GELU(), nn.Conv2d(16, 32, 2, 2), nn.Flatten(2))
        self.image = Tower(nn.Sequential(picture, nn.AdaptiveAvgPool1d(1), nn.Flatten(1)))
        self.text, self.logit_scale = Tower(MeanOfTokens()), nn.Parameter(torch.tensor(2.6592))

    def compare(self, image_BD: Tensor, text_BD: Tensor) -> Tensor:
        return self.logit_scale.exp() * image_BD @ text_BD.t()

    def forward(self, image: Tensor, ids_BL: Tensor) -> Tensor:
        return self.compare(self.image(image), self.text(ids_BL))


@family("clip", micro=False)
def clip() -> Training:
    def batch(draw: torch.Generator) -> Batch:
        return {**tokens(draw, 8), "image": torch.randn(8, 3, 16, 16, generator=draw)}

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        logits_BB = model(batch["image"], batch["ids"]).float()
        pairs = torch.arange(len(logits_BB))
        return (functional.cross_entropy(logits_BB, pairs) + functional.cross_entropy(logits_BB.t(), pairs)) / 2

    settings = {"lr": 5e-4, "betas": (0.9, 0.98), "eps": 1e-6, "weight_decay": 0.2, "foreach": False}
    return Training(CLIP(), batch, loss, settings=settings)
