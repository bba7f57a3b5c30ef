"""The weights of the fingerprint: fixed pseudo-random odd numbers mod 2⁶⁴, the same on every machine.

Letters: P = 65,536 places of a page, pages of a book; B books. What their low bits guarantee, and why, is said in
``fingerprint``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

PAGE = 65_536
"""P: words that share a table of weights of 512 KB, which stays in the cache."""

PAGE_BITS = 16

BOOKS = 4_096
"""B: books of P² words that a tensor may have, 2⁴⁴ words in all."""

MAX_WORDS = PAGE * PAGE * BOOKS

NEAR_PAGES = 4_096
"""Pages whose weights differ mod 2³³."""

MASK = PAGE - 1


@dataclass(frozen=True)
class Weights:
    """``word`` int64 [P] by the place in a page, ``page`` int64 [P], ``book`` int64 [B]; the weight of a word is the
    product of its three.
    """

    word: NDArray[np.int64]
    page: NDArray[np.int64]
    book: NDArray[np.int64]

    def of_page(self, page: int) -> int:
        """What all words of a page (counted over all books) are multiplied with, not yet mod 2⁶⁴."""
        return int(self.page[page & MASK]) * int(self.book[page >> PAGE_BITS])


@dataclass(frozen=True)
class DeviceWeights:
    """``Weights`` on a device."""

    word: Tensor
    page: Tensor
    book: Tensor


@cache
def host_weights() -> Weights:
    """The weights; the first call takes milliseconds.

    Mod 2²¹ a place is 1 + 2·(4 random bits) + 2⁵·(a permutation of 0…P-1), a page 1 and a book 1. Mod 2³³ a page is
    1 + 2²¹·(a permutation of 0…4,095, over and over) and a book 1. All bits above are random.
    """
    word = (
        (_random(0, PAGE) << _bits(21)) | (_order(1, PAGE) << _bits(5)) | ((_random(2, PAGE) >> _bits(60)) << _bits(1))
    )
    turn = np.tile(_order(3, NEAR_PAGES), PAGE // NEAR_PAGES)
    page = (_random(4, PAGE) << _bits(33)) | (turn << _bits(21))
    book = _random(5, BOOKS) << _bits(33)
    return Weights(*((table | _bits(1)).view(np.int64) for table in (word, page, book)))


@cache
def device_weights(device: torch.device) -> DeviceWeights:
    """The weights, copied to the device once."""
    weights = host_weights()
    word, page, book = (torch.as_tensor(table).to(device) for table in (weights.word, weights.page, weights.book))
    return DeviceWeights(word, page, book)


def _random(stream: int, count: int) -> NDArray[np.uint64]:
    """uint64 [count] of SplitMix64 (Steele, Lea and Flood 2014), which NumPy's versions cannot change."""
    state = (np.arange(1, count + 1, dtype=np.uint64) + (_bits(stream) << _bits(32))) * _bits(0x9E3779B97F4A7C15)
    state = (state ^ (state >> _bits(30))) * _bits(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> _bits(27))) * _bits(0x94D049BB133111EB)
    return state ^ (state >> _bits(31))


def _order(stream: int, count: int) -> NDArray[np.uint64]:
    """uint64 [count] a random permutation of 0…count-1."""
    return np.argsort(_random(stream, count), kind="stable").astype(np.uint64)


def _bits(value: int) -> np.uint64:
    return np.uint64(value)
