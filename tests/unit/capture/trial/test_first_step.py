"""The sketch by which gradients of two runs are compared."""

import pytest
import torch

from trueline.capture.trial.first_step import SKETCH, sketch


@pytest.mark.parametrize("shape", [(7,), (SKETCH,), (SKETCH + 1,), (300, 1700)])
def test_a_sketch_is_linear_and_has_the_norm_of_the_gradient(shape):
    torch.manual_seed(0)
    one, other = torch.randn(shape), torch.randn(shape)
    both = sketch(2 * one - other, "w")
    torch.testing.assert_close(both, 2 * sketch(one, "w") - sketch(other, "w"), rtol=0, atol=1e-4)
    # relative standard error of a squared norm: sqrt(2 / k), and none where nothing is added up
    allowed = 4 * (2 / SKETCH) ** 0.5 if both.numel() < one.numel() else 1e-6
    assert float(both.square().sum()) == pytest.approx(float((2 * one - other).square().sum()), rel=allowed)


def test_a_difference_in_one_element_is_seen_whole():
    gradient = torch.zeros(400, 1000)
    gradient[399, 999] = 1e-3
    assert float(sketch(gradient, "w").norm()) == pytest.approx(1e-3)
