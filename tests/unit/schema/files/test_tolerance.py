"""The file of measured floors: what it reads back, what it expects where, and what it says of a file that is none."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from trueline.comparison.judgement.values.floors import floor_of, kind_key, site_key
from trueline.judge.recorded.step_values import Value
from trueline.schema.errors import InputError
from trueline.schema.files.tolerance import KindFloor, Tolerance
from trueline.schema.site import Site

LINEAR = "fwd/linear/float32"
KIND = KindFloor(count=(3, 3), median=(1e-7, 3e-7), high=(8e-7, 9e-7), largest=(8e-7, 9e-7))


def tolerance(**changed: Any) -> Tolerance:
    given: dict[str, Any] = {
        "runs": ("a", "b", "c"),
        "pairs": 3,
        "how": "tensor",
        "steps": (0, 10),
        "kinds": {LINEAR: KIND},
        "sites": {"0/fwd/up.linear#0:out0": (2e-7, 5e-7), "0/fwd/down.linear#0:out0": (0.0, None)},
    }
    return Tolerance(**{**given, **changed})


def value(name: str = "up.linear", *, step: int = 0, dtype: str = "float32", api: str = "torch.linear") -> Value:
    site = Site(step, 0, 0, "fwd", name, 0, "out0")
    return Value(0, 0, (0,), site, "op", api, "up", frozenset(), dtype, (2,))


def test_a_file_reads_back_as_it_was_saved(tmp_path: Path) -> None:
    whole = tolerance(spread=1.25, notes=("one", "two"))
    losses = tuple((2.5 + run, None) for run in range(len(whole.runs)))
    whole = whole.model_copy(update={"loss_steps": (0, 7), "losses": losses})
    whole.save(tmp_path / "t.json")
    assert Tolerance.load(tmp_path / "t.json") == whole
    assert list(tmp_path.iterdir()) == [tmp_path / "t.json"]
    assert json.loads((tmp_path / "t.json").read_text())["schema"] == 2


def test_a_file_from_before_losses_were_kept_is_read(tmp_path: Path) -> None:
    document = json.loads(tolerance().to_text())
    old = {key: value for key, value in document.items() if key not in ("loss_steps", "losses")}
    (tmp_path / "t.json").write_text(json.dumps({**old, "schema": 1}))
    read = Tolerance.load(tmp_path / "t.json")
    assert read.sites == tolerance().sites
    assert read.losses == ()


@pytest.mark.parametrize("losses", [[[1.0]], [[1.0, 2.0], [1.0, 2.0]]], ids=["other Runs", "other steps"])
def test_losses_of_other_runs_or_steps_are_damage(tmp_path: Path, losses: list[list[float]]) -> None:
    document = json.loads(tolerance().to_text())
    (tmp_path / "t.json").write_text(json.dumps({**document, "loss_steps": [0], "losses": losses}))
    with pytest.raises(InputError, match=r"damaged at the file: .* (losses|have losses)"):
        Tolerance.load(tmp_path / "t.json")


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be written to .*nowhere.*No such file or directory"):
        tolerance().save(tmp_path / "nowhere" / "t.json")


def test_nothing_is_left_beside_a_place_that_could_not_be_taken(tmp_path: Path) -> None:
    (tmp_path / "t.json").mkdir()
    with pytest.raises(InputError, match="cannot be written to"):
        tolerance().save(tmp_path / "t.json")
    assert list(tmp_path.iterdir()) == [tmp_path / "t.json"]


def test_a_site_is_expected_to_differ_by_its_floor_but_by_no_less_than_half_of_its_kind() -> None:
    assert tolerance().expected(LINEAR, "0/fwd/up.linear#0:out0", step=0) == 2e-7
    assert tolerance().expected(LINEAR, "0/fwd/down.linear#0:out0", step=0) == 1e-7
    assert tolerance().expected("fwd/gelu/float32", "0/fwd/down.linear#0:out0", step=0) == 0.0


def test_a_site_that_was_not_calibrated_is_expected_to_differ_as_its_kind() -> None:
    assert tolerance().expected(LINEAR, "0/fwd/new#0:out0", step=10) == 9e-7
    assert tolerance().expected(LINEAR, step=0) == 8e-7
    assert tolerance().expected("fwd/gelu/float32", "0/fwd/new#0:out0") is None


def test_floors_from_statistics_are_no_less_than_those_of_the_kind() -> None:
    assert tolerance(how="statistics").expected(LINEAR, "0/fwd/up.linear#0:out0", step=0) == 8e-7


@pytest.mark.parametrize(("step", "floor"), [(0, 2e-7), (1, 5e-7), (10, 5e-7), (11, 5e-7), (None, 5e-7)])
def test_a_step_is_judged_by_the_first_calibrated_one_from_it_on(step: int | None, floor: float) -> None:
    assert tolerance().expected(LINEAR, "0/fwd/up.linear#0:out0", step=step) == floor


def test_a_step_where_a_site_was_not_measured_is_judged_by_one_where_it_was() -> None:
    sites = {"0/fwd/up.linear#0:out0": (None, 4e-7), "0/fwd/down.linear#0:out0": (6e-7, None)}
    assert tolerance(sites=sites).expected(LINEAR, "0/fwd/up.linear#0:out0", step=0) == 4e-7
    assert tolerance(sites=sites).expected(LINEAR, "0/fwd/down.linear#0:out0", step=10) == 6e-7


def test_a_floor_is_found_by_either_name_without_wrappers() -> None:
    wrapped, other = value("module._orig_mod.up.linear", step=10), value("renamed.linear", step=10)
    assert site_key(wrapped) == "0/fwd/up.linear#0:out0"
    assert floor_of(tolerance(), other, wrapped) == 5e-7
    assert floor_of(tolerance(), wrapped, other) == 5e-7
    assert floor_of(tolerance(), other, other) == 9e-7


def test_a_kind_has_the_coarser_dtype_and_the_op_without_its_path() -> None:
    assert (
        kind_key(value(dtype="bfloat16"), value())
        == kind_key(value(), value(dtype="bfloat16"))
        == ("fwd/linear/bfloat16")
    )
    assert kind_key(value(api="gallery.problems.MLP"), value()) == "fwd/MLP/float32"


def test_floors_from_statistics_say_nothing_about_stored_values() -> None:
    loose = tolerance(how="statistics")
    assert floor_of(loose, value(), value(), how="tensor") is None
    assert floor_of(loose, value(), value(), how="statistics") == 8e-7
    assert floor_of(tolerance(), value(), value(), how="tensor") == 2e-7


@pytest.mark.parametrize("num_runs", [2, 3, 4, 7])
def test_exchangeable_runs_exceed_the_floor_no_more_often_than_is_said(num_runs: int) -> None:
    """Runs are points on a line, drawn alike; the distance of two is how far they are apart."""
    rng, draws = random.Random(2), 4000
    both = one = 0
    for _ in range(draws):
        points = [rng.gauss(0, 1) for _ in range(num_runs)]
        floor = max(abs(a - b) for a, b in itertools.combinations(points, 2))
        new, other = rng.gauss(0, 1), rng.gauss(0, 1)
        both += abs(new - other) > floor
        one += abs(new - points[0]) > floor
    made = tolerance(runs=tuple("abcdefg"[:num_runs]))
    noise = 3 * 0.5 / draws**0.5  # three standard deviations of a fraction of 4,000
    assert both / draws < made.exceeded + noise
    assert one / draws < made.exceeded_by_one + noise


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is damaged"),
        ("[]", "it holds a list, expected an object"),
        ('{"preset": "mix"}', "it has no key 'schema'"),
        ('{"schema": 9}', "has schema 9, and this version of Trueline reads 1 to 2"),
        ('{"schema": 1}', "is damaged at runs: Field required"),
    ],
)
def test_a_file_that_is_no_tolerance_is_refused_in_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(InputError, match=says):
        Tolerance.load(tmp_path / "t.json")


def test_a_path_without_a_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file or directory"):
        Tolerance.load(tmp_path / "t.json")
    with pytest.raises(InputError, match=r"is a directory. Pass a file that `trueline calibrate` wrote"):
        Tolerance.load(tmp_path)


def test_an_edited_file_with_an_impossible_floor_is_refused(tmp_path: Path) -> None:
    text = tolerance().to_text()
    for floor in ("-1.0", "NaN", "1e999", '"much"'):
        (tmp_path / "t.json").write_text(text.replace("2e-07", floor))
        with pytest.raises(InputError, match="is damaged at"):
            Tolerance.load(tmp_path / "t.json")


@pytest.mark.parametrize(
    "changed", [{"steps": (10, 0)}, {"steps": (0, 0)}, {"steps": (0,)}, {"runs": ("a",)}, {"unknown": 1}]
)
def test_what_does_not_fit_together_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        tolerance(**changed)
