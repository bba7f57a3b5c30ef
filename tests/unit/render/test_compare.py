"""What a comparison is told as: words, the call it blames, and every row in CSV and Excel."""

from __future__ import annotations

import csv
import json
import math
import re
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from tests.made_comparison import (
    FAULT,
    INPUT_DIFFERS,
    made_comparison,
    rounding_comparison,
    row,
    same_comparison,
    untold_comparison,
)
from tests.unit.recorded_steps import make_step

from trueline.comparison.result import ComparedRow, Comparison, Judged, JudgedPass, OneSidedCall, StepSummary
from trueline.render.comparison import compare_xlsx
from trueline.render.comparison.compare_call import RecordedCall, differing_arguments, recorded_call
from trueline.render.comparison.compare_csv import write_csv
from trueline.render.comparison.compare_details import details_text
from trueline.render.comparison.compare_growth import steps_lines
from trueline.render.comparison.compare_rows import COLUMNS, most_relevant
from trueline.render.comparison.compare_story import judged_text, size_text, story_of, times_text
from trueline.render.comparison.compare_xlsx import COLOURS, write_xlsx
from trueline.render.wording import visible
from trueline.schema.columns.records import StackRecord
from trueline.schema.errors import InputError
from trueline.store.reader import Run
from trueline.store.writer import RunWriter

HOSTILE = "</script><img src=x onerror=alert(1)>'\"&{{7*7}}"
CASES = [made_comparison(), same_comparison(), rounding_comparison(), untold_comparison()]
NAMES = ["made", "same", "rounding", "untold"]


def differing(place: int, judgement: str, times: float | None, **given: Any) -> ComparedRow:
    measured = None if times is None else times * 1e-6
    made = row(place, f"0.0/r0/fwd/op{place}#0:out0", judgement, how="statistics", **given)
    return replace(made, measured=measured, expected=1e-6, times=times)


# What is told of the rows.


def test_telling_rows_are_beyond_in_order_then_the_largest_propagated_then_the_rest() -> None:
    rows = [
        differing(0, "equal", None),
        differing(1, "within", 0.2),
        differing(2, "propagated", 3.0),
        differing(3, "beyond", 20.0),
        differing(4, "propagated", 7.0),
        differing(5, "beyond", 90.0),
        differing(6, "not-comparable", None),
        differing(7, "within", 0.7),
    ]

    later = [replace(each, step=1) for each in rows[4:6]]
    told = [(each.row.step, each.row.place) for each in most_relevant([*rows, *later], None, 10)]
    assert told == [(0, 3), (0, 5), (1, 5), (0, 4), (0, 2), (1, 4), (0, 6), (0, 7), (0, 1)]
    assert [each.row.place for each in most_relevant(rows, rows[3], 2)] == [5, 4]


def test_a_value_at_several_sites_is_told_once_and_unmeasured_values_are_not_one() -> None:
    same = [differing(place, "propagated", 4.0) for place in range(3)]
    view = differing(3, "propagated", 4.0, shape=(128, 64))
    other = [differing(place, "propagated", 4.0, shape=(7,)) for place in (4,)]
    unmeasured = [differing(place, "beyond", None) for place in (5, 6)]
    told = most_relevant([*same, view, *other, *unmeasured], None, 10)

    assert sorted((each.row.place, each.also) for each in told) == [(0, 3), (4, 0), (5, 0), (6, 0)]


def test_the_blamed_value_is_told_nowhere_else() -> None:
    rows = [differing(0, "beyond", 9.0), differing(1, "beyond", 9.0), differing(2, "beyond", 8.0)]
    again = replace(rows[0])

    assert [each.row.place for each in most_relevant(rows, again, 10)] == [2]


# The words.


@pytest.mark.parametrize(
    ("comparison", "status"), list(zip(CASES, ["out", "clear", "clear", "unknown"], strict=True)), ids=NAMES
)
def test_status_follows_the_exit_code(comparison: Comparison, status: str) -> None:
    assert story_of(comparison).status == status


def test_the_first_error_leads_and_the_others_are_kept() -> None:
    story = story_of(replace(made_comparison(), findings=(INPUT_DIFFERS, *made_comparison().findings)))

    assert story.headline == f"Different: {INPUT_DIFFERS.claim}"
    assert [finding.code for finding in story.findings] == ["first-divergence"]


def test_nothing_aligned_is_not_called_the_same() -> None:
    empty = Comparison("a", "b", (), (), ())

    assert story_of(empty).headline == "Cannot tell: no values were aligned."
    assert story_of(empty).counts == "No values were aligned."


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"measured": None, "how": ""}, "its size was not measured"),
        ({"measured": None, "how": "fingerprint"}, "its size was not measured; detected by fingerprints"),
        ({"measured": 0.5, "expected": None, "how": ""}, "0.5 relative; what rounding explains is not known"),
        (
            {"measured": 0.5, "expected": 0.0, "times": math.inf, "how": "tensor"},
            "0.5 relative; rounding explains none of it; measured on stored values",
        ),
        (
            {"measured": 0.25, "expected": 0.125, "times": 2.0, "how": "statistics"},
            "0.25 relative; rounding explains 0.125: 2 times; measured on statistics",
        ),
    ],
)
def test_size_says_what_is_known_and_no_more(given: dict[str, Any], words: str) -> None:
    assert size_text(row(0, FAULT, "beyond", **given)) == words


def test_times_keep_the_digits_that_matter() -> None:
    assert [times_text(times) for times in (0.123, 1.25, 38.2, 12345.0)] == [
        "0.123 times",
        "1.2 times",
        "38 times",
        "12,345 times",
    ]


def test_call_names_equal_and_unequal_values_apart() -> None:
    rows = [row(place, f"0.0/r0/fwd/op#0:in{place}") for place in range(6)]
    other_call = row(6, "0.0/r0/fwd/op#1:in0", "beyond")
    other_rank = replace(row(7, "0.0/r1/fwd/op#0:in9", "beyond"), rank=1)
    first = row(8, "0.0/r0/fwd/op#0:out0", "beyond")
    story = story_of(replace(made_comparison(), rows=[*rows, other_call, other_rank, first], first=first))

    assert ("its call", "in0, in1, in2 and 3 more equal; out0 beyond rounding") in story.facts


def test_advice_with_a_command_of_its_own_gets_no_second_one() -> None:
    made = made_comparison()
    own = replace(made.findings[0], next=("Do this first.", story_of(made).next[-1]))

    assert story_of(replace(made, findings=(own,))).next == own.next


def test_command_quotes_what_a_shell_would_take_apart() -> None:
    comparison = replace(made_comparison(), run="my runs/a;b")
    told = story_of(comparison).next[-1]

    assert told.startswith("trueline info 'my runs/a;b' --site 'fwd/layers.1.mlp.act.gelu#0:*'")


@pytest.mark.parametrize(
    ("details", "words"),
    [
        (None, ""),
        (
            {"sum": (1.0, 2.0), "pos_inf": (58, 0), "min": (-1.5, -1.25)},
            "+inf 58, in REF 0; smallest −1.5, in REF −1.25; sum 1, in REF 2",
        ),
        (
            {
                "differ_frac": 0.5,
                "nonfinite": 3,
                "max_abs": 0.25,
                "max_abs_at": [4, 0],
                "max_abs_values": (1.0, 0.75),
                "cosine": 0.9999999,
                "beyond_frac": 0.125,
                "ulp_p50": 1.0,
                "ulp_p90": 2.0,
                "ulp_max": 4096.0,
                "where": "index 4 of 32 along dim 0",
            },
            "3 elements are NaN or infinite in one run only; at most 0.25 at [4, 0] (1, in REF 0.75); 50 % of elements "
            "differ, 12 % by more than a rounding; by 1 ULP in the median, 4,096 at most; cosine 1 − 1e−7",
        ),
        ({"differ_frac": 0.0, "nonfinite": 0}, "0 % of elements differ"),
        ({"unknown": object(), "min": "text"}, ""),
    ],
)
def test_details_are_told_with_what_matters_first(details: dict[str, Any] | None, words: str) -> None:
    assert details_text(details) == words


def test_place_in_the_tensor_is_a_fact_of_its_own() -> None:
    first = replace(made_comparison().first, details={"where": "index 4 of 32 along dim 0"})
    facts = dict(story_of(replace(made_comparison(), first=first)).facts)

    assert facts["place"] == "index 4 of 32 along dim 0"
    assert "numbers" not in facts


# Steps.


def step(number: int, *, rank: int | None = 0, times: float | None = None, loss: float | None = None, **counts: int):
    return StepSummary(number, rank, counts, None, times, loss)


def test_steps_say_where_it_begins_and_how_it_grows() -> None:
    lines = steps_lines(
        [
            step(0, equal=5, loss=0.0),
            step(1, within=2, times=0.5, loss=1e-6),
            step(2, beyond=1, times=900.0, loss=0.5),
            step(9, propagated=4, times=300.0, loss=0.031),
        ]
    )

    assert lines == [
        "4 steps (0–2, 9) on rank 0: the first difference is at step 1, the first beyond rounding at step 2.",
        "Largest difference, in times of what rounding explains: 0.5 at step 1, 300 at step 9; most at step 2, 900.",
        "The recorded loss of rank 0 differs from step 1 on: 1e−4 % at step 1, 3.1 % at step 9; most at step 2, 50 %.",
    ]


def test_values_that_rounding_does_not_touch_have_no_size() -> None:
    lines = steps_lines([step(0, beyond=1, times=math.inf), step(1, within=2, times=math.inf)])
    assert len(lines) == 1


def test_ranks_of_a_step_are_told_and_merged_ones_too() -> None:
    several = steps_lines([step(4, rank=0, equal=3), step(4, rank=1, within=1)])
    merged = steps_lines([step(4, rank=None, equal=3, loss=0.0)])

    assert several == ["Step 4 on ranks 0 and 1: the first difference is at step 4 on rank 1, none is beyond rounding."]
    alone = steps_lines([step(4, rank=0, beyond=3)])
    assert alone == ["Step 4 on rank 0: the first difference is at step 4, the first beyond rounding as well."]
    assert merged == [
        "Step 4 with ranks merged: no value differs.",
        "The recorded loss of all ranks merged is the same at every step that has one.",
    ]


def test_a_loss_of_several_ranks_is_that_of_the_worst() -> None:
    lines = steps_lines([step(0, rank=0, loss=0.0, within=1), step(0, rank=1, loss=0.2, within=1)])
    assert lines[-1] == "The recorded loss of the rank where it differs most differs by 20 % at step 0."


def test_what_was_recorded_after_the_last_update_is_no_step() -> None:
    lines = steps_lines([step(0, equal=1), step(1, equal=1), replace(step(2, equal=1), finished=False)])
    assert lines[0].startswith("2 steps (0, 1), and what was recorded after the last update (as step 2), on rank 0")


JUDGED = Judged(
    (
        JudgedPass("forward", 300, 290, {"it was not measured": 10}, 3, 4, 300, 300),
        JudgedPass("backward", 300, 150, {}, 0, 1, 300, 300),
    ),
    (
        JudgedPass("forward", 100, 98, {"it was not measured": 2}, 1, 2, 100, 100),
        JudgedPass("backward", 100, 90, {}, 0, 0, 100, 100),
    ),
    first_step=5,
    num_steps=3,
)


def test_how_much_was_judged_is_said_of_the_first_step_and_of_all() -> None:
    assert judged_text(JUDGED) == (
        "188 of 200 values at step 5, forward and backward; 440 of 600 in all 3 steps, as updates move parameters "
        "apart; 8 calls in one run only"
    )
    alone = replace(JUDGED, passes=JUDGED.at_first_step, num_steps=1)
    assert judged_text(alone) == "188 of 200 values at step 5, forward and backward; 3 calls in one run only"
    assert judged_text(Judged()) == ""


def test_rounding_explains_only_what_could_be_judged() -> None:
    assert story_of(rounding_comparison()).headline.startswith("Rounding explains all of it: ")
    told = story_of(replace(rounding_comparison(), judged=JUDGED))
    assert told.headline.startswith("Rounding explains all that could be judged: ")


def test_a_value_that_only_one_run_has_has_one_dtype() -> None:
    alone = replace(made_comparison().first, ref_site=None, ref_dtype="")
    assert dict(story_of(replace(made_comparison(), first=alone)).facts)["what"].endswith(", float32 4x32x256")


def test_calls_of_one_run_are_named_with_their_lines() -> None:
    calls = (
        OneSidedCall(False, "0.0/r0/fwd/m.amax#0:in0", "m.amax", "model.py:41 forward", 3),
        OneSidedCall(True, "0.0/r0/fwd/m.mean#0:in0", "m.mean", "", 1),
    )
    assert story_of(replace(made_comparison(), one_sided=calls)).one_sided == (
        "only in RUN: m.amax at model.py:41 forward, 3 times",
        "only in REF: m.mean",
    )


def test_calls_of_repeated_modules_are_named_once() -> None:
    calls = tuple(
        OneSidedCall(place == 2, f"0.0/r0/fwd/h.{place}.amax#0:in0", f"h.{place}.amax", "model.py:41 forward", 3)
        for place in range(3)
    )
    assert story_of(replace(made_comparison(), one_sided=calls)).one_sided == (
        "only in RUN: h.*.amax at model.py:41 forward, 6 times in 2 modules",
        "only in REF: h.2.amax at model.py:41 forward, 3 times",
    )


def test_too_little_that_was_judged_is_no_verdict() -> None:
    few = replace(JUDGED, at_first_step=(JudgedPass("backward", 100, 30, {"it was not measured": 70}, 0, 0, 100, 100),))
    told = replace(rounding_comparison(), judged=few)
    assert told.exit_code == 3
    assert story_of(told).status == "unknown"
    assert story_of(told).headline == (
        "Cannot tell: the backward pass could not be judged. At step 5, 30 of 100 values could; 70 could not: it was "
        "not measured."
    )
    assert replace(made_comparison(), judged=few).exit_code == 1
    pieces = replace(few, at_first_step=(JudgedPass("backward", 100, 30, {"only in RUN": 70}, 23, 0, 100, 40),))
    assert pieces.lacking == ""  # one call of the reference is several of the run


def test_a_loss_that_is_no_number_is_the_largest_difference() -> None:
    lines = steps_lines([step(0, loss=0.1, within=1), step(1, loss=math.nan, beyond=1), step(2, loss=0.2, beyond=1)])

    assert lines[-1] == "The recorded loss of rank 0 differs: 10 % at step 0, 20 % at step 2; most at step 1, inf %."


# The call that is blamed.


@pytest.fixture
def recorded(tmp_path: Path) -> Run:
    """A Run of one step with a call ``norm`` of two values, its arguments and its stack."""
    records = make_step(3, num_rows=6)
    columns = {
        **records.columns,
        "name": ["norm", "norm", "norm", "norm", "other", "norm"],
        "call": [0, 0, 1, 1, 0, 0],
        "micro": [0, 0, 0, 0, 0, 1],
        "phase": ["fwd"] * 6,
        "slot": ["in0", "out0", "in0", "out0", "out0", "out0"],
        "module": ["layers.1"] * 6,
        "args": [
            '{"args":[{"in":"in0"},[64]],"kwargs":{"weight":{"in":"weight"},"eps":1e-06}}',
            None,
            "not json",
            None,
            None,
            None,
        ],
        "stack": [0, 0, 1, 1, None, 9],
    }
    writer = RunWriter(tmp_path / "run", rank=0)
    inner = ("/venv/site-packages/transformers/norm.py:12 forward", "/home/me/train.py:90 main")
    writer.write(StackRecord(0, inner))
    writer.write(StackRecord(1, ("/home/me/model.py:7 forward", "/home/me/train.py:90 main")))
    writer.write(replace(records, columns=columns))
    writer.close()
    return Run(tmp_path / "run")


def test_call_is_found_with_its_arguments_module_and_line(recorded: Run) -> None:
    call = recorded_call(recorded, "3.0/r0/fwd/norm#0:out0")

    assert call is not None
    assert call.module == "layers.1"
    assert call.arguments == {"0": "in0", "1": "[64]", "weight": "weight", "eps": "1e-06"}
    assert call.code == ("/venv/site-packages/transformers/norm.py:12 forward, called from /home/me/train.py:90 main")
    own = recorded_call(recorded, "3.0/r0/fwd/norm#1:out0")
    assert own is not None
    assert own.code == "/home/me/model.py:7 forward"
    assert own.arguments == {}


@pytest.mark.parametrize("site", [None, "no site", "3.0/r0/fwd/none#0:out0", "9.0/r0/fwd/norm#0:out0"])
def test_a_call_that_was_not_recorded_is_none(recorded: Run, site: str | None) -> None:
    assert recorded_call(recorded, site) is None
    assert recorded_call(None, "3.0/r0/fwd/norm#0:out0") is None


def test_a_call_without_arguments_or_stack_is_known_all_the_same(recorded: Run) -> None:
    assert recorded_call(recorded, "3.0/r0/fwd/other#0:out0") == RecordedCall("layers.1", {}, ())
    assert recorded_call(recorded, "3.1/r0/fwd/norm#0:out0") == RecordedCall("layers.1", {}, ())


def test_arguments_that_differ_are_named_with_both_values() -> None:
    call = RecordedCall("mlp", {"0": "in0", "eps": "1e-06", "scale": "2"}, ("model.py:7 forward",))
    ref = RecordedCall("mlp", {"0": "in0", "eps": "0.01"}, ("other.py:9 forward",))
    facts = dict(story_of(made_comparison(), call, ref).facts)

    assert differing_arguments(call, ref) == [("eps", "1e-06", "0.01"), ("scale", "2", "–")]
    assert facts["arguments"] == (
        "gelu(in0, eps=1e-06, scale=2); differs: eps is 1e-06, in REF 0.01 and scale is 2, in REF –"
    )
    assert dict(story_of(made_comparison(), call, call).facts)["arguments"] == (
        "the same: gelu(in0, eps=1e-06, scale=2)"
    )
    assert facts["code"] == "model.py:7 forward"
    assert facts["in REF"] == "other.py:9 forward"


# Files.


def odd_comparison() -> Comparison:
    """Values that a file format may trip over."""
    made = made_comparison()
    odd = replace(
        made.rows[0],
        times=math.inf,
        measured=math.nan,
        api="=1+1",
        note='a, "b"\nnext \ud800',
        details={"max_abs": 0.5, "worst": math.inf, "rows": np.arange(3)},
        shape=(),
    )
    return replace(made, rows=[*made.rows, odd])


def test_csv_has_every_row_in_full_precision(tmp_path: Path) -> None:
    comparison = odd_comparison()
    write_csv(tmp_path / "rows.csv", comparison.rows)
    with (tmp_path / "rows.csv").open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))

    assert len(read) == len(comparison.rows)
    for line, judged in zip(read, comparison.rows, strict=True):
        assert (line["site"], line["judgement"], int(line["step"])) == (judged.site, judged.judgement, judged.step)
        for name in ("times", "measured", "expected"):
            value = getattr(judged, name)
            assert line[name] == "" if value is None else float(line[name]) == value or math.isnan(value)
    assert read[-1]["note"] == 'a, "b"\nnext \ufffd'
    assert read[-1]["times"] == "inf"
    assert read[-1]["shape"] == "scalar"
    assert json.loads(read[-1]["details"], parse_constant=pytest.fail) == {
        "max_abs": 0.5,
        "worst": "Infinity",
        "rows": [0, 1, 2],
    }
    assert set(read[0]) == {column.name for column in COLUMNS}


def test_csv_is_what_the_standard_library_writes(tmp_path: Path) -> None:
    rows = [
        *odd_comparison().rows,
        *(replace(odd_comparison().rows[-1], note=note) for note in ("", '"', ",", "a\nb", "a\rb", " a b ", "a;b'c")),
        *(replace(odd_comparison().rows[0], times=times) for times in (0.0, -0.0, 1.0, 1e16, 5e-324, math.nan)),
    ]
    write_csv(tmp_path / "rows.csv", rows)

    with (tmp_path / "other.csv").open("w", newline="", encoding="utf-8", errors="replace") as file:
        writer = csv.writer(file)
        writer.writerow([column.name for column in COLUMNS])
        cells = [[visible(column.cell(row)) for column in COLUMNS] for row in rows]
        writer.writerows([f"'{cell}" if cell == "=1+1" else cell for cell in row] for row in cells)
    assert (tmp_path / "rows.csv").read_bytes() == (tmp_path / "other.csv").read_bytes()


class Sheet:
    """One sheet of a workbook, read from its XML without the library that wrote it."""

    _M = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"

    def __init__(self, book: zipfile.ZipFile, number: int) -> None:
        self.root = ElementTree.fromstring(book.read(f"xl/worksheets/sheet{number}.xml"))
        shared = self.shared(book)
        self.cells: dict[str, str] = {}
        self.styles: dict[str, int] = {}
        for cell in self.root.iter(f"{self._M}c"):
            text = "".join(each.text or "" for each in cell.iter(f"{self._M}t"))
            value = cell.find(f"{self._M}v")
            if value is not None:
                text = shared[int(value.text)] if cell.get("t") == "s" else value.text
            self.cells[cell.get("r")] = text
            self.styles[cell.get("r")] = int(cell.get("s", "0"))
        self.formulas = list(self.root.iter(f"{self._M}f"))

    def shared(self, book: zipfile.ZipFile) -> list[str]:
        if "xl/sharedStrings.xml" not in book.namelist():
            return []
        root = ElementTree.fromstring(book.read("xl/sharedStrings.xml"))
        return ["".join(each.text or "" for each in entry.iter(f"{self._M}t")) for entry in root]

    def column(self, name: str) -> dict[int, str]:
        letters = next(
            re.match("[A-Z]+", at)[0] for at, text in self.cells.items() if at.endswith("1") and text == name
        )
        return {
            int(at[len(letters) :]): text
            for at, text in self.cells.items()
            if re.fullmatch(rf"{letters}\d+", at) and at != f"{letters}1"
        }

    def has(self, tag: str) -> dict[str, str] | None:
        found = self.root.find(f".//{self._M}{tag}")
        return None if found is None else dict(found.attrib)


def ground_of(book: zipfile.ZipFile, style: int) -> str:
    root = ElementTree.fromstring(book.read("xl/styles.xml"))
    fills = root.find(f"{Sheet._M}fills")
    formats = root.find(f"{Sheet._M}cellXfs")
    colour = fills[int(formats[style].get("fillId"))].find(f".//{Sheet._M}fgColor")
    return "" if colour is None else colour.get("rgb")


def test_workbook_has_a_summary_and_every_row_filtered_and_coloured(tmp_path: Path) -> None:
    comparison = odd_comparison()
    write_xlsx(tmp_path / "rows.xlsx", comparison, story_of(comparison))
    with zipfile.ZipFile(tmp_path / "rows.xlsx") as book:
        summary, rows = Sheet(book, 1), Sheet(book, 2)
        judged = rows.column("judgement")
        letter = next(at[0] for at, text in rows.cells.items() if text == "judgement" and at.endswith("1"))
        grounds = {text: ground_of(book, rows.styles[f"{letter}{line}"]) for line, text in judged.items()}

    assert summary.cells["B1"] == story_of(comparison).headline
    assert {"runs/npu", "runs/gpu", "26"} <= set(summary.cells.values())
    assert {column.meaning for column in COLUMNS} <= set(summary.cells.values())
    assert [judged[line] for line in range(2, 2 + len(comparison.rows))] == [row.judgement for row in comparison.rows]
    assert grounds == {name: "FF" + COLOURS[name][0][1:] for name in grounds}
    assert len(set(grounds.values())) == len(grounds) >= 4
    assert rows.has("autoFilter") == {"ref": f"A1:R{1 + len(comparison.rows)}"}
    assert rows.has("pane")["ySplit"] == "1"
    assert rows.has("pane")["state"] == "frozen"
    last = 1 + len(comparison.rows)
    assert rows.column("times")[last] == "inf"
    assert rows.column("api")[last] == "=1+1"
    assert rows.formulas == []
    times = {line: float(text) for line, text in rows.column("times").items() if text != "inf"}
    assert times == {
        line: judged.times
        for line, judged in enumerate(comparison.rows, start=2)
        if judged.times is not None and math.isfinite(judged.times)
    }


def test_rows_beyond_what_a_sheet_takes_go_to_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare_xlsx, "MAX_SHEET_ROWS", 50)
    comparison = made_comparison()
    write_xlsx(tmp_path / "rows.xlsx", comparison, story_of(comparison))
    with zipfile.ZipFile(tmp_path / "rows.xlsx") as book:
        sites = [site for number in (2, 3, 4) for site in Sheet(book, number).column("site").values()]

    assert sites == [row.site for row in comparison.rows]


def luminance(colour: list[int]) -> float:
    """Relative luminance of an sRGB colour (0 to 255 each), as WCAG 2.2 defines it."""
    parts = [part / 255 for part in colour]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_of_judgements_can_be_read() -> None:
    for ground, ink in COLOURS.values():
        light, dark = (luminance([int(text[at : at + 2], 16) for at in (1, 3, 5)]) for text in (ground, ink))
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_a_file_that_cannot_be_written_leaves_the_old_one_alone(tmp_path: Path) -> None:
    old = tmp_path / "rows.csv"
    old.write_text("mine")

    class Broken(list):
        def __iter__(self):
            yield from ()
            raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"CSV file cannot be written .*: No space left on device"):
        write_csv(old, Broken([1]))
    assert old.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["rows.csv"]
