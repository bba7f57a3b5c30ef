"""The effect of the order of a sum: simulated gradients of N workers are added up in several orders of each kind.

The workers' gradients are normal with one mean cosine between any two. Elements have scales of their own, as those of
real gradients do, so that their mantissas are as mixed.

Letters: N workers, n elements of a piece of the gradient, P permutations of the workers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trueline.comparison.expect.rounding import (
    UNIT_ROUNDOFF,
    Accumulate,
    Order,
    OrderJudgement,
    explained_by_order,
    order_difference_rel,
    stagnates,
    sum_error_rel,
    unit_roundoff,
)
from trueline.judge.compared_ranks import data_parallel_ranks
from trueline.judge.series.dispersion import dispersion
from trueline.schema.errors import CannotTell, InputError
from trueline.store.reader import Run

DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ORDERS: tuple[Order, ...] = ("sequential", "ring", "tree")
MAX_WORKERS = 8192
MAX_ELEMENTS = 2**30
PERMUTATIONS = 4
"""Of the workers, in each kind of order."""

_AT_A_TIME = 2**22
"""Numbers of all workers together in memory at a time."""

_USUAL_NUMBERS = 2**24
"""Of all workers together, at most, where the number of elements is not given."""

_LEAST_PIECE = 1024
"""Elements of a piece at least: with fewer, calls take longer than sums."""

_OCTAVES = 4
"""Over which the scales of elements spread."""

_SUM_RMS = 256.0
"""Root mean square of the sums: far from both ends of float16."""


@dataclass(frozen=True)
class SumSetup:
    """The sum to simulate: ``elements`` numbers of each of ``workers`` gradients in ``dtype``, with partial sums in the
    same dtype or in float32, in each kind of ``orders``. Raises ``InputError`` for settings that cannot be.
    """

    workers: int = 8
    elements: int = 65_536
    dtype: str = "float32"
    accumulate: Accumulate = "same"
    orders: tuple[Order, ...] = ORDERS
    cosine: float = 0.0
    """Mean over pairs of workers."""
    seed: int = 0
    """Of 64 bits, signed or not, as torch takes it."""

    def __post_init__(self) -> None:
        """Raise ``InputError`` for settings that cannot be."""
        _require_among(self.dtype, "dtype", DTYPES)
        _require_among(self.accumulate, "accumulate", ("same", "float32"))
        for order in self.orders:
            _require_among(order, "order", (*ORDERS, "all"))
        if not 2 <= self.workers <= MAX_WORKERS:
            raise InputError(f"--workers is {self.workers}; give a number of workers from 2 to {MAX_WORKERS:,}.")
        if not 1 <= self.elements <= MAX_ELEMENTS:
            raise InputError(f"--elements is {self.elements}; give a number of elements from 1 to {MAX_ELEMENTS:,}.")
        if not -(2**63) <= self.seed < 2**64:
            raise InputError(f"--seed is {self.seed}; give a whole number of at most 64 bits.")
        least = -1 / (self.workers - 1)
        if not least < self.cosine <= 1:
            raise InputError(
                f"--cosine is {self.cosine:g}, which the mean over pairs of {self.workers:,} workers cannot be; give "
                f"one above {least:.4g}, at most 1."
            )


@dataclass(frozen=True)
class OrderNoise:
    """The noise of one kind of order, relative to the norm of the sum and over all permutations.

    ``error_rel`` is against the sum in float64 and ``difference_rel`` between two permutations (root mean squares);
    ``difference_most_rel`` is the largest between any two. The others are what ``compare.expect.rounding`` expects.
    """

    order: Order
    error_rel: float
    error_expected_rel: float
    difference_rel: float
    difference_expected_rel: float
    difference_most_rel: float
    limit_rel: float
    stagnates: bool


def usual_elements(workers: int) -> int:
    """Elements of each gradient unless given: 65,536, or as many as make 2**24 for all workers."""
    return min(SumSetup.elements, max(_USUAL_NUMBERS // max(workers, 1), _LEAST_PIECE))


def setup_of(run: Run, *, workers: int | None, cosine: float | None, dtype: str | None) -> tuple[int, float, str]:
    """Number of workers, mean cosine (median over steps) and dtype of the gradients of a Run, unless given.

    Raises ``CannotTell`` where the Run has fewer than two workers, or did not measure what is not given.
    """
    ranks = data_parallel_ranks(run) if workers is None else run.ranks
    if workers is None and len(ranks) < 2:
        only = "only one worker" if ranks else "no worker"
        raise CannotTell(f"Run '{run.path}' has {only} whose gradients are averaged; pass --workers.")
    count = len(ranks) if workers is None else workers
    if dtype is None:
        dtypes = [run.env[rank].grad_dtype.removeprefix("torch.") for rank in ranks if rank in run.env]
        if not dtypes:
            raise CannotTell(f"Run '{run.path}' does not say in which dtype gradients were reduced; pass --dtype.")
        dtype = max(dtypes, key=unit_roundoff)
    if cosine is None:
        measured = torch.from_numpy(dispersion(run).cosine_mean)
        measured = measured[measured.isfinite()]
        if not len(measured):
            raise CannotTell(f"Run '{run.path}' has no step with a mean cosine between workers; pass --cosine.")
        cosine = max(float(measured.median()), -0.999 / max(count - 1, 1))
    return count, cosine, dtype


def num_pieces(setup: SumSetup) -> int:
    """The number of pieces of the gradient that are added up one after the other, in all kinds of order."""
    return len(_piece_sizes(setup)) * len(setup.orders)


def measure(setup: SumSetup, progress: Callable[[], None] = lambda: None) -> list[OrderNoise]:
    """The noise of each kind of order, the same for one seed; ``progress`` is called after each of ``num_pieces``."""
    generator = torch.Generator().manual_seed(setup.seed)
    permutations = [torch.randperm(setup.workers, generator=generator) for _ in range(PERMUTATIONS)]
    squares = {order: _Squares() for order in setup.orders}
    for size in _piece_sizes(setup):
        terms = workers_gradients(setup, size, generator)
        exact = terms.double().sum(0)
        for order, sums in squares.items():
            added = [add_up(terms[permutation], order, accumulate=setup.accumulate) for permutation in permutations]
            sums.take(added, exact)
            progress()
    return [_noise(setup, order, sums) for order, sums in squares.items()]


def judge(difference_rel: float, setup: SumSetup) -> OrderJudgement:
    """Whether the order of the sum explains a difference: the answer for the kind of order that allows most."""
    answers = [
        explained_by_order(
            difference_rel,
            setup.workers,
            setup.dtype,
            accumulate=setup.accumulate,
            mean_cosine=setup.cosine,
            order=order,
        )
        for order in setup.orders
    ]
    return max(answers, key=lambda answer: (answer.explained is True, answer.explained is None, answer.limit_rel))


def workers_gradients(setup: SumSetup, size: int, generator: torch.Generator) -> Tensor:
    """[N, size] in the dtype of the setup: gradients with its mean cosine, each element with its own scale."""
    count, cosine = setup.workers, setup.cosine
    own_Nn = torch.randn(count, size, generator=generator)
    if cosine >= 0:
        own_Nn = own_Nn.mul_(math.sqrt(1 - cosine)).add_(math.sqrt(cosine) * torch.randn(size, generator=generator))
    else:  # a share a of the mean is subtracted, which leaves var = 1 - b and cov = -b with b = (2a - a²)/N
        share = 1 - math.sqrt(max(1 + count * cosine / (1 - cosine), 0.0))
        own_Nn -= share * own_Nn.mean(0)
    growth = math.sqrt(max(count + count * (count - 1) * cosine, 1.0))
    scale_n = torch.exp2(_OCTAVES * (torch.rand(size, generator=generator) - 0.5)) * (_SUM_RMS / growth)
    return own_Nn.mul_(scale_n).to(DTYPES[setup.dtype])


def add_up(terms_Nn: Tensor, order: Order, *, accumulate: Accumulate) -> Tensor:
    """[n] the sum of the terms [N, n] in that order, each partial sum rounded to their dtype or to float32, and the
    whole to their dtype.
    """
    wide_Nn = terms_Nn.float() if accumulate == "float32" else terms_Nn
    added = {"sequential": _in_turn, "ring": _round_the_ring, "tree": _by_halves}[order](wide_Nn)
    return added.to(terms_Nn.dtype)


class _Squares:
    """Sums of squares over pieces: of the exact sum, of the P errors [P], and of the differences of pairs."""

    def __init__(self) -> None:
        pairs = PERMUTATIONS * (PERMUTATIONS - 1) // 2
        self.norm = 0.0
        self.errors = torch.zeros(PERMUTATIONS, dtype=torch.float64)
        self.differences = torch.zeros(pairs, dtype=torch.float64)

    def take(self, added: Sequence[Tensor], exact_n: Tensor) -> None:
        wide_Pn = torch.stack([permuted_sum.double() for permuted_sum in added])
        first, second = torch.triu_indices(PERMUTATIONS, PERMUTATIONS, offset=1)
        self.norm += float(exact_n.square().sum())
        self.errors += (wide_Pn - exact_n).square().sum(1)
        self.differences += (wide_Pn[first] - wide_Pn[second]).square().sum(1)


def _noise(setup: SumSetup, order: Order, squares: _Squares) -> OrderNoise:
    u_out = UNIT_ROUNDOFF[setup.dtype]
    u = UNIT_ROUNDOFF["float32"] if setup.accumulate == "float32" else u_out
    count, cosine = setup.workers, setup.cosine
    expected_error = sum_error_rel(count, order=order, u=u, mean_cosine=cosine)
    last = sum_error_rel(2, order="sequential", u=u_out) if setup.accumulate == "float32" and u < u_out else 0.0
    expected = order_difference_rel(count, orders=(order, order), u=u, u_out=u_out, mean_cosine=cosine)
    differences = (squares.differences / squares.norm).sqrt()
    return OrderNoise(
        order=order,
        error_rel=float((squares.errors.mean() / squares.norm).sqrt()),
        error_expected_rel=math.hypot(expected_error, last),
        difference_rel=float(differences.square().mean().sqrt()),
        difference_expected_rel=expected,
        difference_most_rel=float(differences.max()),
        limit_rel=explained_by_order(
            0.0, count, setup.dtype, accumulate=setup.accumulate, mean_cosine=cosine, order=order
        ).limit_rel,
        stagnates=stagnates(count, u=u, mean_cosine=cosine, order=order),
    )


def _piece_sizes(setup: SumSetup) -> list[int]:
    largest = max(_AT_A_TIME // setup.workers, _LEAST_PIECE)
    whole, rest = divmod(setup.elements, largest)
    return [largest] * whole + ([rest] if rest else [])


def _in_turn(terms_Nn: Tensor) -> Tensor:
    total = terms_Nn[0].clone()
    for term in terms_Nn[1:]:
        total += term
    return total


def _round_the_ring(terms_Nn: Tensor) -> Tensor:
    """Piece j of N, as even as can be, begins with term j."""
    count, size = terms_Nn.shape
    width = -(-size // count)
    padded = torch.nn.functional.pad(terms_Nn, (0, width * count - size)).view(count, count, width)
    piece = torch.arange(count)
    total = padded[piece, piece]
    for turn in range(1, count):
        total += padded[(piece + turn) % count, piece]
    return total.flatten()[:size]


def _by_halves(terms_Nn: Tensor) -> Tensor:
    half = len(terms_Nn) // 2
    return terms_Nn[0] if not half else _by_halves(terms_Nn[:half]) + _by_halves(terms_Nn[half:])


def _require_among(value: str, name: str, valid: Iterator[str] | Sequence[str] | dict[str, torch.dtype]) -> None:
    if value not in valid:
        raise InputError(f"--{name} is '{value}'; give one of {', '.join(valid)}.")
