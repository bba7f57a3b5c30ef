"""The error of torch's ops against float64 on the same inputs, over the expected one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from trueline.comparison.expect.ops import op_rounding_rel
from trueline.comparison.op_names import OpClass

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

KINDS: dict[str, Callable[..., Tensor]] = {
    "normal": lambda *shape: torch.randn(*shape),
    "positive": lambda *shape: torch.randn(*shape).abs(),
    "heavy": lambda *shape: torch.randn(*shape) * torch.exp2(torch.randn(*shape)),
}
"""Of inputs; heavy: normal with a log-normal scale of one octave."""


@dataclass(frozen=True)
class Case:
    """One op on one shape: arguments from ``make(kind)``, the reduction length, and its condition."""

    op_class: OpClass
    name: str
    call: Callable[..., Tensor]
    make: Callable[[Callable[..., Tensor]], tuple[Tensor, ...]]
    length: int = 1
    kinds: tuple[str, ...] = ("normal",)
    draws: int = 1


@dataclass(frozen=True)
class Ratio:
    """Measured over expected error of one case, dtype, kind of input, number of threads and draw."""

    op_class: OpClass
    name: str
    dtype: str
    threads: int
    kind: str
    ratio: float


def measure(threads: int) -> Iterator[Ratio]:
    """Of all cases with that many threads."""
    torch.set_num_threads(threads)
    torch.manual_seed(threads)
    for case in cases():
        for kind in case.kinds:
            for _ in range(case.draws):
                drawn = case.make(KINDS[kind])
                for dtype in DTYPES:
                    ratio = _ratio(case, drawn, dtype)
                    if ratio is not None:
                        yield Ratio(case.op_class, case.name, dtype, threads, kind, ratio)


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _products()
    yield from _reductions()
    yield from _pointwise()
    yield from _scattered()


def _products() -> Iterator[Case]:
    every = ("normal", "positive", "heavy")
    for length in (4, 16, 64, 256, 1024, 4096):
        yield Case("matmul", "matmul", torch.matmul, lambda draw, n=length: (draw(64, n), draw(n, 64)), length, every)
        yield Case("matmul", "linear", F.linear, lambda draw, n=length: (draw(32, n), draw(96, n)), length, every)
        yield Case("matmul", "bmm", torch.bmm, lambda draw, n=length: (draw(4, 16, n), draw(4, n, 16)), length)
        yield Case("matvec", "mv", torch.mv, lambda draw, n=length: (draw(512, n), draw(n)), length, every)
        yield Case("matvec", "linear, one row", F.linear, lambda draw, n=length: (draw(1, n), draw(512, n)), length)
    for channels, size in ((3, 3), (64, 1), (64, 3), (256, 3)):
        yield Case(
            "matmul",
            "conv2d",
            lambda x, w: F.conv2d(x, w),
            lambda draw, c=channels, k=size: (draw(2, c, 16, 16), draw(32, c, k, k)),
            channels * size**2,
            ("normal", "positive"),
        )
    for keys, head in ((16, 16), (128, 64), (512, 64), (1024, 128)):
        for causal in (False, True):
            yield Case(
                "attention",
                "scaled_dot_product_attention",
                lambda q, k, v, is_causal=causal: F.scaled_dot_product_attention(q, k, v, is_causal=is_causal),
                lambda draw, n=keys, d=head: (draw(1, 2, n, d), draw(1, 2, n, d), draw(1, 2, n, d)),
                keys + head,
                draws=4,
            )


def _reductions() -> Iterator[Case]:
    for length in (4, 16, 64, 256, 1024, 4096):

        def rows(draw: Callable[..., Tensor], n: int = length) -> tuple[Tensor, ...]:
            return (draw(256, n),)

        yield Case("sum", "sum", lambda x: x.sum(-1), rows, length, ("normal", "positive", "heavy"))
        yield Case("sum", "sum over rows", lambda x: x.sum(0), lambda draw, n=length: (draw(n, 256),), length)
        yield Case("sum", "mean", lambda x: x.mean(-1), rows, length, ("normal", "positive"))
        every = ("normal", "heavy")
        yield Case("softmax", "softmax", lambda x: x.softmax(-1), rows, length, every)
        yield Case("softmax", "log_softmax", lambda x: x.log_softmax(-1), rows, length, every)
        yield Case("normalization", "rms_norm", lambda x: F.rms_norm(x, x.shape[-1:], eps=1e-6), rows, length, every)
        shifted = ("normal", "positive", "heavy")
        yield Case("normalization", "layer_norm", lambda x: F.layer_norm(x, x.shape[-1:]), rows, length, shifted)
    for classes in (10, 1000, 16_384):
        targets = torch.arange(64) % classes
        yield Case(
            "loss",
            "cross_entropy",
            lambda x, t=targets: F.cross_entropy(x, t),
            lambda draw, n=classes: (draw(64, n),),
            64,
            draws=16,
        )
    yield Case("loss", "mse_loss", F.mse_loss, lambda draw: (draw(256, 64), draw(256, 64)), 256 * 64, draws=16)


def _pointwise() -> Iterator[Case]:
    def one(draw: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        return (draw(4096),)

    def two(draw: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        return (draw(4096), draw(4096))

    for name in ("gelu", "silu", "softplus", "mish", "elu", "logsigmoid"):
        yield Case("activation", name, getattr(F, name), one, kinds=("normal", "heavy"), draws=2)
    for name in ("tanh", "sigmoid", "exp", "erf", "sin", "cos"):
        yield Case("activation", name, getattr(torch, name), one)
    for name in ("rsqrt", "log", "reciprocal"):
        yield Case("activation", name, getattr(torch, name), one, kinds=("positive",))
    yield Case("activation", "gelu, tanh", lambda x: F.gelu(x, approximate="tanh"), one)
    yield Case("rounded", "sqrt", torch.sqrt, one, kinds=("positive",), draws=4)
    for name in ("add", "sub", "mul", "div"):
        yield Case("rounded", name, getattr(torch, name), two, kinds=("normal", "heavy"), draws=4)


def _scattered() -> Iterator[Case]:
    for repeats in (4, 16, 64, 256):
        index = torch.randperm(4096) % (4096 // repeats)
        rows = 4096 // repeats

        def embedding(g: Tensor, index: Tensor = index, rows: int = rows) -> Tensor:
            return torch.ops.aten.embedding_dense_backward(g, index, rows, -1, False)

        def added(g: Tensor, index: Tensor = index, rows: int = rows) -> Tensor:
            return torch.zeros(rows, g.shape[1], dtype=g.dtype).index_add(0, index, g)

        yield Case("scatter", "embedding backward", embedding, lambda draw: (draw(4096, 16),), repeats, draws=4)
        yield Case("scatter", "index_add", added, lambda draw: (draw(4096, 16),), repeats, draws=4)


def _ratio(case: Case, drawn: tuple[Tensor, ...], dtype: str) -> float | None:
    given = [one.to(DTYPES[dtype]) for one in drawn]
    exact = case.call(*(one.double() for one in given))
    measured = _rel(case.call(*given), exact)
    expected = op_rounding_rel(case.op_class, dtype, dtype, case.length, _condition(case, given, exact))
    return measured / expected if math.isfinite(measured) else None


def _condition(case: Case, given: list[Tensor], exact: Tensor) -> float:
    squares: list[Any] = [float(one.double().square().mean()) for one in given]
    if case.op_class in ("matmul", "matvec"):
        return math.sqrt(case.length * squares[0] * squares[1] / float(exact.square().mean()))
    if case.op_class == "sum":
        total = exact * (case.length if case.name == "mean" else 1)
        return math.sqrt(case.length * squares[0] / float(total.square().mean()))
    if case.name == "layer_norm":
        wide = given[0].double()
        return math.sqrt(squares[0] / float((wide - wide.mean(-1, keepdim=True)).square().mean()))
    return 1.0


def _rel(value: Tensor, exact: Tensor) -> float:
    return float((value.double() - exact).norm() / exact.norm())
