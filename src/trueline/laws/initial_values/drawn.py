"""Whether a matrix has the values that a usual initialiser draws, and not those that training leaves."""

from __future__ import annotations

import math

from trueline.laws.initial_values.columns import InitialValues

FEWEST = 128
"""Elements of which that can be said."""
FEWEST_ALONE = 4096
"""Elements of a matrix from a normal distribution without a bias that is still zero: the standard deviation of as many
is known to 1.1 %."""
ERRORS = 4.0
"""Standard errors of sampling by which mean, spread and kurtosis may be off."""

SPREADS = (0.001, 0.005, 0.006, 0.01, 0.02, 0.05, 0.1, 1.0)
"""Standard deviations that libraries draw normal weights with: ``initializer_range`` of transformers is 0.02 nearly
always, timm has 0.02 and 0.01, diffusers 0.02, torch's embeddings 1."""


def looks_drawn(value: InitialValues, shape: tuple[int, ...], bias: InitialValues | None) -> bool:
    """True for values within a bound of torch's or Xavier's or Kaiming's uniform initialisers that nearly reach it, and
    for values of a normal distribution with a usual spread: beside a bias that is zero, or where they are many.

    Training moves weights beyond the bound, and gives them longer tails and a mean.
    """
    if value.looked < FEWEST or value.nonfinite or value.spread <= 0 or value.looked < 2:
        return False
    if abs(value.mean) > ERRORS * value.spread / math.sqrt(value.looked):
        return False
    fan_in, fan_out = math.prod(shape[1:]), shape[0] * math.prod(shape[2:])
    return _is_uniform(value, fan_in, fan_out) or _is_normal(value, fan_in, fan_out, bias)


def _is_uniform(value: InitialValues, fan_in: int, fan_out: int) -> bool:
    """The largest of n uniform numbers is below the bound by 1/n of it on average, and by 20/n once in 5e8."""
    # of torch's Linear and convolutions (Kaiming with a = sqrt(5)), Kaiming for ReLU and linear, Xavier
    bounds = (math.sqrt(1 / fan_in), math.sqrt(6 / fan_in), math.sqrt(3 / fan_in), math.sqrt(6 / (fan_in + fan_out)))
    return any(
        bound * (1 - 20 / value.looked) <= value.largest <= bound * 1.001
        # a spread is off by sqrt((kurtosis - 1) / 4n) of itself: 1.8 for uniform numbers, 3 for normal ones
        and abs(value.spread * math.sqrt(3) / bound - 1) <= ERRORS * math.sqrt(0.2 / value.looked)
        for bound in bounds
    )


def _is_normal(value: InitialValues, fan_in: int, fan_out: int, bias: InitialValues | None) -> bool:
    has_zero_bias = bias is not None and bias.largest == 0
    if not has_zero_bias and value.looked < FEWEST_ALONE:
        return False
    error = math.sqrt(24 / value.looked)  # of the kurtosis of a normal distribution
    spreads = (*SPREADS, math.sqrt(1 / fan_in), math.sqrt(2 / fan_in), math.sqrt(2 / (fan_in + fan_out)))
    return abs(value.kurtosis - 3) <= ERRORS * error and any(
        abs(value.spread / spread - 1) <= ERRORS / math.sqrt(2 * value.looked) for spread in spreads
    )
