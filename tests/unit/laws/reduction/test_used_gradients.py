"""What the factors of shards say of how they came about."""

import numpy as np
import pytest

from trueline.laws.reduction.used_gradients import clipped_by_own_norms

CLIPPED = np.array([[0.4, 0.5, 1.0], [0.3, 1.0, 0.7], [0.5, 0.6, 0.6], [0.2, 0.4, 0.9]])
"""[T, N] factors of three ranks that each clip by their own norm."""


@pytest.mark.parametrize(
    ("factor_TN", "clipped"),
    [
        (CLIPPED, True),
        (CLIPPED[:2], False),  # too few steps to tell
        (2 * CLIPPED, False),  # clipping makes nothing longer
        (np.tile(CLIPPED[0], (4, 1)), False),  # the same at every step
        (np.where([True, False, False], CLIPPED, 1.0), False),  # one rank alone
    ],
)
def test_each_rank_that_clips_by_its_own_norm_has_factors_of_its_own(factor_TN, clipped):
    factor_TNG = np.repeat(factor_TN[:, :, None], 2, axis=2)
    assert clipped_by_own_norms(factor_TNG) is clipped
    factor_TNG[:, :, 1] *= 0.9  # one norm gives one factor for all groups
    assert not clipped_by_own_norms(factor_TNG)
