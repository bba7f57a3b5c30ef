"""Size of the difference that the rounding inside one op explains, by the class of the op.

Each class has a law: the relative L2 error of the output to expect against the same op in exact arithmetic on the same
inputs, and a band in which 99 % of measured errors over expected ones lie (``benchmarks/rounding``: torch on a CPU;
kernels of other devices add in other orders). Errors of an op are the root of the sum of the squares of

- the rounding of the output to its dtype;
- ``roundings`` roundings of intermediate values, and ``per_term`` more for each of ``length`` terms, in what the op
  computes in (float32, or the dtype if that is finer), times ``condition``;
- a sum of ``length`` terms in the class's order (``rounding.sum_error_rel``);
- roundings of intermediate values to the dtype of the inputs (``narrow``): attention's weights.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

from trueline.comparison.expect.rounding import (
    KAPPA,
    UNIT_ROUNDOFF,
    Order,
    dot_error_rel,
    require_product,
    unit_roundoff,
)
from trueline.comparison.op_names import OpClass
from trueline.schema.errors import InputError


@dataclass(frozen=True)
class OpLaw:
    """The law of a class of ops; ``length`` and ``condition`` say what those mean for it.

    ``band`` is where 99 % of measured errors over expected ones lie, for outputs of 256 elements or more (1 for
    losses).
    """

    band: tuple[float, float]
    order: Order | None = None
    """Order in which ``length`` terms are added."""
    roundings: float = 0.0
    """Roundings of intermediate values, in float32."""
    per_term: float = 0.0
    """Further roundings for each term."""
    narrow: float = 0.0
    """Roundings of intermediate values to the dtype of the inputs."""
    length: str = "1"
    condition: str = "1"


LAWS: dict[OpClass, OpLaw] = {
    "exact": OpLaw((0.0, 0.0)),
    "rounded": OpLaw((0.2, 2.1)),
    "activation": OpLaw((0.1, 1.8), roundings=4),
    "matmul": OpLaw((0.7, 1.1), order="blocked", length="terms of each sum", condition="|A|·|B| / (sqrt(length)·|AB|)"),
    "matvec": OpLaw(
        (0.25, 1.2), order="sequential", length="terms of each sum", condition="|A|·|x| / (sqrt(length)·|Ax|)"
    ),
    "sum": OpLaw((0.6, 1.2), order="cascade", length="terms of each sum", condition="|terms| / |sums|"),
    "normalization": OpLaw((0.6, 1.5), roundings=5, condition="|x| / |x - mean|, 1 where no mean is taken"),
    "softmax": OpLaw((0.25, 7.0), roundings=5, per_term=1 / 192, length="elements of a row"),
    "attention": OpLaw((0.6, 2.0), order="blocked", roundings=5, narrow=1, length="keys plus the size of a head"),
    "loss": OpLaw((0.0, 7.0), roundings=2),
    "scatter": OpLaw((0.05, 1.2), order="sequential", length="terms of each sum", condition="|terms| / |sums|"),
    "unknown": OpLaw((0.0, 6.0), order="sequential", roundings=5, narrow=1, length="elements of a row"),
}
"""By class of op.

The band of ``rounded`` is wide for quotients by numbers near zero, of which a few outweigh all others.
``softmax`` adds a row up in 8 lanes, in float32: with terms of one size that is 1/(3·8·8) of a rounding a term; where
one term outweighs all others it is up to 1/8, which the upper end of the band leaves room for. ``scatter`` adds up in
the dtype itself, as the backward of an embedding does on a CPU; kernels that do it in float32 are far below. ``loss``
is a single number: it may be exact by chance, and equal rows have equal errors. ``unknown`` is no law but a generous
guess."""


@functools.lru_cache(maxsize=4096)
def op_rounding_rel(op_class: OpClass, dtype_in: str, dtype_out: str, length: int = 1, condition: float = 1.0) -> float:
    """Relative L2 error of the output to expect. ``LAWS`` defines length and condition of the class.

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
    if op_class == "scatter":
        return _sum_rel(law, op_class, length, condition, u_out)
    u = min(u_in, u_out, UNIT_ROUNDOFF["float32"])
    narrow = 2 * condition**2 if dtype_in == "tfloat32" else law.narrow
    squares = u_out**2 + narrow * u_in**2 + (law.roundings + law.per_term * length) * (condition * u) ** 2
    return math.hypot(KAPPA * math.sqrt(squares), _sum_rel(law, op_class, length, condition, u))


def _sum_rel(law: OpLaw, op_class: OpClass, length: int, condition: float, u: float) -> float:
    if law.order is None:
        return 0.0
    inner = condition if op_class in ("matmul", "matvec", "sum", "scatter") else 1.0
    return dot_error_rel(length, u_accumulate=u, u_out=0.0, condition=inner, order=law.order)
