"""Equal, within, beyond, propagated, not comparable: which rule says which, on steps made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.unit.made_steps import ROUNDING, Making, by_statistics, chain, judged, judgements

from trueline.comparison.judgement.values.distance import Distance
from trueline.judge.recorded.step_values import StepValues, Value

SMALL = 2 * ROUNDING


def rows_of(off: Any, **settings: Any) -> dict[str, Any]:
    return judged(chain("run", off).done, chain("ref").done, **settings)


def test_equal_steps_are_equal_throughout() -> None:
    assert judgements(rows_of({})) == {}


def test_a_rounding_is_within_and_what_it_explains_too() -> None:
    said = judgements(rows_of({"y": SMALL, "z": SMALL, "t": SMALL}))
    assert set(said.values()) == {"within"}


def test_a_call_of_equal_inputs_that_gives_another_output_is_beyond_and_the_rest_propagated() -> None:
    said = judgements(rows_of({"y": 1e-3, "z": 1e-3, "t": 1e-3}))
    assert said["fwd/linear:out0"] == "beyond"
    assert (said["fwd/gelu:out0"], said["fwd/add:out0"]) == ("propagated", "propagated")


def test_a_call_that_adds_to_what_it_was_given_is_beyond_as_well() -> None:
    said = judgements(rows_of({"y": 1e-4, "z": 0.1, "t": 1e-4}))
    assert said["fwd/gelu:out0"] == "beyond"


def test_a_wrong_weight_leaves_the_blame_to_the_call_that_uses_it() -> None:
    said = judgements(rows_of({"w": 1e-3, "y": 1e-3}))
    assert (said["param/weight:param"], said["fwd/linear:out0"]) == ("beyond", "beyond")


def test_a_number_that_is_finite_on_one_side_only_is_beyond() -> None:
    def made(label: str, worst: float) -> StepValues:
        x = np.ones((4, 4), np.float32)
        y = x.copy()
        y[0, 0] = worst
        return Making(label).call("m.sub.gelu", "torch.nn.functional.gelu", (x,), y).done

    row = judged(made("run", np.inf), made("ref", 1.0))["fwd/gelu:out0"]
    assert (row.judgement, row.times) == ("beyond", None)


@pytest.mark.parametrize("has_more", ["run", "ref"])
def test_distances_are_relative_to_the_reference_whichever_side_has_more(has_more: str) -> None:
    sides = {"run": chain("run", {"y": 1.0}), "ref": chain("ref")}
    sides[has_more].call("m.sub.tanh", "torch.tanh", (np.ones(3, np.float32),), np.tanh(np.ones(3, np.float32)))
    row = judged(sides["run"].done, sides["ref"].done, measure=by_statistics)["fwd/linear:out0"]
    assert row.distance is not None
    assert row.distance.rel == pytest.approx(1.0)  # of the reference's norm; half of the run's


def test_parameters_after_an_update_are_taken_as_it_left_them() -> None:
    row = rows_of({"w": 1e-3}, moved=1e-3)["param/weight:param"]
    assert (row.judgement, row.note) == ("within", "left by the updates before this step")
    assert rows_of({"w": 1e-3}, moved=1e-3, tainted=True)["param/weight:param"].judgement == "propagated"


def test_parameters_after_an_update_of_equal_ones_must_be_equal_but_for_rounding() -> None:
    assert rows_of({"w": SMALL}, moved=1e-3, same_update=True)["param/weight:param"].judgement == "within"
    assert rows_of({"w": 1e-4}, moved=1e-3, same_update=True)["param/weight:param"].judgement == "beyond"


def test_equal_as_far_as_statistics_tell_does_not_make_what_follows_exact() -> None:
    # What relu returns seems equal although its input is not; a part of it then shows a last bit.
    def made(label: str, off: float) -> StepValues:
        draw = np.random.default_rng(1)
        x, y, z = (draw.standard_normal((8, 8)).astype(np.float32) for _ in range(3))
        first, part = (x * np.float32(1 + off)).copy(), (z[:4] * np.float32(1 + off)).copy()
        making = Making(label).call("m.sub.sin", "torch.sin", (y,), first)
        return making.call("m.sub.relu", "torch.relu", (first,), z).call("m.sub.chunk", "torch.chunk", (z,), part).done

    rows = judged(made("run", SMALL), made("ref", 0.0), measure=by_statistics)
    assert [rows[f"fwd/{name}:out0"].judgement for name in ("sin", "relu", "chunk")] == ["within", "equal", "within"]


@pytest.mark.parametrize(("moved", "judgement"), [(1e-3, "within"), (None, "beyond")])
def test_rows_of_a_weight_that_an_update_left_may_show_a_last_bit(moved: float | None, judgement: str) -> None:
    def made(label: str, off: float) -> StepValues:
        draw = np.random.default_rng(1)
        weight, ids = draw.standard_normal((16, 8)).astype(np.float32), np.arange(3)
        rows = (weight[:3] * np.float32(1 + off)).copy()
        making = Making(label).put("param", "m.sub.weight", "param", weight, kind="param")
        return making.call("m.sub.embedding", "torch.nn.functional.embedding", (ids, weight), rows).done

    rows = judged(made("run", SMALL), made("ref", 0.0), measure=by_statistics, moved=moved)
    assert rows["fwd/embedding:out0"].judgement == judgement


def test_equal_statistics_of_what_equal_values_made_are_taken_for_equal() -> None:
    expected = rows_of({}, measure=by_statistics)["fwd/add:out0"].expectation
    assert expected is not None
    assert expected.rel == expected.own


def test_times_are_told_of_a_propagated_value_only_where_it_was_stored() -> None:
    off = {"y": 1e-3, "z": 1e-3, "t": 1e-3}
    assert rows_of(off)["fwd/gelu:out0"].times is not None
    assert rows_of(off, measure=by_statistics)["fwd/gelu:out0"].times is None


def test_a_call_that_takes_another_value_than_the_reference_says_nothing() -> None:
    def made(label: str, first: Any) -> StepValues:
        making = Making(label).call("m.sub.relu", "torch.relu", (x,), a).call("m.sub.gelu", "torch.gelu", (x,), b)
        return making.call("m.sub.tanh", "torch.tanh", (first,), first * np.float32(0.5)).done

    draw = np.random.default_rng(1)
    x, a, b = (draw.standard_normal((8, 8)).astype(np.float32) for _ in range(3))
    rows = judged(made("run", a), made("ref", b))
    assert rows["fwd/tanh:in0"].judgement == "not-comparable"
    assert (rows["fwd/tanh:out0"].judgement, rows["fwd/tanh:out0"].rewired) == ("not-comparable", True)


@pytest.mark.parametrize(("api", "judgement"), [("torch.Tensor.copy_", "not-comparable"), ("torch.sin", "beyond")])
def test_what_a_call_writes_over_may_have_held_anything(api: str, judgement: str) -> None:
    def made(label: str, held: float) -> StepValues:
        memory, source = np.full((4, 4), held, np.float32), np.ones((4, 4), np.float32)
        written = np.full((4, 4), 2.0, np.float32)
        return Making(label).call("m.sub.f", api, (memory, source), written).done

    rows = judged(made("run", 1e9), made("ref", 3.0))
    assert rows["fwd/f:in0"].judgement == judgement
    assert rows["fwd/f:out0"].judgement == "equal"


@pytest.mark.parametrize(("times", "judgement"), [(12, "within"), (24, "beyond")])
def test_a_distance_that_seemed_small_before_numbers_moved_is_not_that_of_the_move(times: int, judgement: str) -> None:
    """Three projections before a call and three after it estimate one distance."""

    def by_projections(mine: Value, theirs: Value) -> Distance:
        distance = by_statistics(mine, theirs)
        return replace(distance, most_rel=3 * (distance.rel or 0.0))

    def made(label: str, ulps: int) -> StepValues:
        x = np.ones((8, 8), np.float32)
        seems, moved = x.copy(), x.copy()
        seems[0, 0] += ulps * ROUNDING  # an eighth of a rounding, of the norm
        moved += np.float32(ulps * 3 * times / 8 * ROUNDING)
        making = Making(label).call("m.sub.sin", "torch.sin", (x,), seems)
        return making.call("m.sub.t", "torch.Tensor.transpose", (seems,), moved).done

    rows = judged(made("run", 2), made("ref", 0), measure=by_projections)
    assert rows["fwd/t:out0"].judgement == judgement


@pytest.mark.parametrize(("left", "judgement"), [(1e-7, "propagated"), (0.5, "within")])
def test_what_may_be_all_rounding_shows_no_end_of_a_difference(left: float, judgement: str) -> None:
    """Behind a wrong value a result may agree, as what is left of a difference by a hundredth seems to where rounding
    may be as large as what it is subtracted from.
    """

    def by_projections(mine: Value, theirs: Value) -> Distance:
        seen = by_statistics(mine, theirs)
        return replace(seen, most_rel=seen.rel)

    def made(label: str, off: float, apart: float) -> StepValues:
        x = np.ones((8, 8), np.float32)
        wrong = x * np.float32(1 + off)
        making = Making(label).call("m.sub.sin", "torch.sin", (x,), wrong)
        rest = np.full((8, 8), left * (1 + apart), np.float32)
        return making.call("m.sub.sub", "torch.sub", (wrong, x * np.float32(1 - left)), rest).done

    apart = 1e-2 if left < 0.5 else SMALL
    rows = judged(made("run", 1e-2, apart), made("ref", 0.0, 0.0), measure=by_projections)
    assert [rows[f"fwd/{name}:out0"].judgement for name in ("sin", "sub")] == ["beyond", judgement]


def test_a_gradient_of_fewer_uses_in_one_run_is_not_compared() -> None:
    """A hook gives a module a view of its input, which has the gradient of its own uses alone; where the tensor was
    made, the gradient has all.
    """
    draw = np.random.default_rng(1)
    x, y, of_all, of_one = (draw.standard_normal((8, 8)).astype(np.float32) for _ in range(4))

    def made(label: str, of_module: Any) -> StepValues:
        making = Making(label).call("m.sub.relu", "torch.relu", (y,), x).call("m.sub.tanh", "torch.tanh", (x,), y * 2)
        making.put("bwd", "m.sub.tanh", "in0", of_module, api="torch.tanh")
        return making.put("bwd", "m.sub.relu", "out0", of_all, api="torch.relu").done

    for one, other in ((of_one, of_all), (of_all, of_one)):
        rows = judged(made("run", one), made("ref", other))
        assert (rows["bwd/tanh:in0"].judgement, rows["bwd/relu:out0"].judgement) == ("not-comparable", "equal")
    rows = judged(made("run", of_one), made("ref", of_one * np.float32(0.5)))
    assert rows["bwd/tanh:in0"].judgement == "beyond"


def test_elements_that_an_update_moved_the_other_way_may_cancel_in_projections() -> None:
    """Of a weight two elements differ, which no projection shows; rows of it that a call takes show them."""

    def by_projections(mine: Value, theirs: Value) -> Distance:
        seen = by_statistics(mine, theirs)
        return replace(seen, rel=1e-7, most_rel=1e-6) if mine.site.slot in ("value", "in1") else seen

    def made(label: str, lr: float) -> StepValues:
        w = np.ones((64, 8), np.float32)
        w[0, 0], w[1, 1] = 1 + lr, 1 - lr
        making = Making(label, 1).put("param", "m.weight", "value", w, kind="param")
        return making.call("m.sub.embedding", "torch.nn.functional.embedding", (np.arange(4), w), w[:4].copy()).done

    rows = {
        moved: judged(made("run", 1e-3), made("ref", -1e-3), measure=by_projections, moved=moved)
        for moved in (2e-3, 0.0)
    }
    assert [rows[moved]["fwd/embedding:out0"].judgement for moved in rows] == ["within", "beyond"]
