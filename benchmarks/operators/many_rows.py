"""Sums over many rows: operators as functions of rows [N, 8], and of what is added up over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Called = tuple[str, Callable[..., Any], tuple[Any, ...]]
"""Name, function, and what it is called with."""

WIDTH, IDS = 8, 6


def called(n: int, ids: Tensor, drawn: Callable[..., Tensor], weight: Callable[..., Tensor]) -> Iterator[Called]:
    """All of them, with rows that are ``drawn`` and a ``weight`` of a shape; ``ids`` [N] are less than ``IDS``."""
    x, y = drawn(n, WIDTH), drawn(n, WIDTH)
    zeros = torch.zeros(IDS, WIDTH, dtype=x.dtype, device=x.device)
    of_rows = _reductions(n) | _pools(n) | _taken(ids) | _added(ids, zeros) | _losses(ids)
    for name, function in of_rows.items():
        yield name, function, (x,)
    for name, function in _products(zeros).items():
        yield name, function, (x, y)
    for name, function, others in (*_layers(n, ids, weight), *_convolutions(weight)):
        yield name, function, (x, *others)
    yield "bilinear", functional.bilinear, (x, y, weight(2, WIDTH, WIDTH), weight(2))
    yield "weight_norm", lambda v, g: torch._weight_norm(v, g, 1), (x, weight(1, WIDTH).abs())
    for name, function in _tables(ids).items():
        yield name, function, (weight(IDS, WIDTH),)
    side = int((n // 4) ** 0.5) * 2
    image = drawn(side * side, 4).reshape(1, side, side, 4).permute(0, 3, 1, 2).contiguous()
    for name, function in _images(side).items():
        yield name, function, (image,)
    centre = torch.zeros(1, side, side, 2, dtype=x.dtype, device=x.device)
    yield "grid_sample", lambda x, grid: functional.grid_sample(x, grid, align_corners=False), (image, centre)
    yield "conv2d", lambda x, w, b: functional.conv2d(x, w, b, padding=1), (image, weight(4, 4, 3, 3), weight(4))
    yield "conv3d", lambda x, w: functional.conv3d(x[None], w, padding=1), (image, weight(4, 1, 3, 3, 3))
    for name in ("sgd", "adam", "adamw"):
        yield f"fused_{name}", _fused(name), (x,)


def _reductions(n: int) -> dict[str, Callable[[Tensor], Any]]:
    return {
        "sum": lambda x: x.sum(0),
        "sum of all": lambda x: x.sum(),
        "sum of rows": lambda x: x.t().contiguous().sum(1),
        "nansum": lambda x: x.nansum(0),
        "mean": lambda x: x.mean(0),
        "mean of all": lambda x: x.mean(),
        "mean of rows": lambda x: x.t().contiguous().mean(1),
        "var": lambda x: x.var(0),
        "std": lambda x: x.std(0),
        "norm": lambda x: torch.linalg.vector_norm(x, dim=0),
        "norm of all": torch.linalg.vector_norm,
        "norm 1": lambda x: torch.linalg.vector_norm(x, 1, dim=0),
        "norm 3": lambda x: torch.linalg.vector_norm(x, 3, dim=0),
        "foreach_norm": lambda x: torch._foreach_norm([x])[0],
        "logsumexp": lambda x: x.logsumexp(0),
        "softmax": lambda x: x.softmax(0),
        "softmax of rows": lambda x: x.t().contiguous().softmax(1),
        "log_softmax": lambda x: x.log_softmax(0),
        "log_softmax of rows": lambda x: x.t().contiguous().log_softmax(1),
        "cumsum": lambda x: x.cumsum(0),
        "logcumsumexp": lambda x: x.logcumsumexp(0),
        "cumprod": lambda x: (1 + x / n).cumprod(0),
        "trapezoid": lambda x: torch.trapezoid(x, dim=0),
        "renorm": lambda x: x.t().contiguous().renorm(2, 0, 1.0),
        "normalize": lambda x: functional.normalize(x, dim=0),
        "cov": lambda x: x.t().cov(),
    }


def _pools(n: int) -> dict[str, Callable[[Tensor], Any]]:
    return {
        "avg_pool1d": lambda x: functional.avg_pool1d(x.t(), n // 4),
        "adaptive_avg_pool1d": lambda x: functional.adaptive_avg_pool1d(x.t(), 2),
        "lp_pool1d": lambda x: functional.lp_pool1d(x.t(), 2, n // 4),
        "max_pool1d": lambda x: functional.max_pool1d(x.t(), 64, 1),
        "group_norm": lambda x: functional.group_norm(x.t()[None], 2),
        "instance_norm": lambda x: functional.instance_norm(x.t()[None].contiguous()),
        "pad replicate": lambda x: functional.pad(x.t(), (n, n), "replicate"),
        "unfold": lambda x: x[:, 0].unfold(0, 64, 1) * 1.0,
    }


def _taken(ids: Tensor) -> dict[str, Callable[[Tensor], Any]]:
    """Few rows that are taken many times: their gradients are the sums."""
    n, wide = len(ids), ids[:, None].expand(-1, WIDTH)
    return {
        "repeat_interleave": lambda x: x[:1].repeat_interleave(n, 0),
        "repeat": lambda x: x[:1].repeat(n, 1),
        "expand": lambda x: x[:1].expand(n, WIDTH) * 1.0,
        "gather": lambda x: x[:IDS].gather(0, wide),
        "index_select": lambda x: x[:IDS].index_select(0, ids),
        "index": lambda x: x[:IDS][ids],
        "take": lambda x: x[:IDS, 0].take(ids),
        "take_along_dim": lambda x: x[:IDS].take_along_dim(wide, 0),
    }


def _tables(ids: Tensor) -> dict[str, Callable[[Tensor], Any]]:
    return {
        "embedding": lambda w: functional.embedding(ids, w),
        "embedding_bag sum": lambda w: functional.embedding_bag(ids[None], w, mode="sum"),
        "embedding_bag mean": lambda w: functional.embedding_bag(ids[None], w, mode="mean"),
        "embedding_bag of bags of one": lambda w: functional.embedding_bag(ids[:, None], w, mode="sum"),
    }


def _added(ids: Tensor, zeros: Tensor) -> dict[str, Callable[[Tensor], Any]]:
    n, wide = len(ids), ids[:, None].expand(-1, WIDTH)
    return {
        "index_add": lambda x: zeros.index_add(0, ids, x),
        "index_add of numbers": lambda x: zeros[:, 0].index_add(0, ids, x[:, 0]),
        "index_put": lambda x: zeros.index_put((ids,), x, accumulate=True),
        "put": lambda x: zeros[:, 0].put(ids, x[:, 0], accumulate=True),
        "scatter_add": lambda x: zeros.scatter_add(0, wide, x),
        "scatter_add of numbers": lambda x: zeros[:, 0].scatter_add(0, ids, x[:, 0]),
        "scatter_reduce sum": lambda x: zeros.scatter_reduce(0, wide, x, "sum"),
        "scatter_reduce mean": lambda x: zeros.scatter_reduce(0, wide, x, "mean", include_self=False),
        "index_reduce mean": lambda x: zeros.index_reduce(0, ids, x, "mean", include_self=False),
        "segment_reduce": lambda x: torch.segment_reduce(x, "sum", lengths=torch.tensor([n], device=x.device)),
    }


def _losses(ids: Tensor) -> dict[str, Callable[[Tensor], Any]]:
    def beside(loss: Callable[..., Tensor], change: Callable[[Tensor], Tensor] = lambda y: y) -> Any:
        return lambda x: loss(x, change(x.detach().flip(0)))

    return {
        "cross_entropy": lambda x: functional.cross_entropy(x, ids),
        "nll_loss": lambda x: functional.nll_loss(x, ids),
        "mse_loss": beside(functional.mse_loss),
        "l1_loss": beside(functional.l1_loss),
        "huber_loss": beside(functional.huber_loss),
        "smooth_l1_loss": beside(functional.smooth_l1_loss),
        "bce_with_logits": beside(functional.binary_cross_entropy_with_logits, torch.sigmoid),
        "bce": lambda x: functional.binary_cross_entropy(x.sigmoid(), x.detach().flip(0).sigmoid()),
        "kl_div": beside(functional.kl_div, torch.abs),
        "cosine_similarity": beside(lambda x, y: functional.cosine_similarity(x, y, dim=0)),
        "pairwise_distance": beside(lambda x, y: functional.pairwise_distance(x.t(), y.t())),
        "attention": lambda x: functional.scaled_dot_product_attention(x[None, :1], x[None], x[None]),
    }


def _products(zeros: Tensor) -> dict[str, Callable[[Tensor, Tensor], Any]]:
    return {
        "mm": lambda x, y: x.t() @ y,
        "bmm": lambda x, y: torch.bmm(x.t()[None], y[None]),
        "mv": lambda x, y: x.t() @ y[:, 0],
        "dot": lambda x, y: x[:, 0] @ y[:, 0],
        "einsum": lambda x, y: torch.einsum("ni,nj->ij", x, y),
        "addmm": lambda x, y: torch.addmm(zeros[:1], x.t(), y),
        "baddbmm": lambda x, y: torch.baddbmm(zeros[None, :1], x.t()[None], y[None]),
        "addbmm": lambda x, y: torch.addbmm(zeros[:1, :1], x[:, None], y[:, :, None]),
        "addmv": lambda x, y: torch.addmv(zeros[0, :1], x.t(), y[:, 0]),
    }


def _layers(n: int, ids: Tensor, weight: Callable[..., Tensor]) -> Iterator[Called]:
    """What is called with rows, and the others that it is called with."""
    d, zeros = WIDTH, torch.zeros(WIDTH, device=ids.device)
    scale, shift = weight(d), weight(d)
    yield "layer_norm", lambda x, w, b: functional.layer_norm(x, (d,), w, b), (scale, shift)
    yield "layer_norm of wide rows", lambda x: functional.layer_norm(x.t().contiguous(), (n,)), ()
    yield "rms_norm", lambda x, w: functional.rms_norm(x, (d,), w), (scale,)
    yield "batch_norm", lambda x, w, b: functional.batch_norm(x, None, None, w, b, training=True), (scale, shift)
    yield "batch_norm, evaluated", lambda x: functional.batch_norm(x, zeros, 1 + zeros, zeros + 2, zeros), ()
    yield "group_norm of a batch", lambda x, w, b: functional.group_norm(x[:, :, None], 2, w, b), (scale, shift)
    yield "linear", functional.linear, (weight(d, d), shift)
    yield "prelu", functional.prelu, (scale,)
    yield "broadcast mul", torch.mul, (scale,)
    yield "broadcast add", torch.add, (scale,)
    yield "broadcast div", lambda x, w: x / (2 + w.abs()), (scale,)


def _convolutions(weight: Callable[..., Tensor]) -> Iterator[Called]:
    """As ``_layers``."""

    def of(function: Callable[..., Tensor], **settings: int) -> Callable[..., Tensor]:
        return lambda x, w, b: function(x.t()[None].contiguous(), w, b, **settings)

    d = WIDTH
    yield "conv1d", of(functional.conv1d, padding=1), (weight(4, d, 3), weight(4))
    yield "conv1d of channels", of(functional.conv1d, groups=d), (weight(d, 1, 3), weight(d))
    yield "conv_transpose1d", of(functional.conv_transpose1d), (weight(d, 4, 3), weight(4))


def _images(side: int) -> dict[str, Callable[[Tensor], Any]]:
    def grown(mode: str) -> Callable[[Tensor], Tensor]:
        return lambda x: functional.interpolate(x[..., :2, :2], scale_factor=side // 2, mode=mode)

    return {
        "interpolate bilinear": grown("bilinear"),
        "interpolate bicubic": grown("bicubic"),
        "interpolate nearest": grown("nearest"),
        "interpolate area": lambda x: functional.interpolate(x, size=(2, 2), mode="area"),
        "adaptive_avg_pool2d": lambda x: functional.adaptive_avg_pool2d(x, 1),
        "avg_pool2d": lambda x: functional.avg_pool2d(x, side // 2, 1),
        "max_pool2d": lambda x: functional.max_pool2d(x, 8, 1),
        "adaptive_max_pool2d": lambda x: functional.adaptive_max_pool2d(x, 2),
        "fold": lambda x: functional.fold(x.reshape(1, 64, -1)[..., :1], (8, 8), (8, 8)),
    }


def _fused(name: str) -> Callable[[Tensor], None]:
    optimizer = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]

    def update(x: Tensor) -> None:
        parameter = torch.nn.Parameter(x.detach().clone())
        parameter.grad = x.detach().flip(0).clone()
        settings = {"momentum": 0.9} if name == "sgd" else {}
        optimizer([parameter], lr=0.01, weight_decay=0.1, fused=True, **settings).step()

    return update
