"""The summands of a loss, read from its graph."""

import torch
from torch import nn
from torch.nn import functional as F

from trueline.capture.probes.losses.summands import summands_of


def test_what_torch_itself_divides_a_cross_entropy_of_probabilities_by_is_a_divisor():
    """It is a number of Python, and no tensor."""
    layer, x = nn.Linear(4, 3), torch.ones(5, 4)
    target = torch.ones(5, 3) / 3
    summands = summands_of(F.cross_entropy(layer(x), target) + layer(x).square().mean())
    assert [(part.divisors, part.multipliers) for part in summands.parts] == [((5.0,), (-1.0,)), ((), ())]
