"""Different values are counted as a set counts them."""

import numpy as np
import pytest

from trueline.judge.stats.distinct import num_distinct


@pytest.mark.parametrize("values", [[], [7], [3, 1, 3, 2, 1], [[5, 5], [5, 6]]])
def test_as_many_as_a_set_has(values):
    array = np.array(values, np.int64)
    assert num_distinct(array) == len(set(array.ravel().tolist()))
