"""What rounding moves sums and sums of squares by, over what independent errors would."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from tests.rounded_sums import sum_sq_std, sum_std
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

DRAWS = 40
WIDTH = 256
_WEIGHT = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(0))
OPS: dict[str, Callable[[Tensor], Tensor]] = {
    "cast": lambda x: x + 0 * x,
    "add": lambda x: x + x.roll(1, 0),
    "gelu": F.gelu,
    "silu": F.silu,
    "linear": lambda x: F.linear(x, _WEIGHT.to(x.dtype)),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "rms_norm": lambda x: F.rms_norm(x, (WIDTH,), eps=1e-6),
    "layer_norm": lambda x: F.layer_norm(x, (WIDTH,)),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None]),
}


@dataclass(frozen=True)
class Shift:
    """Root mean square and largest of the shift of a sum over ``sum_std``, and of a sum of squares over
    ``sum_sq_std``, with the error that was measured.
    """

    op: str
    dtype: str
    sum_rms: float
    sum_most: float
    sum_sq_rms: float
    sum_sq_most: float


def shifts() -> Iterator[Shift]:
    """Of all ops in float32 and bfloat16, over ``DRAWS`` inputs of 64 rows."""
    torch.manual_seed(0)
    for name, call in OPS.items():
        for dtype in (torch.float32, torch.bfloat16):
            found = [_shift(call, torch.randn(64, WIDTH).to(dtype)) for _ in range(DRAWS)]
            sums, squares = ([abs(pair[index]) for pair in found] for index in (0, 1))
            yield Shift(
                name,
                str(dtype).removeprefix("torch."),
                math.sqrt(sum(value**2 for value in sums) / DRAWS),
                max(sums),
                math.sqrt(sum(value**2 for value in squares) / DRAWS),
                max(squares),
            )


def _shift(call: Callable[[Tensor], Tensor], x: Tensor) -> tuple[float, float]:
    if call is OPS["cast"]:
        exact = torch.randn(64, WIDTH, dtype=torch.float64)
        rounded = exact.to(x.dtype).double()
    else:
        exact, rounded = call(x.double()), call(x).double()
    square = float(exact.square().sum())
    error = float((rounded - exact).norm()) / math.sqrt(square)
    if error == 0:
        return 0.0, 0.0
    moved = float((rounded - exact).sum())
    moved_sq = float((rounded.square() - exact.square()).sum())
    return moved / sum_std(error, square), moved_sq / sum_sq_std(error, square, float(exact.abs().max()))
