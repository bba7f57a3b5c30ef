"""Three small models that compute N workers at once: worker n reads row n of the batch with row n of every weight.

The rows of a weight are equal, as they are in replicas, but each is a leaf of its own, so one backward pass leaves the
gradient of every worker by itself. With N = 1 the same code is one ordinary replica (see ``agreement``).

Letters: N workers, B samples, L sequence length, D width, V vocabulary, H heads, C channels, F features, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

Weights = Mapping[str, Tensor]
Batch = Mapping[str, Tensor]
Drop = Callable[[Tensor], Tensor]
"""Dropout of an [N, ...] tensor: with masks of each worker's own, or one mask for all."""

VOCAB, LENGTH = 64, 16


class Model(Protocol):
    """Weights, and the loss terms of every sample."""

    def weights(self, seed: int) -> dict[str, Tensor]:
        """One replica's weights, named ``group.weight``."""
        ...

    def terms(self, weights: Weights, batch: Batch, drop: Drop) -> tuple[Tensor, Tensor]:
        """[N, B] sum of the loss terms of each sample, and [N, B] how many there are."""
        ...


class LanguageModel:
    """One pre-norm decoder block between an embedding and a head; about 8,000 weights."""

    width, heads = 24, 2

    def weights(self, seed: int) -> dict[str, Tensor]:
        """Normal weights, scaled by the square root of what goes into them."""
        width = self.width
        shapes = {
            "embed.token": (VOCAB, width),
            "embed.position": (LENGTH, width),
            "attention.qkv": (width, 3 * width),
            "attention.out": (width, width),
            "mlp.up": (width, 2 * width),
            "mlp.down": (2 * width, width),
            "head.out": (width, VOCAB),
        }
        return _normal(shapes, seed, unscaled=("embed.token", "embed.position"))

    def terms(self, weights: Weights, batch: Batch, drop: Drop) -> tuple[Tensor, Tensor]:
        """Cross-entropy of the tokens whose ``mask`` [N, B, L] is one; ``ids`` [N, B, L + 1]."""
        ids_NBL, targets_NBL = batch["ids"][..., :-1], batch["ids"][..., 1:]
        workers, batch_size, length = ids_NBL.shape
        first_row = torch.arange(workers).view(-1, 1, 1) * VOCAB
        embed_ND = weights["embed.token"].reshape(workers * VOCAB, -1)
        x_NBLD = functional.embedding(ids_NBL + first_row, embed_ND) + weights["embed.position"][:, None]
        x_NTD = x_NBLD.reshape(workers, batch_size * length, -1)
        x_NTD = x_NTD + drop(self._attention(weights, _normed(x_NTD), batch_size))
        x_NTD = x_NTD + drop(functional.gelu(_normed(x_NTD) @ weights["mlp.up"]) @ weights["mlp.down"])
        logits_NTV = _normed(x_NTD) @ weights["head.out"]
        loss = functional.cross_entropy(logits_NTV.reshape(-1, VOCAB), targets_NBL.reshape(-1), reduction="none")
        loss_NBL = loss.view(workers, batch_size, length) * batch["mask"]
        return loss_NBL.sum(-1), batch["mask"].sum(-1)

    def _attention(self, weights: Weights, x_NTD: Tensor, batch_size: int) -> Tensor:
        workers, tokens, width = x_NTD.shape
        qkv = (x_NTD @ weights["attention.qkv"]).view(workers * batch_size, tokens // batch_size, 3, self.heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return mixed.transpose(1, 2).reshape(workers, tokens, width) @ weights["attention.out"]


class Perceptron:
    """Two hidden layers of 24; classes by cross-entropy, or one number by squared error; about 1,200 weights."""

    def __init__(self, *, features: int = 16, outputs: int = 8, regression: bool = False) -> None:
        self.features, self.outputs, self.regression = features, outputs, regression

    def weights(self, seed: int) -> dict[str, Tensor]:
        """As ``LanguageModel.weights``."""
        sizes = (self.features, 24, 24, self.outputs)
        shapes = {f"layer{i}.w": (sizes[i], sizes[i + 1]) for i in range(3)}
        shapes |= {f"layer{i}.b": (1, sizes[i + 1]) for i in range(3)}
        return _normal(shapes, seed)

    def terms(self, weights: Weights, batch: Batch, drop: Drop) -> tuple[Tensor, Tensor]:
        """One term a sample; ``x`` [N, B, F], ``y`` [N, B], ``mask`` [N, B]."""
        x_NBF = batch["x"]
        for i in range(3):
            x_NBF = torch.baddbmm(weights[f"layer{i}.b"], x_NBF, weights[f"layer{i}.w"])
            x_NBF = drop(functional.relu(x_NBF)) if i < 2 else x_NBF
        if self.regression:
            loss_NB = functional.mse_loss(x_NBF[..., 0], batch["y"], reduction="none")
        else:
            loss_NB = functional.cross_entropy(x_NBF.flatten(0, 1), batch["y"].flatten(), reduction="none")
        return loss_NB.view_as(batch["mask"]) * batch["mask"], batch["mask"]


class ConvNet:
    """Two convolutions with BatchNorm over the worker's own batch, then a linear head; about 1,000 weights."""

    channels = (6, 8)

    def weights(self, seed: int) -> dict[str, Tensor]:
        """As ``LanguageModel.weights``; BatchNorm starts at scale 1 and shift 0."""
        one, two = self.channels
        shapes = {"conv1.w": (one, 1, 3, 3), "conv2.w": (two, one, 3, 3), "head.w": (two * 4, 4)}
        norms = {"conv1.scale": torch.ones(one), "conv1.shift": torch.zeros(one)}
        norms |= {"conv2.scale": torch.ones(two), "conv2.shift": torch.zeros(two)}
        return _normal(shapes, seed) | norms

    def terms(self, weights: Weights, batch: Batch, drop: Drop) -> tuple[Tensor, Tensor]:
        """Cross-entropy, one term a sample; ``x`` [N, B, 8, 8], ``y`` [N, B], ``mask`` [N, B]."""
        workers, batch_size = batch["y"].shape
        x_BCHW = batch["x"].transpose(0, 1)
        for name, stride in (("conv1", 1), ("conv2", 2)):
            kernel = weights[f"{name}.w"].flatten(0, 1)
            x_BCHW = functional.conv2d(x_BCHW, kernel, padding=1, stride=stride, groups=workers)
            scale, shift = weights[f"{name}.scale"].flatten(), weights[f"{name}.shift"].flatten()
            x_BCHW = functional.relu(functional.batch_norm(x_BCHW, None, None, scale, shift, training=True))
        pooled = functional.adaptive_avg_pool2d(x_BCHW, 2).view(batch_size, workers, -1).transpose(0, 1)
        logits_NBK = drop(pooled) @ weights["head.w"]
        loss_NB = functional.cross_entropy(logits_NBK.flatten(0, 1), batch["y"].flatten(), reduction="none")
        return loss_NB.view(workers, batch_size) * batch["mask"], batch["mask"]


def _normed(x: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:])


def _normal(shapes: Mapping[str, tuple[int, ...]], seed: int, unscaled: tuple[str, ...] = ()) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    found = {}
    for name, shape in shapes.items():
        fan_in = math.prod(shape[1:]) if len(shape) == 4 else shape[0]
        scale = 0.5 if name in unscaled else 1 / math.sqrt(fan_in)
        found[name] = scale * torch.randn(*shape, generator=draw)
    return found
