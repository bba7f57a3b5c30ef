"""Weights that are moved by a little, and what their gradient says of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from trueline.capture.model.layout import local
from trueline.capture.model.world import world_size


@dataclass(frozen=True)
class Trained:
    """A parameter of a called module that is to have a gradient, and what a step of 1 moves its weights by."""

    name: str
    param: Tensor
    index: int
    scale: float
    still: int | None = None
    """A row that has no gradient by design and is not moved, as an embedding's of padding."""

    @classmethod
    def of_param(cls, name: str, param: Tensor, *, index: int, still: int | None = None) -> Trained:
        """``index`` seeds its direction. A step of 1 is the root mean square of its weights, or 0.1 where all are 0: it
        says how far is far, and any number keeps the law.
        """
        shard = local(param.detach())
        scale = float(shard.double().square().mean().sqrt()) if shard.numel() else 0.0
        return cls(name, param, index, scale or 0.1, still)

    def move(self, step: float, signs: NDArray[np.uint8] | None = None) -> None:
        """Move the weights by so many times their direction, which ``signs`` has as ``packed`` made it; None: drawn at
        random.
        """
        shard = local(self.param.detach())
        direction = signs_of(shard, seed=self.index) if signs is None else _unpacked(signs, shard)
        if self.still is not None:
            direction[self.still] = 0
        with torch.no_grad():
            shard.add_(direction, alpha=step * self.scale)

    def slope(self) -> dict[str, Any]:
        """Change of the loss for a step of 1 by its gradient, ``along`` its own signs and ``across`` it at random, with
        the standard deviation (``size``) of the latter; ``share`` is that of this rank where ranks are added up.
        """
        gradient = self._gradient()
        derivatives: dict[str, Any] = {"along": 0.0, "across": 0.0, "size": 0.0}
        if gradient is not None:
            signs = signs_of(gradient, seed=self.index)
            derivatives = {"along": gradient.abs().sum(), "across": (gradient * signs).sum(), "size": gradient.norm()}
            derivatives = {name: self.scale * float(value) for name, value in derivatives.items()}
        return {"name": self.name, "place": self.index, "share": _shards(self.param) / world_size(), **derivatives}

    def packed(self) -> NDArray[np.uint8] | None:
        """The signs of its gradient, eight a byte; None where it has none."""
        gradient = self._gradient()
        return None if gradient is None else np.packbits((gradient >= 0).flatten().cpu().numpy())

    def _gradient(self) -> Tensor | None:
        """float64, what is on this rank."""
        if self.param.grad is None:
            return None
        shard = local(self.param.grad)
        return (shard.to_dense() if shard.is_sparse else shard).detach().double()


def _unpacked(signs: NDArray[np.uint8], like: Tensor) -> Tensor:
    bits = torch.from_numpy(np.unpackbits(signs, count=like.numel()).astype(np.int8))
    return bits.mul_(2).sub_(1).view(like.shape).to(like.device)


def still_rows(model: nn.Module) -> dict[int, int]:
    """By the id of its weight, the row of each embedding of ``model`` that stands for padding."""
    return {
        id(module.weight): module.padding_idx
        for module in model.modules()
        if isinstance(module, nn.Embedding) and module.padding_idx is not None
    }


def signs_of(like: Tensor, *, seed: int) -> Tensor:
    """int8, of the shape of ``like``: 1 or -1 at random, the same on all ranks."""
    stream = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2, like.shape, generator=stream, dtype=torch.int8).mul_(2).sub_(1).to(like.device)


def _shards(param: Tensor) -> int:
    """On how many ranks different parts of it are."""
    placed = zip(
        getattr(param, "placements", ()), getattr(getattr(param, "device_mesh", None), "shape", ()), strict=True
    )
    return math.prod(size for placement, size in placed if placement.is_shard())
