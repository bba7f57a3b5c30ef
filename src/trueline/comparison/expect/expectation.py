"""Expectation for a value: the difference that rounding explains, and the values it was computed from."""

from __future__ import annotations

import math
from typing import Literal

from trueline.judge.recorded.step_values import CallKey
from trueline.schema.fact import fact

Origin = Literal["call", "given", "param", "gradient", "wiring", "unrecorded"]
"""Where a value comes from: a recorded call, no recorded call, the parameters, the backward of a call that is not
recorded; or (``wiring``) it was seen before with another twin: the two runs connect their calls differently. Where only
calls of modules were recorded, the code between them (``unrecorded``)."""

UNRELATED = math.sqrt(2)
"""Relative difference of two unrelated values of equal norm."""


@fact()
class Expectation:
    """The difference ``rel`` of a value that rounding explains, and the values that it was computed from.

    ``own`` is the part that is due to the rounding of ``call``, which computed the value, ``sources`` are the roots of
    the inputs, and ``tainted`` says that one of these differs by more than rounding explains. ``decided``: before it
    came a decision (an index, a comparison) that the two runs take differently, or random numbers that they do not
    share. ``explained`` is the difference to expect if those of tainted inputs had no effect on it; None where that is
    not known. ``within`` is the innermost module whose unrecorded code computed the value, '' outside of the model.
    ``carried`` is what to expect if the differences of inputs that the two runs make in different ways reach it; 0.0
    where it has none of them.
    """

    rel: float
    own: float
    origin: Origin
    tainted: bool = False
    sources: tuple[int, ...] = ()
    call: CallKey | None = None
    decided: bool = False
    explained: float | None = None
    within: str | None = None
    carried: float = 0.0
