"""How far a kernel may be from its exact result: one rounding, and what sums in float32 make.

An element y of a result of dtype d may be off by half an ulp of d at y, and by n u S: n terms are added up in float32,
u = 2^-24, and S is the sum of the magnitudes of the terms (Higham, Accuracy and Stability of Numerical Algorithms,
section 4.2). Which element is the furthest off is seen by an estimate: u S is what the exact result changes by when
each input moves by u of itself, and of products what the same kernel makes of magnitudes. For that element the terms
are then counted and added up: they are each input times the derivative of y by it, of a sum its terms exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from benchmarks.operators.kernels import KernelCall
from torch import Tensor

U = 2.0**-24
"""Unit roundoff of float32, in which sums of bfloat16 are added up."""

LEAST_TERMS = 16
"""Operations in float32 that also a kernel without a sum may take, as a polynomial does."""

LIMIT = 5.0
"""Times the allowance from which on a kernel is worse. Up to it, two roundings more explain the error, as of a
difference that is scaled twice: relative to its number a rounding is at most 2^-8, and half an ulp at least 2^-9."""

MOVES = 4
PRODUCTS = frozenset(
    {
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "addbmm",
        "mv",
        "addmv",
        "dot",
        "vdot",
        "addr",
        "convolution",
        "convolution_backward",
    }
    | {"mul", "linear", "mkldnn_linear", "_slow_conv2d_forward", "_slow_conv2d_backward"}
)
_WIDE = (torch.bfloat16, torch.float16, torch.float32)


@dataclass(frozen=True)
class Worst:
    """The element of result number ``output`` that is furthest off, in ``times`` its ``allowance``."""

    output: int
    index: tuple[int, ...]
    actual: float
    exact: float
    allowance: float
    times: float
    dtype: torch.dtype
    wrong_frac: float
    terms: int


def worst_of(call: KernelCall, *, seed: int = 0) -> list[Worst]:
    """The worst element of each floating result of ``call``. Raises whatever the kernel does, also in float64."""
    actual = call.results()
    if not any(x.is_floating_point() for x in actual):
        return []
    exact = call.results(_wide)
    if len(actual) != len(exact):
        return []
    moved = _moved(call, exact, seed)
    elements = [
        _worst(number, x, true, move, _terms(call, x))
        for number, (x, true, move) in enumerate(zip(actual, exact, moved, strict=True))
        if x.is_floating_point() and x.numel() and x.shape == true.shape
    ]
    return [_counted(call, element) if LIMIT < element.times < math.inf else element for element in elements]


def _counted(call: KernelCall, element: Worst) -> Worst:
    """The element with the allowance of its own terms, if that is more than the estimate; where they are not known,
    as if each input were one.
    """
    terms = _terms_of(call, element)
    half_ulp = float(_half_ulp(torch.tensor(element.exact, dtype=torch.float64), element.dtype))
    if terms is None:
        num = max(x.numel() for x in call.tensors if x.is_floating_point())
        most = (element.allowance - half_ulp) / element.terms * num
    else:
        num = max(int((terms != 0).sum()), LEAST_TERMS)
        most = num * U * float(terms.abs().sum())
    allowance = max(half_ulp + most, element.allowance)
    times = abs(element.actual - element.exact) / allowance
    return replace(element, allowance=allowance, times=times, terms=num)


def _terms_of(call: KernelCall, element: Worst) -> Tensor | None:
    """Each floating input times the derivative by it of the element in float64; None where the kernel has none."""
    leaves: list[Tensor] = []

    def leaf_of(leaf: object) -> object:
        wide = _wide(leaf)
        if isinstance(wide, Tensor) and wide.dtype == torch.float64 and wide.layout is torch.strided:
            leaves.append(wide.detach().clone().requires_grad_())
            return leaves[-1] * 1.0  # what is changed in place may be no leaf
        return wide

    try:
        with torch.enable_grad():
            y = call.results(leaf_of, detached=False)[element.output][element.index]
            gradients = torch.autograd.grad(y, leaves, allow_unused=True)
        return torch.cat([(x * g).detach().flatten() for x, g in zip(leaves, gradients, strict=True) if g is not None])
    except (RuntimeError, NotImplementedError):
        return None


def _wide(leaf: object) -> object:
    if isinstance(leaf, Tensor):
        return leaf.cpu().double() if leaf.dtype in _WIDE else leaf.cpu()
    if isinstance(leaf, torch.device):
        return torch.device("cpu")
    return torch.float64 if leaf in _WIDE else leaf


def _moved(call: KernelCall, exact: Sequence[Tensor], seed: int) -> list[Tensor]:
    """The product u S of each result."""
    if call.name in PRODUCTS:
        magnitudes = call.results(lambda leaf: _magnitude(_wide(leaf)))
        return [U * x.abs().double() for x in magnitudes]
    generator = torch.Generator().manual_seed(seed)
    moves = [torch.zeros_like(x, dtype=torch.float64) for x in exact]
    for number in range(1 + MOVES):

        def move(leaf: object, number: int = number) -> object:
            wide = _wide(leaf)
            if not isinstance(wide, Tensor) or wide.dtype != torch.float64 or wide.layout is not torch.strided:
                return wide
            if not number:
                return wide + U * wide.abs()
            return wide * (1 + U * (torch.randint(0, 2, wide.shape, generator=generator) * 2 - 1))

        try:
            results = call.results(move)
        except RuntimeError:
            continue
        for most, x, true in zip(moves, results, exact, strict=False):
            if x.shape == true.shape and x.is_floating_point():
                torch.maximum(most, (x - true).abs().nan_to_num(0.0), out=most)
    return moves


def _magnitude(leaf: object) -> object:
    return leaf.abs() if isinstance(leaf, Tensor) and leaf.is_floating_point() else leaf


def _terms(call: KernelCall, result: Tensor) -> int:
    """About how many terms an element of a result is the sum of."""
    sizes = sorted((x.numel() for x in call.tensors if x.is_floating_point()), reverse=True)[:2]
    least = result.numel()
    terms = sizes[0] // least if sizes else 0
    if call.name in PRODUCTS and len(sizes) > 1:  # (m k)(k n) / (m n) = k^2
        terms = max(terms, math.isqrt(sizes[0] * sizes[1] // least))
    indices = [x.numel() for x in call.tensors if x.dtype in (torch.int32, torch.int64)]
    return max(LEAST_TERMS, terms, *indices)


def _worst(number: int, actual: Tensor, exact: Tensor, moved: Tensor, terms: int) -> Worst:
    x, true, finfo = actual.detach().cpu(), exact.double(), torch.finfo(actual.dtype)
    rounded = true.to(x.dtype)
    allowance = _half_ulp(true, x.dtype) + terms * moved
    error = (x.double() - true).abs()
    alike = (x == rounded) | (x.isnan() & rounded.isnan()) | (true.abs() > finfo.max * 0.99) & (x.sign() == true.sign())
    times = torch.where(alike, 0.0, torch.where(error.isfinite(), error / allowance, math.inf))
    times = torch.where(allowance.isfinite(), times, 0.0)
    at = int(times.argmax())
    index = tuple(int(part) for part in torch.unravel_index(torch.tensor(at), times.shape))
    flat = (x.flatten()[at], true.flatten()[at], allowance.flatten()[at], times.flatten()[at])
    return Worst(number, index, *map(float, flat), x.dtype, float((times > LIMIT).double().mean()), terms)


def _half_ulp(y: Tensor, dtype: torch.dtype) -> Tensor:
    finfo = torch.finfo(dtype)
    _, exponent = torch.frexp(y.abs().clamp(min=finfo.tiny))
    # below the least normal number a kernel may return 0
    return torch.ldexp(torch.full_like(y, finfo.eps / 4), exponent.to(torch.int32)) + finfo.tiny
