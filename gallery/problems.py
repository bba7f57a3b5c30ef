"""Three small problems that train on a CPU in milliseconds a step: a causal LM, an MLP, and a conv net with BatchNorm.

Every sample of a dataset is distinct, and a dataset or model depends only on the seed it was asked for.
Letters: B batch, L sequence length, D model width, V vocabulary, H heads, C classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset

Checkpointing = Literal["none", "reentrant", "non-reentrant"]
IGNORED = -100
"""The label that `cross_entropy` leaves out of its mean."""


class Problem(Protocol):
    """A model, its data, and the loss of the one on a batch of the other."""

    def model(self, *, seed: int = 0) -> nn.Module:
        """The model, the same for the same ``seed``."""
        ...

    def dataset(self, num_samples: int, *, seed: int = 0) -> Rows:
        """Distinct samples, the same for the same ``seed``."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Scalar mean loss of ``model`` on ``batch``."""
        ...

    def tokens(self, batch: Any) -> float:
        """How many terms that mean is over."""
        ...


class Rows(Dataset[Any]):
    """A map-style dataset over equally long tensors; a sample is a dict of their rows."""

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        self.columns = dict(columns)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.columns.items()}

    def select(self, indices: list[int] | range) -> Rows:
        """The rows at ``indices`` as a dataset of their own."""
        chosen = torch.tensor(list(indices))
        return Rows({name: column[chosen] for name, column in self.columns.items()})


class CausalLM:
    """Next-token prediction on sequences of a noisy affine map over the vocabulary; about 20k parameters."""

    vocab_size = 64
    length = 16

    def __init__(
        self,
        *,
        dropout: float = 0.0,
        tied: bool = False,
        checkpointing: Checkpointing = "none",
        width: int = 32,
        ahead: int = 0,
    ) -> None:
        """``ahead``: how many later positions attention sees; 0 where it is causal."""
        self.dropout, self.tied, self.checkpointing, self.width = dropout, tied, checkpointing, width
        self.ahead = ahead

    def model(self, *, seed: int = 0) -> nn.Module:
        """A two-layer decoder, the same for the same ``seed`` whatever the state of the global generator."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return _Decoder(
                self.vocab_size, self.length, self.width, self.dropout, self.tied, self.checkpointing, self.ahead
            )

    def dataset(self, num_samples: int, *, seed: int = 0) -> Rows:
        """``input_ids`` [num_samples, L] int64 and equal ``labels``; the shift happens in the loss."""
        draw = torch.Generator().manual_seed(seed)
        ids_BL = torch.randint(self.vocab_size, (num_samples, self.length), generator=draw)
        noisy_BL = torch.rand(num_samples, self.length, generator=draw) < 0.3
        for position in range(2, self.length):
            implied_B = (5 * ids_BL[:, position - 1] + 3) % self.vocab_size
            ids_BL[:, position] = torch.where(noisy_BL[:, position], ids_BL[:, position], implied_B)
        return Rows({"input_ids": ids_BL, "labels": ids_BL.clone()})

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean cross-entropy over the labels that count; NaN where none does, as in plain torch."""
        logits_BLV = model(batch["input_ids"])
        return functional.cross_entropy(logits_BLV[:, :-1].flatten(0, 1).float(), batch["labels"][:, 1:].flatten())

    def tokens(self, batch: Any) -> float:
        """How many labels the mean is over."""
        return float((batch["labels"][:, 1:] != IGNORED).sum())


class Regression:
    """A two-layer MLP fitted to a fixed random linear map with noise; about 1k parameters."""

    num_features = 16

    def __init__(self, *, heavy_tailed: bool = False) -> None:
        self.heavy_tailed = heavy_tailed

    def model(self, *, seed: int = 0) -> nn.Module:
        """Linear, ReLU, Linear."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(
                nn.Linear(self.num_features, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 4)
            )

    def dataset(self, num_samples: int, *, seed: int = 0) -> Rows:
        """``x`` [num_samples, 16] and ``y`` [num_samples, 4] float32; inputs are Cauchy-tailed if asked for."""
        draw = torch.Generator().manual_seed(seed)
        x_BD = torch.randn(num_samples, self.num_features, generator=draw)
        if self.heavy_tailed:
            x_BD = (x_BD / torch.randn(num_samples, 1, generator=draw)).clamp(-30, 30)
        map_DC = torch.randn(self.num_features, 4, generator=torch.Generator().manual_seed(7)) / 4
        return Rows({"x": x_BD, "y": x_BD @ map_DC + 0.1 * torch.randn(num_samples, 4, generator=draw)})

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean squared error over the batch."""
        return functional.mse_loss(model(batch["x"]).float(), batch["y"])

    def tokens(self, batch: Any) -> float:
        """Samples, as every one counts the same."""
        return float(len(batch["x"]))


class Vision:
    """A conv net with two BatchNorm layers on 8 x 8 images of four classes; about 2k parameters."""

    num_classes = 4

    def model(self, *, seed: int = 0) -> nn.Module:
        """Conv, BatchNorm, ReLU twice, then a linear head."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return nn.Sequential(
                nn.Conv2d(1, 8, 3, padding=1),
                nn.BatchNorm2d(8),
                nn.ReLU(),
                nn.Conv2d(8, 16, 3, stride=2, padding=1),
                nn.BatchNorm2d(16),
                nn.ReLU(),
                nn.AdaptiveAvgPool2d(2),
                nn.Flatten(),
                nn.Linear(64, self.num_classes),
            )

    def dataset(self, num_samples: int, *, seed: int = 0) -> Rows:
        """``image`` [num_samples, 1, 8, 8] float32 and ``label`` [num_samples] int64."""
        draw = torch.Generator().manual_seed(seed)
        label_B = torch.randint(self.num_classes, (num_samples,), generator=draw)
        prototypes = torch.randn(self.num_classes, 1, 8, 8, generator=torch.Generator().manual_seed(7))
        return Rows(
            {"image": prototypes[label_B] + torch.randn(num_samples, 1, 8, 8, generator=draw), "label": label_B}
        )

    def loss(self, model: nn.Module, batch: Any) -> Tensor:
        """Mean cross-entropy over the batch."""
        return functional.cross_entropy(model(batch["image"]).float(), batch["label"])

    def tokens(self, batch: Any) -> float:
        """Samples, as every one counts the same."""
        return float(len(batch["label"]))


class _Decoder(nn.Module):
    def __init__(
        self,
        vocab_size: int,
        length: int,
        width: int,
        dropout: float,
        tied: bool,
        checkpointing: Checkpointing,
        ahead: int,
    ) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.embed = nn.Embedding(vocab_size, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(_Block(width, dropout, ahead) for _ in range(2))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, ids_BL: Tensor) -> Tensor:
        x_BLD = self.embed(ids_BL) + self.position
        for block in self.blocks:
            if self.checkpointing == "none":
                x_BLD = block(x_BLD)
            else:
                x_BLD = checkpoint(block, x_BLD, use_reentrant=self.checkpointing == "reentrant")
        return self.head(self.norm(x_BLD))


class _Block(nn.Module):
    def __init__(self, width: int, dropout: float, ahead: int) -> None:
        super().__init__()
        self.num_heads, self.ahead = 2, ahead
        self.norm_attn, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x_BLD: Tensor) -> Tensor:
        x_BLD = x_BLD + self.dropout(self._attention(self.norm_attn(x_BLD)))
        return x_BLD + self.dropout(self.mlp(self.norm_mlp(x_BLD)))

    def _attention(self, x_BLD: Tensor) -> Tensor:
        qkv_BHLK = (part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in self.qkv(x_BLD).chunk(3, -1))
        length = x_BLD.shape[1]
        mask_LL = x_BLD.new_ones(length, length, dtype=torch.bool).tril(self.ahead) if self.ahead else None
        mixed_BHLK = functional.scaled_dot_product_attention(*qkv_BHLK, attn_mask=mask_LL, is_causal=mask_LL is None)
        return self.out(mixed_BHLK.transpose(1, 2).flatten(-2))
