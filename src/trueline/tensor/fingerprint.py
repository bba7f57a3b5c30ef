"""A 64-bit fingerprint of a tensor's bits that adds up over shards, the same number on every device.

Letters: N words, P places of a page, C pages.

Each element is one word, its bits as a signed integer; 64-bit elements are two 32-bit words, the lower first, and a
complex number is its real and then its imaginary part. Words are numbered in row-major order of the *whole* tensor, and

    fingerprint = Σ word(n) · weight(n) mod 2⁶⁴,    weight(n) = place[n mod P] · page[n div P mod P] · book[n div P²]

with P = 65,536, all weights odd and otherwise pseudo-random. A sum over parts is the sum over the whole however the
tensor is cut, and one page needs one multiplication a word. What it sees:

*A change of one word, so any flipped bit: always.* The difference is d · weight with 0 < |d| < 2³², and an odd number
has an inverse mod 2⁶⁴, so it is not 0.

*Two different words that change places: always*, unless they lie an exact multiple of 2²⁸ words apart. The difference
is (a - b)(weight(n) - weight(m)). With 2^t the largest power of two that divides a - b, t ≤ 31, it is 0 only if
2^(64-t), 2³³ or more, divides the difference of the weights. Mod 2²¹ all pages and books are 1 and all places differ,
which settles different places. For equal places it is place · (page - page'), and pages differ mod 2³³ unless their
numbers differ by a multiple of 4,096; then the swap is missed with probability 2^-(31-t), and always for a number and
its negative. (Random odd weights mod 2³² miss every swap of x and -x: 2³¹ times an even number is 0.) Elements of 64
bits are two words, so their swap is, with all else:

*Any other change* of several words whose differences 2^t is the largest power of two to divide: missed with probability
2^-(63-t) if weights were independent, as half of all sums of odd numbers with an even number of odd factors are
multiples of 4, a quarter of 8 and so on. That is 2⁻⁶³ where the last bit of some mantissa differs, 2⁻³² where only
signs of float32 do (t = 31). Our weights share bits below 2²¹ and pages, which costs bits of this where one change is
repeated in each of 2^k pages: k of them. The weights are fixed: no protection against somebody who knows them.

It does not depend on strides. Zero words add nothing, so shape and dtype are to be compared as well: 0.0 in any
shape has fingerprint 0 (and -0.0 has not). ``tensor.digest`` hashes whole contents in host memory or rows of a batch
and cannot be merged: use that to distinguish samples, this for anything that is sharded or compared across devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trueline.tensor.memory import bits_of
from trueline.tensor.native import NATIVE, Native
from trueline.tensor.shard import ShardRuns
from trueline.tensor.strides import blocks
from trueline.tensor.weights import MASK, PAGE, PAGE_BITS, DeviceWeights, device_weights, host_weights

_MOD = 1 << 64
_SLAB = 1 << 24  # words whose products are held on a device at once
_SHORT = 1024  # elements of a run below which one gathers weights instead of calling for each run

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_WORDS = {torch.int8: np.dtype("i1"), torch.int16: np.dtype("i2")} | dict.fromkeys(
    (torch.int32, torch.int64), np.dtype("i4")
)


class HostFingerprint:
    """Takes fingerprints of tensors in host memory, with the compiled kernel where there is one. One object per thread.

    It calls torch and NumPy: where a torch function or dispatch mode is on, turn it off around a call, or it sees them.
    """

    def __init__(self, native: Native | None = NATIVE) -> None:
        self._native = native

    @cached_property
    def _wide(self) -> NDArray[np.int64]:
        return np.empty(PAGE, np.int64)

    def of(self, x: Tensor, *, whole_shape: Sequence[int] | None = None, offsets: Sequence[int] | None = None) -> int:
        """The fingerprint of ``x`` (uint64), or what it adds, as a rectangular shard, to that of the whole: the sum of
        all parts mod 2⁶⁴. ``offsets`` is the position of the shard's first element in the whole, one number a dim.

        Raises ValueError where the shard does not lie within the whole.

        Copies a page at a time, but for a part cut into short runs and for a tensor whose conjugation is still pending.
        """
        shard = None if whole_shape is None or offsets is None else ShardRuns(x, whole_shape, offsets)
        if self._native is not None:
            by_kernel = self._native.fingerprint(x, shard)
            if by_kernel is not None:
                return by_kernel
        x = _as_integers(x)
        if x.numel() == 0:
            return 0
        if shard is None or shard.num_runs == 1:
            return self._run(x, shard.first if shard else 0) % _MOD
        if shard.run_length < _SHORT:
            return int(_scattered(x, shard, PAGE).item()) % _MOD
        runs = zip(x.reshape(shard.num_runs, -1).unbind(0), shard.starts(x.device).numpy(), strict=True)
        return sum(self._run(run, int(start)) for run, start in runs) % _MOD

    def _run(self, x: Tensor, start: int) -> int:
        """Σ word · weight over elements that follow each other, the first being the ``start``-th of the whole."""
        start *= _words_each(x)
        if x.is_contiguous():
            return self._sum(bits_of(x, _WORDS[x.dtype]), start)
        total = 0
        for block in blocks(x, PAGE):
            gathered = block.contiguous()
            words_N = bits_of(gathered, _WORDS[x.dtype])
            total += self._sum(words_N, start)
            start += words_N.size
        return total

    def _sum(self, words_N: NDArray[Any], start: int) -> int:
        """Σ word · weight over words that follow each other, not yet mod 2⁶⁴."""
        weights, wide_N = host_weights(), self._wide
        place_N = weights.word.view(np.uint64)
        total, num_read, size = 0, 0, words_N.size
        while num_read < size:
            page, offset = divmod(start + num_read, PAGE)
            count = min(PAGE - offset, size - num_read)
            wide = wide_N[:count]
            np.copyto(wide, words_N[num_read : num_read + count])
            part = np.einsum("i,i->", wide.view(np.uint64), place_N[offset : offset + count])  # mod 2⁶⁴ by C's rules
            total += int(part) * weights.of_page(page)
            num_read += count
        return total


def fingerprint_on_device(
    x: Tensor, *, whole_shape: Sequence[int] | None = None, offsets: Sequence[int] | None = None
) -> Tensor:
    """int64 [] fingerprint on the device of ``x``, its top bit as sign, without synchronising.

    The same as ``HostFingerprint.of`` mod 2⁶⁴. Temporaries take 8 bytes a word, at most 128 MB; a part in several runs
    five times as much. The first call on a device copies 1 MB of weights there.
    """
    shard = None if whole_shape is None or offsets is None else ShardRuns(x, whole_shape, offsets)
    x = _as_integers(x)
    if x.numel() == 0:
        return torch.zeros((), dtype=torch.int64, device=x.device)
    if shard is None or shard.num_runs == 1:
        return _in_pages(x, shard.first if shard else 0)
    return _scattered(x, shard, _SLAB)


def _in_pages(x: Tensor, start: int) -> Tensor:
    """int64 [] Σ word · weight over elements that follow each other, the first being the ``start``-th of the whole."""
    words_N = _words(x)
    start *= _words_each(x)
    weights = device_weights(x.device)
    ahead = min(-start % PAGE, words_N.numel())
    whole = (words_N.numel() - ahead) // PAGE * PAGE
    parts: list[Tensor] = []
    for first, last in ((0, ahead), (ahead + whole, words_N.numel())):
        if last > first:
            page, offset = divmod(start + first, PAGE)
            product_N = words_N[first:last] * weights.word[offset : offset + last - first]
            # a page of one dim, as indexing with a number on the device waits for it
            parts.append(product_N.sum() * _of_pages(torch.arange(page, page + 1, device=x.device), weights))
    for slab_N in torch.split(words_N[ahead : ahead + whole], _SLAB) if whole else ():
        slab_CP = slab_N.view(-1, PAGE)
        page = (start + ahead) // PAGE
        page_C = torch.arange(page, page + slab_CP.shape[0], device=x.device)
        parts.append(((slab_CP * weights.word).sum(dim=1) * _of_pages(page_C, weights)).sum(dim=0, keepdim=True))
        ahead += slab_N.numel()
    return torch.cat(parts).sum()


def _scattered(x: Tensor, shard: ShardRuns, limit: int) -> Tensor:
    """int64 [] Σ word · weight over a part in several runs, about ``limit`` words at a time."""
    words_RL = _words(x).view(shard.num_runs, -1)
    start_R = shard.starts(x.device) * _words_each(x)
    weights = device_weights(x.device)
    step_L = torch.arange(words_RL.shape[1], device=x.device)
    parts: list[Tensor] = []
    height = max(limit // words_RL.shape[1], 1)
    for some_RL, first_R in zip(torch.split(words_RL, height), torch.split(start_R, height), strict=True):
        index_RL = first_R[:, None] + step_L
        product_RL = weights.word[index_RL & MASK] * _of_pages(index_RL >> PAGE_BITS, weights)
        parts.append((product_RL * some_RL).sum())
    return torch.stack(parts).sum()


def _of_pages(page: Tensor, weights: DeviceWeights) -> Tensor:
    """int64, of the same shape: what the words of these pages are multiplied with."""
    return weights.page[page & MASK] * weights.book[page >> PAGE_BITS]


def _as_integers(x: Tensor) -> Tensor:
    """The bits as signed integers of the same width, a trailing dim of two for the parts of complex numbers."""
    x = x.detach()
    if x.is_complex():
        x = torch.view_as_real(x.resolve_conj())
    return x.resolve_neg().view(_INTEGERS[x.element_size()])


def _words_each(x: Tensor) -> int:
    return 2 if x.dtype == torch.int64 else 1


def _words(x: Tensor) -> Tensor:
    """[N] words in row-major order."""
    flat = x.contiguous().as_strided((x.numel(),), (1,))  # view(-1) keeps a stride of 2 of a single element
    return flat.view(torch.int32) if x.dtype == torch.int64 else flat
