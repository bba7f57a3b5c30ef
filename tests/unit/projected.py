"""The three projections by their definition, number by number: what the kernels must find."""

import functools

import numpy as np
import torch

from trueline.tensor.weights import host_weights


@functools.lru_cache(maxsize=64)
def signs(numel, start=0):
    """float64 [numel, 3] of the places from ``start`` on."""
    weights = host_weights()
    place, page = (some.view(np.uint64) for some in (weights.word, weights.page))
    index = start + np.arange(numel)
    in_page = index % 65_536
    draw = place[in_page // 64 * 16 + in_page % 16]
    turn = page[index // 65_536 % 65_536] * weights.book.view(np.uint64)[index // 65_536**2]
    row = in_page // 16 % 4
    return np.stack(
        [
            (-1.0) ** (draw >> np.uint64(31 - k) & np.uint64(1))
            * (-1.0) ** (turn >> np.uint64(63 - k) & np.uint64(1))
            * np.where(row == k, -1.0, 1.0)
            for k in range(3)
        ],
        axis=1,
    )


def projected(values, dtype, start=0):
    """float64 [3] of real numbers (float64 [N]), of which those of a float ``dtype`` are left out where masks begin."""
    masks = {torch.float16: 2.0**14, torch.bfloat16: 2.0**120, torch.float32: 2.0**120, torch.float64: 2.0**960}
    kept = np.where(np.isfinite(values) & (np.abs(values) < masks.get(dtype, np.inf)), values, 0.0)
    return kept @ signs(len(values), start)
