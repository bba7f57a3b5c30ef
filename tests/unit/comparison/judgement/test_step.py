"""When gradients that differ behind calls of one run alone are excused by what the update has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.unit.made_steps import Making

from trueline.comparison.expect.expectation import Expectation
from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values.compared import Compared
from trueline.comparison.judgement.values.distance import Distance


def rows(apart: float, *, used: float, explained: float) -> list[Compared]:
    """A parameter whose gradient differs by ``apart`` where 1e-5 is expected, and by ``used`` as the update has it,
    where rounding may explain as much as ``explained``.
    """
    making, none = Making(), np.zeros(4, np.float32)
    making.put("fwd", "m.linear", "out0", none, api="torch.linear")
    making.put("bwd", "m.weight", "grad", none, kind="param")
    making.put("grad", "m.weight", "grad", none + 1, kind="param")
    said: list[Any] = [
        ("equal", 0.0, 0.0, False),
        ("not-comparable", apart, 1e-5, True),
        ("within", used, explained, False),
    ]
    return [
        Compared(
            place,
            place,
            value,
            value,
            judgement,
            Distance(False, rel, "tensor"),
            Expectation(e, 0.0, "call"),
            "",
            None,
            w,
        )
        for place, (value, (judgement, rel, e, w)) in enumerate(zip(making.done.values, said, strict=True))
    ]


@pytest.mark.parametrize(("used", "num"), [(0.09, 1), (1e-5, 0)])
def test_what_rounding_may_explain_after_clipping_excuses_no_gradient(used: float, num: int) -> None:
    """By the norm of all gradients, of which some are behind such calls, anything may be explained."""
    step = Step(None, 0, 0, None, rows(0.09, used=used, explained=1.4))  # type: ignore[arg-type]
    assert len(step.rewired_rows) == num
