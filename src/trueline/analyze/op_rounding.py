"""How large a difference the rounding inside one op explains, by the class of the op.

Each class has a law: the relative L2 error of the output to expect against the same op in exact arithmetic on the same
inputs, and a band in which 99 % of measured errors over expected ones lie (``benchmarks/rounding``: torch on a CPU;
kernels of other devices add in other orders). Errors of an op are the root of the sum of the squares of

- the rounding of the output to its dtype;
- ``roundings`` roundings of intermediate values in what the op computes in (float32, or the dtype if that is finer),
  times ``condition``;
- a sum of ``length`` terms in the class's order (``rounding.sum_error_rel``);
- roundings of intermediate values to the dtype of the inputs (``narrow``): attention's weights, terms of a scatter.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from trueline.analyze.rounding import (
    KAPPA,
    UNIT_ROUNDOFF,
    Order,
    dot_error_rel,
    require_product,
    unit_roundoff,
)
from trueline.schema.errors import InputError

OpClass = Literal[
    "exact",
    "rounded",
    "activation",
    "matmul",
    "matvec",
    "sum",
    "normalization",
    "attention",
    "loss",
    "scatter",
    "unknown",
]


@dataclass(frozen=True)
class OpLaw:
    """The law of a class of ops; ``length`` and ``condition`` say what those mean for it.

    ``band`` is where 99 % of measured errors over expected ones lie, for outputs of 256 elements or more (1 for
    losses).
    """

    roundings: float
    """Of intermediate values, in float32."""
    order: Order | None
    """In which ``length`` terms are added."""
    narrow: float
    """Roundings of intermediate values to the dtype of the inputs."""
    band: tuple[float, float]
    length: str = ""
    condition: str = ""


LAWS: dict[OpClass, OpLaw] = {
    "exact": OpLaw(0, None, 0, (0.0, 0.0)),
    "rounded": OpLaw(0, None, 0, (0.5, 1.5)),
    "activation": OpLaw(4, None, 0, (0.3, 1.5)),
    "matmul": OpLaw(0, "blocked", 0, (0.5, 1.5), "terms of each sum", "|A|·|B| / (sqrt(length)·|AB|)"),
    "matvec": OpLaw(0, "sequential", 0, (0.2, 1.5), "terms of each sum", "|A|·|x| / (sqrt(length)·|Ax|)"),
    "sum": OpLaw(0, "cascade", 0, (0.5, 1.5), "terms of each sum", "sqrt(length)·|terms| / |sums|"),
    "normalization": OpLaw(5, "cascade", 0, (0.5, 1.5), "elements of a row", "|x| / |x - mean|; 1 where none is taken"),
    "attention": OpLaw(5, "blocked", 1, (0.5, 1.5), "keys plus the size of a head", "1"),
    "loss": OpLaw(5, "cascade", 0, (0.0, 6.0), "terms of the mean", "1"),
    "scatter": OpLaw(0, "sequential", 0, (0.5, 2.0), "terms of each sum", "1"),
    "unknown": OpLaw(5, "sequential", 1, (0.0, 6.0), "elements of the largest input dimension", "1"),
}
"""By class of op."""


_NAMES: dict[OpClass, str] = {
    "exact": "getitem view view_as reshape transpose permute t T flatten unflatten squeeze unsqueeze expand expand_as "
    "repeat chunk split unbind select narrow cat stack concat embedding relu relu6 hardtanh leaky_relu clamp max min "
    "amax amin maximum minimum argmax argmin topk sort gather index_select take clone contiguous detach abs neg sign "
    "where masked_fill zeros_like ones_like copy triu tril roll flip pad max_pool1d max_pool2d max_pool3d",
    "rounded": "add radd sub rsub mul rmul div rdiv truediv rtruediv sqrt to float half bfloat16 double type dropout "
    "square",
    "activation": "gelu silu tanh sigmoid exp expm1 log log1p log2 softplus sin cos erf pow rsqrt reciprocal mish elu "
    "selu celu logsigmoid hardswish hardsigmoid lerp addcmul addcdiv glu",
    "matmul": "linear matmul rmatmul mm bmm addmm baddbmm einsum bilinear conv1d conv2d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d",
    "matvec": "mv dot vdot inner addmv",
    "sum": "sum mean nansum nanmean",
    "normalization": "softmax log_softmax layer_norm rms_norm group_norm batch_norm instance_norm normalize",
    "attention": "scaled_dot_product_attention",
    "loss": "cross_entropy nll_loss mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy "
    "binary_cross_entropy_with_logits kl_div",
    "scatter": "index_add scatter_add embedding_bag",
}
"""Last parts of the names of torch functions and methods, without underscores at their ends."""

_CLASS_BY_NAME: dict[str, OpClass] = {name: each for each, names in _NAMES.items() for name in names.split()}


def op_class_of(api: str, *, rows: int | None = None) -> OpClass:
    """The class of a recorded call, by the last part of its ``api`` ('torch.nn.functional.linear').

    ``rows`` is the smaller of the two outer sizes of a product: with 1 it is a matrix times a vector, which kernels add
    up in another order. 'unknown' for what is not listed, modules included.
    """
    name = api.rpartition(".")[2].strip("_")
    found = _CLASS_BY_NAME.get(name, "unknown")
    return "matvec" if found == "matmul" and rows == 1 else found


def op_rounding_rel(op_class: OpClass, dtype_in: str, dtype_out: str, length: int = 1, condition: float = 1.0) -> float:
    """The relative L2 error of the output to expect. See ``LAWS`` for what length and condition mean to the class.

    ``dtype_in`` 'tfloat32' is of float32 products whose inputs are rounded to it. Raises ``InputError`` for a class,
    dtype, length or condition that cannot be.
    """
    law = LAWS.get(op_class)
    if law is None:
        raise InputError(f"'{op_class}' is no class of ops. There are {', '.join(LAWS)}.")
    require_product(length, condition)
    if op_class == "exact":
        return 0.0
    u_in, u_out = unit_roundoff(dtype_in), unit_roundoff(dtype_out)
    u = u_out if op_class == "scatter" else min(u_in, u_out, UNIT_ROUNDOFF["float32"])
    narrow = 2 * condition**2 if dtype_in == "tfloat32" else law.narrow
    squares = u_out**2 + narrow * u_in**2 + law.roundings * (condition * u) ** 2
    return math.hypot(KAPPA * math.sqrt(squares), _sum_rel(law, op_class, length, condition, u))


def _sum_rel(law: OpLaw, op_class: OpClass, length: int, condition: float, u: float) -> float:
    if law.order is None:
        return 0.0
    inner = condition if op_class in ("matmul", "matvec", "sum") else 1.0
    return dot_error_rel(length, u_accumulate=u, u_out=0.0, condition=inner, order=law.order)
