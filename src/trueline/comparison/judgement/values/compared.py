"""A judged pair of values, and the limits up to which a difference is rounding."""

from __future__ import annotations

import math

from trueline.comparison.expect.expectation import Expectation
from trueline.comparison.judgement.values.distance import Distance
from trueline.comparison.result import Judgement
from trueline.judge.recorded.step_values import Value
from trueline.schema.fact import fact

LIMIT = {"tensor": 8.0, "fingerprint": 16.0, "statistics": 16.0}
"""Times the expected difference that rounding still explains, by how the difference was measured;
``benchmarks/compare`` has the largest that healthy pairs of runs reach. Statistics measure less exactly, but for those
with projections, which are as good as tensors.
"""

COARSE_REL = 0.3
"""An expected difference from which on a value is mostly noise, and a wrong one no longer told from a right one: a
gradient of which nine tenths of the elements are zeroed, or that points elsewhere, differs by about 1, and the limit is
a multiple of what is expected."""

HARDLY_REL = 2.0**-17
"""A measured difference up to which values agree, whatever was expected: 128 units of float32, and a 500th of one of
bfloat16.
"""

NONFINITE = "NaN or infinities in one run where the other has none"


@fact(eq=False)
class Compared:
    """A judged pair of values, or a value without a twin; ``position`` is its zero-based index in the order of
    execution.

    ``root`` is that of the value on the side whose order it is, as in ``Expectation.sources``; None for a value that
    only the other side has. ``param`` is the name of the parameter that the value is.
    """

    position: int
    root: int | None
    run_value: Value | None
    ref_value: Value | None
    judgement: Judgement
    distance: Distance | None = None
    expectation: Expectation | None = None
    note: str = ""
    param: str | None = None
    rewired: bool = False
    """Whether it is not comparable because its call took different inputs, and differs by more than rounding explains.
    """

    @property
    def value(self) -> Value:
        """The value of the run, or that of the reference where only it has one."""
        value = self.run_value or self.ref_value
        assert value is not None
        return value

    @property
    def unmatched(self) -> bool:
        """True where one side has no such value."""
        return self.run_value is None or self.ref_value is None

    @property
    def hardly_differs(self) -> bool:
        """True where it was measured that the values differ by no more than ``HARDLY_REL``."""
        if self.distance is None or self.distance.nonfinite_differ:
            return False
        rel = self.distance.rel if self.distance.how == "tensor" else self.distance.most_rel
        return rel is not None and rel <= HARDLY_REL

    @property
    def is_coarse(self) -> bool:
        """True where rounding may explain so much that a fault would not show."""
        coarse = self.judgement == "within" and self.expectation is not None and self.expectation.rel > COARSE_REL
        return coarse and not self.hardly_differs

    @property
    def norm(self) -> float:
        """The larger norm of the value in either run; infinite where it was not measured in both."""
        values = (self.run_value, self.ref_value)
        return max(math.inf if value is None or value.stats is None else value.stats.norm for value in values)

    @property
    def times(self) -> float | None:
        """The measured difference over the expected one; inf where none is expected."""
        if self.distance is None or self.distance.rel is None or self.expectation is None:
            return None
        if self.judgement == "not-comparable" or self.distance.nonfinite_differ:
            return None
        if self.judgement == "propagated" and self.distance.how != "tensor":
            return None  # statistics do not give the size of a difference that is not rounding
        return times_expected(self.distance.rel, self.expectation.rel)


def times_expected(rel: float, expected: float) -> float:
    """A difference over the expected one; inf where one is there and none is expected."""
    if rel == 0:
        return 0.0
    return rel / expected if expected > 0 else math.inf
