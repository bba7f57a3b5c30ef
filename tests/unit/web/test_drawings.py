"""Heat maps, lines and sparklines of a Run: what is drawn, what is left out and said, and in which order."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.synthetic_runs import write_run
from tests.web.served import JudgeHere

from trueline.schema.errors import InputError
from trueline.schema.finding import Finding
from trueline.web.answers import Arrays, as_json
from trueline.web.views.cosines import cosines_of
from trueline.web.views.heat import heat_of
from trueline.web.views.series import series_of
from trueline.web.views.signals import signals_of
from trueline.web.views.sparkline import sparkline_of
from trueline.web.watched_run import WatchedRun

NUM_RANKS, NUM_STEPS = 5, 64
HIGH, NAN_AT, INF_AT = 3, 40, 41
ACCUSED = Finding("worker-loss-outlier", "warning", "Rank 3 is high.", (HIGH,), 20, NUM_STEPS - 1)


def _change(step: int, rank: int, row: dict[str, Any]) -> None:
    row["loss"] = float(rank) + 0.01 * step
    if rank == HIGH and step == 33:
        row["loss"] = 50.0
    if rank == 1 and step == NAN_AT:
        row["loss"] = math.nan
    if rank == 1 and step == INF_AT:
        row["loss"] = math.inf
    if rank == 0 and step == 5:
        del row["loss"]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> WatchedRun:
    path = write_run(
        tmp_path_factory.mktemp("drawn") / "run",
        num_ranks=NUM_RANKS,
        num_steps=NUM_STEPS,
        change=_change,
        findings=(ACCUSED,),
    )
    run = WatchedRun(str(path), "run", None, JudgeHere())  # type: ignore[arg-type]
    run.look()
    run.look()
    return run


def unpacked(arrays: Arrays) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Head and arrays, read from the bytes as the documentation of the form says."""
    data = arrays.packed()
    length = int.from_bytes(data[:4], "little")
    head = json.loads(data[4 : 4 + length])
    at, found = 4 + length, {}
    for each in head["arrays"]:
        assert at % 8 == 0
        count = math.prod(each["shape"])
        found[each["name"]] = np.frombuffer(data, each["dtype"], count, at).reshape(each["shape"])
        at += -(-found[each["name"]].nbytes // 8) * 8
    assert at == len(data)
    return head, found


def test_a_spike_of_one_step_is_in_its_column_however_few_there_are(watched: WatchedRun) -> None:
    head, arrays = unpacked(heat_of(watched, "loss", num_columns=16))

    assert head["steps_per_column"] == 4
    column = int(np.searchsorted(arrays["first"], 33, side="right")) - 1
    assert arrays["value"][HIGH, column] == 50.0
    assert head["marked"] == [1, HIGH]
    assert head["flagged"] == [1, HIGH]  # rank 1 had a loss that is not finite


def test_nan_infinity_and_what_was_not_measured_are_told_apart(watched: WatchedRun) -> None:
    head, arrays = unpacked(heat_of(watched, "loss"))

    assert arrays["flags"][1, [NAN_AT, INF_AT]].tolist() == [1 | 2, 1 | 4]
    assert arrays["flags"][0, 5] == 0
    assert np.isnan(arrays["value"][[0, 1, 1], [5, NAN_AT, INF_AT]]).all()
    assert head["num_not_finite"] == 2
    assert head["largest"] == 50.0


def test_of_a_cosine_the_lowest_is_the_worst(watched: WatchedRun) -> None:
    values_TN, _ = watched.pivot("cosine_others")
    head, arrays = unpacked(heat_of(watched, "cosine_others", num_columns=16))

    assert head["worst"] == "low"
    np.testing.assert_allclose(arrays["value"][:, 0], values_TN[:4].min(axis=0), rtol=1e-6)


def test_rows_by_machine_take_the_worst_rank_and_rows_by_distance_begin_with_the_farthest(watched: WatchedRun) -> None:
    head, arrays = unpacked(heat_of(watched, "loss", rows="host"))
    assert (head["rows"], head["marked"]) == (["node-0"], [0]), "the machine of an accused rank is marked"
    assert arrays["value"][0, 10] == pytest.approx(4.1)
    assert arrays["flags"][0, NAN_AT] & 2

    head, _ = unpacked(heat_of(watched, "loss", rows="worst"))
    assert head["ranks"][:2] == [1, HIGH]  # infinite, then 47 from the median


def test_lines_are_of_pinned_and_accused_ranks_and_the_farthest_and_the_rest_is_counted(watched: WatchedRun) -> None:
    head, arrays = unpacked(series_of(watched, "loss", pinned=[2, 99], max_lines=3))

    assert head["ranks"] == [1, 2, HIGH]
    assert (head["hidden"], head["num_ranks"], head["pinned"]) == (2, NUM_RANKS, [2])
    assert arrays["highest"][33] == 50.0
    assert arrays["highest_rank"][33] == HIGH
    assert arrays["lowest_rank"][10] == 0
    assert arrays["median"][10] == pytest.approx(2.1)


def test_the_json_twin_says_the_same_with_names_for_what_is_not_finite(watched: WatchedRun) -> None:
    document = json.loads(as_json(heat_of(watched, "loss")), parse_constant=pytest.fail)

    assert document["arrays"]["value"][1][NAN_AT] == "NaN"
    assert document["arrays"]["value"][4][10] == pytest.approx(4.1)


def test_a_sparkline_has_the_accused_and_the_band_of_the_others(watched: WatchedRun) -> None:
    line = sparkline_of(watched, "loss", (HIGH,))

    assert line is not None
    assert line.accused[33] == 50.0
    assert line.highest[10] == pytest.approx(4.1)
    assert line.lowest[10] == pytest.approx(0.1)
    assert sparkline_of(watched, "", (HIGH,)) is None
    assert sparkline_of(watched, "loss", (1,)).not_finite == (NAN_AT, INF_AT)  # type: ignore[union-attr]


def test_what_can_be_drawn_is_what_was_measured(watched: WatchedRun) -> None:
    signals = signals_of(watched)

    assert [each.key for each in signals.signals][:3] == ["loss", "grad_norm", "cosine_others"]
    assert "tokens" not in {each.key for each in signals.signals}
    for key in ("nothing", "step", "../loss", "loss/all", "group_grad_norms/nobody", "sketch"):
        with pytest.raises(InputError):
            heat_of(watched, key)


def test_cosines_are_those_of_the_nearest_step_that_has_them(watched: WatchedRun) -> None:
    head, arrays = unpacked(cosines_of(watched, 47))

    assert head["step"] == 40
    assert arrays["cosine"].shape == (NUM_RANKS, NUM_RANKS)
    np.testing.assert_allclose(np.diag(arrays["cosine"]), 1, atol=1e-6)


def test_a_run_without_rows_has_nothing_to_draw_and_no_error(tmp_path: Path) -> None:
    empty = WatchedRun(str(write_run(tmp_path / "empty", num_steps=0)), "empty", None, JudgeHere())  # type: ignore[arg-type]

    assert signals_of(empty).signals == ()
    assert unpacked(heat_of(empty, "loss"))[1]["value"].shape[1] == 0
    assert unpacked(series_of(empty, "loss"))[1]["median"].shape == (0,)
    assert "no cosines" in unpacked(cosines_of(empty, 0))[0]["absent"]
