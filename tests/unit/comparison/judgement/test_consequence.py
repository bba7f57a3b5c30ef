"""Which differences have no consequence: what must agree, and how well."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.made_steps import Making, exactly

from trueline.comparison.expect.expectation import Expectation
from trueline.comparison.judgement.consequence import NO_CONSEQUENCE, with_consequences, without_harmless
from trueline.comparison.judgement.values.compared import Compared
from trueline.comparison.judgement.values.distance import Distance
from trueline.comparison.judgement.values.value_judgement import Divergence
from trueline.comparison.match.align import align
from trueline.comparison.match.names import NameMap
from trueline.comparison.result import Judgement


def array(seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal((8, 6)).astype(np.float32)


def step(
    *,
    mask: float,
    result: float = 0.0,
    small: float = 0.0,
    size: float = 1.0,
    written: bool = False,
    unclipped: float = 0.0,
) -> Making:
    """A value that is off by ``mask``, the model's result, and the gradients of two parameters, relative; before it was
    clipped, one is off by ``unclipped``.
    """
    making, x, m = Making(), array(0), array(1)
    api = "torch.Tensor.add_" if written else "torch.masked_fill"
    making.call("m.sub.mask", api, (x,), (m * (1 + mask)).astype(np.float32))
    making.put("fwd", "Model", "out0", array(2) * np.float32(1 + result), api="a.Model", kind="module", module="")
    making.put("bwd", "large", "grad", array(3) * np.float32(1 + unclipped), kind="param")
    making.put("grad", "large", "grad", array(5), kind="param")
    return making.put("grad", "small", "grad", array(4) * np.float32(size * (1 + small)), kind="param")


def judged(making: Making, ref_making: Making, *, explained: float = 0.0, as_: Judgement = "within") -> list[Compared]:
    """The rows, of which those of gradients that differ are ``as_`` said where rounding explains ``explained``."""
    rows = []
    for row in Divergence(align(making.done, ref_making.done, NameMap()), measure=exactly).rows:
        if (
            explained
            and row.judgement in ("beyond", "propagated")
            and row.run_value
            and row.run_value.site.phase == "grad"
        ):
            assert row.expectation is not None
            row = replace(row, judgement=as_, expectation=replace(row.expectation, rel=explained))
        if row.judgement == "beyond" and row.run_value and row.run_value.site.phase == "bwd":
            row = replace(row, judgement="propagated")  # as the gradients of what differs are
        rows.append(row)
    return list(without_harmless(rows))


def excused(rows: list[Compared]) -> bool:
    assert rows[1].run_value is not None
    return rows[1].note == NO_CONSEQUENCE and rows[1].judgement == "not-comparable"


@pytest.mark.parametrize(("off", "harmless"), [(2.0, True), (0.2, False)])
def test_only_a_large_difference_is_excused(off: float, *, harmless: bool) -> None:
    """A small one may have consequences too small to tell."""
    assert excused(judged(step(mask=off), step(mask=0.0))) == harmless


def test_what_changes_the_result_is_not_excused() -> None:
    assert not excused(judged(step(mask=2.0, result=1e-2), step(mask=0.0)))


def test_what_is_written_to_memory_is_not_excused() -> None:
    """A buffer counts at the steps that use it."""
    assert not excused(judged(step(mask=2.0, written=True), step(mask=0.0, written=True)))


@pytest.mark.parametrize("as_", ["within", "propagated"])
@pytest.mark.parametrize(("size", "harmless"), [(1e-7, True), (1e-2, False)])
def test_a_gradient_that_is_noise_need_not_agree(size: float, as_: Judgement, *, harmless: bool) -> None:
    """That of a bias of keys is what rounding left of 0: its size over that of the others tells, not its difference."""
    rows = judged(step(mask=2.0, small=1.0, size=size), step(mask=0.0, size=size), explained=1.4, as_=as_)
    assert excused(rows) == harmless


@pytest.mark.parametrize(
    ("small", "unclipped", "harmless"), [(1e-6, 0.0, True), (1e-4, 0.0, False), (1e-6, 0.25, False)]
)
def test_a_gradient_of_which_much_might_be_explained_agrees_by_what_was_measured(
    small: float, unclipped: float, *, harmless: bool
) -> None:
    rows = judged(step(mask=2.0, small=small, unclipped=unclipped), step(mask=0.0), explained=1.4)
    assert excused(rows) == harmless


def test_what_was_computed_from_a_wrong_gradient_is_no_rounding() -> None:
    """However much rounding might explain of it; where only one run has a value, what was computed from that too."""
    making = Making()
    for name in "abcde":
        making.put("bwd", f"m.{name}", "out0", array(0))
    values = making.done.values

    def row(place: int, judgement: str, sources: tuple[int, ...], *, apart: float = 0.5) -> Compared:
        return Compared(
            place,
            place,
            values[place],
            None if judgement == "alone" else values[place],
            "not-comparable" if judgement == "alone" else judgement,  # type: ignore[arg-type]
            Distance(False, apart, "tensor"),
            None if judgement == "alone" else Expectation(0.8, 0.0, "call", sources=sources),
        )

    wrong = row(1, "not-comparable", (0,))
    rows = [
        row(0, "within", ()),
        wrong,
        row(2, "alone", ()),
        row(3, "within", (2,)),
        row(4, "within", (1,), apart=1e-7),
    ]
    judged = [consequence.judgement for consequence in with_consequences(rows, [wrong])]
    assert judged == ["within", "not-comparable", "not-comparable", "propagated", "within"]
    assert with_consequences(rows, []) is rows
