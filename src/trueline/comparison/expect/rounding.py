"""Size of the difference that rounding explains: of sums in some order, of products, of two orders, of statistics.

All laws take roundings as independent errors of mean zero (Higham and Mary, A New Approach to Probabilistic Rounding
Error Analysis, SIAM J. Sci. Comput. 41(5), 2019), which bounds made for the worst case miss by orders of magnitude.
They give the size to *expect*, relative, in the L2 norm over many elements; ``benchmarks/rounding`` has how far
measured ones are from it.

Letters: u unit roundoff of a format, N terms of a sum, rho mean cosine between any two of them, e(k) expected square of
the norm of a sum of k terms, over that of one term.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from trueline.schema.errors import InputError
from trueline.schema.formats import FORMATS

Order = Literal["sequential", "ring", "tree", "pairwise", "cascade", "blocked"]
"""In which order N terms are added. ``sequential``: one after the other. ``ring``: likewise, but each of N pieces of
the vector starts with another term, as ring all-reduces do. ``tree`` and ``pairwise``: halves, and halves of these.
``cascade``: sums of 16, and sums of 16 of these (torch's own sums on a CPU, ATen/native/cpu/SumKernel.cpp).
``blocked``: blocks of ``BLOCK``, and then the blocks, one after the other (matrix products)."""

Accumulate = Literal["same", "float32"]
"""The dtype of partial sums: that of the terms, or float32 with one rounding at the end."""

UNIT_ROUNDOFF: dict[str, float] = {name: fmt.unit for name, fmt in FORMATS.items()}
"""Unit roundoff by dtype, without 'torch.'."""

KAPPA = 1 / math.sqrt(8 * math.log(2))
"""Expected relative error of one rounding over u, root mean square: 0.4247.

Of x = m·2^e with 1 <= m < 2, rounding to nearest has an error that is uniform within u·2^e, so that its square over x²
is u²/(3m²) on average. Whatever the distribution of the elements, if the scale of the vector is as likely in one part
of an octave as in another, m is log-uniform (Benford's law in base 2; Hamming, On the Distribution of Numbers, BSTJ
49(8), 1970), and the mean of 1/m² is 3/(8 ln 2). A vector whose elements are all alike has between 0.29 and 0.58."""

BLOCK = 192
"""Terms that a float32 matrix product adds up before it stores a partial sum; the best fit to torch's CPU products with
MKL and lengths of 4 to 4,096 (``benchmarks/rounding``). Other libraries have other blocks."""

FAN = 16
"""Terms of each sum of a cascade."""

STAGNATION = 0.5
"""A partial sum in low precision is too large for what is added to it where u·sqrt(e(N)) is more than this: measured
errors are 1.1 times the expected there, and three times at 1.3 (``benchmarks/rounding``)."""

ORDER_LIMIT = 1.5
"""The largest ratio, for a difference between two orders, to the expected one that rounding explains; measured ratios
over 4,096 elements are up to 1.2 (``benchmarks/rounding``). Below some hundred elements chance makes them vary by
more."""


@dataclass(frozen=True)
class OrderJudgement:
    """Whether a difference between two sums of the same terms is explained by their order.

    ``explained`` is None where that is not known, and ``why`` gives the reason as a sentence. ``expected_rel`` is the
    difference to expect and ``limit_rel`` the largest that rounding explains, both relative to the norm of the sum.
    """

    explained: bool | None
    expected_rel: float
    limit_rel: float
    why: str


def unit_roundoff(dtype: str) -> float:
    """Unit roundoff of a dtype ('bfloat16' or 'torch.bfloat16'). Raises ``InputError`` for one that has none."""
    unit = UNIT_ROUNDOFF.get(dtype.removeprefix("torch."))
    if unit is None:
        raise InputError(f"The dtype '{dtype}' has no known rounding. Known are {', '.join(UNIT_ROUNDOFF)}.")
    return unit


def coarser(dtype: str, other_dtype: str) -> str:
    """Return the dtype that rounds more; integer dtypes round nothing."""
    return (
        dtype
        if dtype == other_dtype or UNIT_ROUNDOFF.get(dtype, 0.0) >= UNIT_ROUNDOFF.get(other_dtype, 0.0)
        else other_dtype
    )


def rounding_rel(u: float) -> float:
    """Relative L2 error to expect of one rounding of a vector."""
    return KAPPA * u


def sum_error_rel(num_terms: int, *, order: Order, u: float, mean_cosine: float = 0.0, block: int = BLOCK) -> float:
    """Relative L2 error to expect of a sum of ``num_terms`` vectors of like norm: KAPPA·u·sqrt(sum of e(k)/e(N)).

    e(k) = k + k(k - 1)·rho, and the sum is over the partial sums that the order forms: each is rounded once. Raises
    ``InputError`` for fewer than one term, or a mean cosine that N vectors cannot have.
    """
    _require_sum(num_terms, mean_cosine)
    return KAPPA * u * math.sqrt(_partial_squares(num_terms, order, mean_cosine, block) / _e(num_terms, mean_cosine))


def order_difference_rel(
    num_terms: int,
    *,
    orders: tuple[Order, Order] = ("sequential", "sequential"),
    u: float,
    u_out: float | None = None,
    mean_cosine: float = 0.0,
) -> float:
    """Relative L2 difference to expect between sums of the same vectors in two orders, such as two permutations.

    Before the last rounding the two are apart by the root of the sum of the squares of their errors. The last rounding
    (to ``u_out``, by default u) maps both to one grid, of step h: numbers that were d apart come out equal or a step
    apart, with a mean square of d² + h²·f(1 - f), where f is the fraction of d/h. Two terms have one order only, as
    addition commutes: 0. An upper limit where terms have so few bits that partial sums are exact, as those of 16-bit
    terms often are in float32. Raises ``InputError`` as ``sum_error_rel`` does.
    """
    _require_sum(num_terms, mean_cosine)
    if num_terms <= 2:
        return 0.0
    u_out, total = u if u_out is None else u_out, _e(num_terms, mean_cosine)
    last = total if u_out == u else 0.0  # else the whole is rounded twice: as a partial sum, and to u_out
    before = sum(_partial_squares(num_terms, order, mean_cosine, BLOCK) - last for order in orders)
    difference_rel = KAPPA * u * math.sqrt(before / total)
    return math.sqrt(difference_rel**2 + _regridded(difference_rel, u_out))


def stagnates(num_terms: int, *, u: float, mean_cosine: float = 0.0, order: Order = "sequential") -> bool:
    """Tell whether terms that are added one after the other become too small for the partial sum.

    Then the sum stagnates: errors are neither independent nor bounded by the law. Halving never gets there.
    """
    one_by_one = order in ("sequential", "ring")
    return one_by_one and u * math.sqrt(_e(num_terms, mean_cosine)) > STAGNATION


def dot_error_rel(
    length: int,
    *,
    u_accumulate: float,
    u_out: float,
    condition: float = 1.0,
    order: Order = "blocked",
) -> float:
    """Relative L2 error to expect of a product A·B whose elements are sums of ``length`` products.

    ``condition`` is |A|·|B| / (sqrt(length)·|AB|) in Frobenius norms: 1 for unrelated factors, less where products have
    one sign, more where they cancel. It is the cosine between products in another form, rho = (1/condition² - 1) /
    (length - 1), as e(K) = K/condition², so partial sums grow and cancel as those of ``sum_error_rel`` do. Products are
    fused with additions, and so not rounded.
    """
    require_product(length, condition)
    squares = _partial_squares(length, order, condition_cosine(length, condition), BLOCK) * condition**2 / length
    return KAPPA * math.hypot(u_accumulate * math.sqrt(squares), u_out)


def require_product(length: int, condition: float) -> None:
    """Raise ``InputError`` for a length or a condition that no product has."""
    if length < 1 or not 0 < condition < math.inf:
        raise InputError(
            f"Sums of {length} terms with a condition of {condition:g} do not exist; give a length from 1 on and a "
            "finite condition above 0."
        )


def condition_cosine(length: int, condition: float) -> float:
    """Mean cosine between ``length`` terms of a sum whose norm is sqrt(length)/condition times that of a term."""
    return (condition**-2 - 1) / (length - 1) if length > 1 else 0.0


def explained_by_order(
    difference_rel: float,
    num_workers: int,
    dtype: str,
    *,
    accumulate: Accumulate = "same",
    mean_cosine: float = 0.0,
    order: Order = "sequential",
) -> OrderJudgement:
    """Judge whether two sums of the gradients of ``num_workers`` workers differ as two orders of adding them up do.

    ``difference_rel`` is |a - b| / |a|, and ``order`` the kind of both. Raises ``InputError`` for numbers that cannot
    be.
    """
    if not difference_rel >= 0 or math.isinf(difference_rel):
        raise InputError(f"A relative difference of {difference_rel:g} cannot be; give a number of at least 0.")
    u_out = unit_roundoff(dtype)
    u = min(u_out, UNIT_ROUNDOFF["float32"]) if accumulate == "float32" else u_out
    expected = order_difference_rel(num_workers, orders=(order, order), u=u, u_out=u_out, mean_cosine=mean_cosine)
    limit = ORDER_LIMIT * expected
    if difference_rel <= limit:
        return OrderJudgement(True, expected, limit, "It is within what two orders of summation differ by.")
    if stagnates(num_workers, u=u, mean_cosine=mean_cosine, order=order):
        why = f"{num_workers:,} terms added one after the other in {dtype} stagnate, and then no law bounds the error."
        return OrderJudgement(None, expected, limit, why)
    if num_workers == 2:
        return OrderJudgement(False, expected, limit, "Two terms have only one order of summation.")
    return OrderJudgement(False, expected, limit, "It is more than two orders of summation differ by.")


def _require_sum(num_terms: int, mean_cosine: float) -> None:
    least = -1 / (num_terms - 1) if num_terms > 1 else -1.0
    if num_terms < 1:
        raise InputError(f"A sum of {num_terms} terms does not exist; give a number of terms from 1 on.")
    if not least < mean_cosine <= 1:
        raise InputError(
            f"{num_terms:,} vectors cannot have a mean cosine of {mean_cosine:g} and a sum; give one above {least:g}, "
            "at most 1."
        )


def _e(count: float, mean_cosine: float) -> float:
    return count + count * (count - 1) * mean_cosine


def _partial_squares(num_terms: int, order: Order, mean_cosine: float, block: int) -> float:
    """Sum of e(k) over the partial sums of more than one term that an order forms."""
    if order in ("sequential", "ring"):
        return _in_turn(num_terms, 1, mean_cosine)
    if order in ("tree", "pairwise"):
        return _by_halves(num_terms, mean_cosine)
    if order in ("cascade", "blocked"):
        return _by_blocks(num_terms, mean_cosine, FAN if order == "cascade" else block, is_recursive=order == "cascade")
    raise InputError(f"'{order}' is no order of summation. There are {', '.join(get_args(Order))}.")


def _in_turn(count: int, unit: float, mean_cosine: float) -> float:
    """Sum of e(j·unit) over j = 2 … count: of sums of ``unit`` terms each that are added one after the other."""
    if count < 2:
        return 0.0
    first = count * (count + 1) / 2 - 1
    second = count * (count + 1) * (2 * count + 1) / 6 - 1
    return unit * first * (1 - mean_cosine) + unit**2 * second * mean_cosine


def _by_halves(num_terms: int, mean_cosine: float) -> float:
    total, sizes = 0.0, {num_terms: 1}
    while any(size > 1 for size in sizes):
        halves: dict[int, int] = {}
        for size, count in sizes.items():
            if size > 1:
                total += count * _e(size, mean_cosine)
                for half in (size // 2, size - size // 2):
                    halves[half] = halves.get(half, 0) + count
        sizes = halves
    return total


def _by_blocks(num_terms: int, mean_cosine: float, block: int, *, is_recursive: bool) -> float:
    """Blocks of terms, then blocks of these (``is_recursive``) or all of them one after the other."""
    total, count, unit = 0.0, num_terms, 1
    while count > block:
        whole, rest = divmod(count, block)
        total += whole * _in_turn(block, unit, mean_cosine) + _in_turn(rest, unit, mean_cosine)
        count, unit = whole + (rest > 0), unit * block
        if not is_recursive:
            break
    return total + _in_turn(count, num_terms / count if unit > 1 else 1, mean_cosine)


def _regridded(apart_rel: float, u: float) -> float:
    """What rounding to one grid adds to the mean square of a normal difference of ``apart_rel``, relative.

    The grid has steps of h = 2u/m for a mantissa m, which is log-uniform; s is the difference in steps. The mean of
    f(1 - f) over a normal difference is 1/6 - sum of exp(-2 (pi n s)²)/(pi n)² (its Fourier series), and
    s·sqrt(2/pi) - s² where s is so small that less than a step is certain.
    """
    mantissas: Sequence[float] = [2 ** ((i + 0.5) / 8) for i in range(8)]
    total = 0.0
    for mantissa in mantissas:
        step = 2 * u / mantissa
        s = apart_rel / step
        if s < 0.15:
            mean = s * math.sqrt(2 / math.pi) - s * s
        else:
            mean = 1 / 6 - sum(math.exp(-2 * (math.pi * n * s) ** 2) / (math.pi * n) ** 2 for n in range(1, 5))
        total += step**2 * mean
    return total / len(mantissas)
