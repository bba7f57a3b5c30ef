"""What a learning rate is multiplied by where it is scaled with ranks and batches."""

from __future__ import annotations

import itertools
import math

import numpy as np

from trueline.store.reader import Run

SCALED_BY = 256
"""Samples that rates are scaled by in public recipes (Goyal et al. 2017, Accurate, Large Minibatch SGD)."""


def scale_factors(run: Run) -> set[float]:
    """Factors, and one over each: ranks, micro-batches and samples of an update, and roots of these."""
    micros, measured = run.pivot("num_micro")
    num_micro = float(np.median(micros[measured])) if measured.any() else 1.0
    *_, lengths, _ = run.flat("sample_digests", steps=run.steps[:8].tolist())
    num_samples = float(np.median(lengths)) / max(num_micro, 1.0) if len(lengths) else 1.0
    sizes = (float(run.world_size), num_micro, num_samples)
    products = {math.prod(part) for number in range(4) for part in itertools.combinations(sizes, number)}
    factors = {product / scale for product in products for scale in (1, SCALED_BY) if product > 0}
    # the rule for Adam (Malladi et al. 2022, On the SDEs and Scaling Rules for Adaptive Gradient Algorithms)
    factors |= {math.sqrt(factor) for factor in factors}
    return factors | {1 / factor for factor in factors}
