"""Workers whose means differ for good: how far apart they are, next to the noise of a step."""

import math

import numpy as np
import pytest

from trueline.judge.stats.persistence import persistent_spread


def test_three_steps_are_the_fewest_that_tell_a_spread_from_noise():
    values = np.array([[0.0, 4.0], [1.0, 3.0], [0.0, 5.0]])
    found = persistent_spread(values)
    assert found is not None
    # Half the differences 4, 2 and 5 are the residuals, in both workers: their variance is 7/12 and that of the means
    # 2 (11/6)^2, of which the noise of three steps is taken out.
    noise2 = 2 * np.var([2.0, 1.0, 2.5], ddof=1)
    between2 = 2 * (11 / 6) ** 2 - noise2 / 3
    assert (found.noise, found.std_of_means) == pytest.approx((math.sqrt(noise2), math.sqrt(between2)))
    assert found.ratio == pytest.approx(math.sqrt(1 + between2 / noise2))
    assert found.low < found.ratio < found.high
    assert persistent_spread(values[1:]) is None
    assert persistent_spread(values[:, :1]) is None
