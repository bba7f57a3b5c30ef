"""`trueline compare`: one screen and an exit code, one JSON document, files, and one sentence for mistakes."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from rich.console import Console
from tests.cli import in_process
from tests.made_comparison import (
    FAULT,
    FIRST_DIVERGENCE,
    INPUT_DIFFERS,
    made_comparison,
    rounding_comparison,
    row,
    same_comparison,
    untold_comparison,
)
from tests.synthetic_runs import write_run
from torch import nn

import trueline as trueline_package
from trueline.cli.compare_screen import MAX_LINES, MAX_WIDTH, print_screen
from trueline.comparison.result import Comparison, OneSidedCall
from trueline.render.comparison.compare_rows import COLUMNS
from trueline.render.comparison.compare_story import story_of
from trueline.schema.finding import Finding
from trueline.schema.site import SITE_FORM


class Small(nn.Module):
    """Two layers; ``approximate`` is the argument that a fault changes."""

    def __init__(self, approximate: str) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 32), nn.Linear(32, 8)
        self.approximate = approximate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(nn.functional.gelu(self.up(x), approximate=self.approximate))


def record(path: Path, approximate: str = "none") -> Path:
    """A Run of two recorded steps with call stacks."""
    torch.manual_seed(3)
    model = Small(approximate)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline_package.watch(model, optimizer, out=path, plan={"preset": "mix", "steps": [0, 2], "stacks": True})
    for _ in range(2):
        batch = torch.randn(4, 8)
        with watch.step(batch):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    watch.close()
    return path


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Runs of the same seed: ``good``, ``again``, and ``tanh`` with another argument of one call."""
    folder = tmp_path_factory.mktemp("recorded")
    return {
        "good": record(folder / "good"),
        "again": record(folder / "again"),
        "tanh": record(folder / "tanh", "tanh"),
    }


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    return write_run(tmp_path / "a"), write_run(tmp_path / "b")


def trueline(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    *words: str | Path,
    result: Comparison | None = None,
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of ``trueline compare`` where comparing gives ``result``."""
    if result is not None:
        asked: dict[str, Any] = {}
        judge = ModuleType("trueline.comparison.compare")
        judge.compare = lambda run, ref, **given: asked.update(given) or result
        judge.asked = asked
        monkeypatch.setitem(sys.modules, "trueline.comparison.compare", judge)
    return in_process.trueline(monkeypatch, capsys, "compare", *words)


def screen(
    comparison: Comparison, *, width: int = 100, every_row: bool = False, terminal: bool = True, **given: Any
) -> list[str]:
    output = io.StringIO()
    console = Console(file=output, width=width, color_system=None, force_terminal=terminal)
    print_screen(console, comparison, story_of(comparison), every_row=every_row, **given)
    return output.getvalue().rstrip("\n").split("\n")


def test_a_file_has_calls_of_one_run_by_module_where_they_are_many() -> None:
    names = [f"h.{layer}.{part}.op_{kind}" for kind in "abcdefghijklmn" for part in ("attn", "mlp") for layer in (0, 1)]
    calls = tuple(OneSidedCall(False, f"0.0/r0/fwd/{name}#0:in0", name, "", 2) for name in [*names, "amax"])

    def of_calls(num: int) -> list[str]:
        result = replace(made_comparison(), one_sided=calls[-num:])
        return [line for line in screen(result, terminal=False) if line.startswith(("only in", "and "))]

    first = ("attn.op_a", "mlp.op_a", "attn.op_b", "mlp.op_b")
    assert of_calls(57) == [
        *(f"only in RUN: h.*.{name}, 4 times in 2 modules" for name in first),
        "and 25 more calls in one run only: --json has them",
        "only in RUN: 56 calls in h.*.attn, 56 calls in h.*.mlp, 2 calls in the model",
    ]
    assert len([line for line in of_calls(47) if line.startswith("only in")]) == len(of_calls(47)) == 24


@pytest.mark.parametrize(
    ("result", "code", "verdict"),
    [
        (made_comparison(), 1, "Different: At step 1, torch.nn.functional.gelu in layers.1.mlp.act turns equal"),
        (same_comparison(), 0, "The same: all 54 values that were compared are equal, bit for bit"),
        (rounding_comparison(), 0, "Rounding explains all of it: 27 of 54 values differ, none by more than"),
        (untold_comparison(), 3, "Cannot tell: the one value that was aligned could not be compared."),
    ],
)
def test_verdict_is_the_first_line_and_the_exit_code(
    result: Comparison,
    code: int,
    verdict: str,
    runs: tuple[Path, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    left, printed, error = trueline(monkeypatch, capsys, *runs, result=result)

    assert left == code
    assert printed.startswith(verdict)
    assert error == ""


def test_screen_says_what_where_how_far_and_what_next() -> None:
    lines = screen(made_comparison())

    assert lines[lines.index(f"first       {FAULT}") + 1].strip() == SITE_FORM
    assert "difference  3.8e-4 relative; rounding explains 1e-5: 38 times; measured on statistics" in lines
    assert "its call    in0 equal; out0 beyond rounding" in lines
    assert "next        Compare the arguments and the kernel of this call." in lines
    command = "trueline info runs/npu --site 'fwd/layers.1.mlp.act.gelu#0:*' --step 1 --rank 0 --stacks"
    assert f"next        {command}" in lines
    assert "109 values: 75 equal, 6 within rounding, 1 beyond rounding, 26 propagated, 1 not comparable." in lines
    assert "The recorded loss of rank 0 differs by 1.2 % at step 1." in lines
    assert "Without a twin, 1 value: only in RUN: REF has no dropout" in lines
    assert sum(line.startswith("propagated") for line in lines) == 12
    assert not any(line.startswith("equal") for line in lines)


def wordy_comparison() -> Comparison:
    """More of everything than a screen holds."""
    made = made_comparison()
    claims = [
        Finding("weight-differs", "error", f"Parameter number {place} differs. " + "It is " * 60) for place in range(20)
    ]
    return replace(
        made,
        findings=(replace(FIRST_DIVERGENCE, claim="Something " * 80, next=("Look " * 60, "Think " * 60)), *claims),
        first=replace(made.first, where="rows " * 100, note="because " * 100),
        missing={f"reason {place} " + "why " * 30: place for place in range(1, 40)},
        notes=tuple(f"note {place} " + "more " * 40 for place in range(30)),
    )


@pytest.mark.parametrize("width", [100, 200, 60])
@pytest.mark.parametrize("comparison", [made_comparison(), wordy_comparison()], ids=["made", "wordy"])
def test_screen_is_at_most_forty_lines_of_a_hundred_columns(comparison: Comparison, width: int) -> None:
    lines = screen(comparison, width=width, written=["rows.csv", "rows.xlsx"])

    assert len(lines) <= MAX_LINES == 40
    assert max(map(len, lines)) <= min(width, MAX_WIDTH) <= 100
    assert any(line.startswith("propagated") for line in lines)
    assert lines[-1] == "Written: rows.xlsx"


def test_screen_shows_what_was_cut() -> None:
    assert any(line.endswith(" …") for line in screen(wordy_comparison()))
    assert not any(line.endswith(" …") for line in screen(made_comparison()))


def test_all_prints_every_row_whole() -> None:
    long_name = ".".join(["a_rather_long_module_name"] * 8)
    comparison = replace(same_comparison(), rows=[row(0, f"0.0/r0/fwd/{long_name}#0:out0"), *same_comparison().rows])
    lines = screen(comparison, every_row=True)

    for each in comparison.rows:
        assert sum(line.endswith(f"  {each.site}") for line in lines) == 1


def test_all_is_asked_for_with_an_option(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, printed, _ = trueline(monkeypatch, capsys, *runs, "--all", result=same_comparison())

    assert [line for line in printed.splitlines() if line.startswith("equal ")] != []
    assert len(printed.splitlines()) > len(same_comparison().rows)


def test_json_is_one_document_with_every_row(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = made_comparison()
    odd = replace(made, rows=[*made.rows, replace(made.rows[0], times=math.inf, measured=math.nan)])
    code, printed, _ = trueline(monkeypatch, capsys, *runs, "--json", result=odd)
    document = json.loads(printed, parse_constant=pytest.fail)

    assert code == 1
    assert document["first"]["site"] == FAULT
    assert document["counts"]["propagated"] == 26
    assert len(document["rows"]) == len(odd.rows)
    assert (document["rows"][-1]["times"], document["rows"][-1]["measured"]) == ("Infinity", "NaN")
    assert document["verdict"].startswith("Different: ")
    assert document["findings"][0]["code"] == "first-divergence"


def test_files_are_written_and_named(
    runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {kind: tmp_path / f"out.{kind}" for kind in ("csv", "xlsx", "html")}
    options = [word for kind, path in files.items() for word in (f"--{kind}", path)]
    code, printed, _ = trueline(monkeypatch, capsys, *runs, *options, result=made_comparison())

    assert code == 1
    assert [line for line in printed.splitlines() if line.startswith("Written: ")] == [
        f"Written: {path}" for path in files.values()
    ]
    with files["csv"].open(newline="", encoding="utf-8") as file:
        read = list(csv.reader(file))
    assert read[0] == [column.name for column in COLUMNS]
    assert len(read) == 1 + len(made_comparison().rows)
    assert files["xlsx"].read_bytes().startswith(b"PK")
    assert files["html"].read_text(encoding="utf-8").lstrip().startswith("<!doctype html>")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "out.csv", "out.html", "out.xlsx"]


def test_nothing_is_overwritten_unless_told(
    runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "rows.csv"
    out.write_text("mine")
    code, printed, error = trueline(monkeypatch, capsys, *runs, "--csv", out, result=made_comparison())

    assert (code, printed) == (2, "")
    assert error == f"trueline: '{out}' exists already. Pass another file, or overwrite it with --overwrite.\n"
    assert out.read_text() == "mine"
    assert trueline(monkeypatch, capsys, *runs, "--csv", out, "--overwrite", result=made_comparison())[0] == 1
    assert out.read_text().startswith("step,rank,")


def test_files_are_refused_before_anything_is_compared(
    runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = ModuleType("trueline.comparison.compare")
    judge.compare = lambda *_, **__: pytest.fail("it compared")
    monkeypatch.setitem(sys.modules, "trueline.comparison.compare", judge)

    same = ("--csv", tmp_path / "x", "--html", tmp_path / "x")
    for options, said in (
        (("--csv", tmp_path), "is a directory. Pass a file, as in rows.csv."),
        (("--html", tmp_path / "none" / "page.html"), "is no directory. Create it first."),
        (("--xlsx", os.devnull, "--overwrite"), "that is no file. Pass a file, as in rows.xlsx."),
        (same, "name one file twice"),
    ):
        code, printed, error = trueline(monkeypatch, capsys, *runs, *options)
        assert (code, printed, error.count("\n")) == (2, "", 1)
        assert said in error
    monkeypatch.setattr("trueline.render.comparison.compare_xlsx.find_spec", lambda name: None)
    assert trueline(monkeypatch, capsys, *runs, "--xlsx", tmp_path / "x.xlsx")[0] == 2


def test_workbook_without_xlsxwriter_is_one_sentence(
    runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("trueline.render.comparison.compare_xlsx.find_spec", lambda name: None)
    code, printed, error = trueline(monkeypatch, capsys, *runs, "--xlsx", tmp_path / "x.xlsx", result=made_comparison())

    assert (code, printed) == (2, "")
    assert error == (
        "trueline: A workbook needs XlsxWriter, which is not installed. Install it with pip install 'trueline[xlsx]', "
        "or take --csv.\n"
    )


def test_step_and_rank_are_asked_of_the_judge(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trueline(monkeypatch, capsys, *runs, "--step", "3", "--step", "5", "--rank", "1", result=same_comparison())
    asked = sys.modules["trueline.comparison.compare"].asked

    assert (asked["steps"], asked["ranks"]) == ([3, 5], [1])
    trueline(monkeypatch, capsys, *runs, result=same_comparison())
    asked = sys.modules["trueline.comparison.compare"].asked
    assert {name for name in asked if name != "progress"} == {"max_bytes"}


def test_memory_is_given_to_the_judge_in_bytes(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trueline(monkeypatch, capsys, *runs, "--memory", "3", result=same_comparison())
    assert sys.modules["trueline.comparison.compare"].asked["max_bytes"] == 3 * 2**20
    code, _, error = trueline(monkeypatch, capsys, *runs, "--memory", "0", result=same_comparison())
    assert code == 2
    assert "--memory" in error


def test_a_path_that_is_no_run_is_one_sentence(
    runs: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed, error = trueline(monkeypatch, capsys, runs[0], tmp_path / "none", result=same_comparison())

    assert (code, printed, error.count("\n")) == (2, "", 1)
    assert str(tmp_path / "none") in error


def test_a_warning_alone_is_different_and_its_claim_leads() -> None:
    comparison = replace(
        same_comparison(), findings=(Finding("site-missing", "warning", "3 values have no twin."), INPUT_DIFFERS)
    )
    lines = screen(comparison)

    assert comparison.exit_code == 1
    assert lines[0] == f"Different: {INPUT_DIFFERS.claim}"
    assert "site-missing  3 values have no twin." in lines


def test_control_characters_of_a_run_do_not_reach_the_terminal() -> None:
    hostile = row(0, "0.0/r0/fwd/a\x1b[2Jb#0:out0", "beyond", note="\x07bell")
    comparison = replace(same_comparison(), rows=[hostile], first=hostile, notes=("\u202ereversed",))

    printed = "\n".join([*screen(comparison), *screen(comparison, every_row=True)])
    assert "\x1b" not in printed
    assert "\x07" not in printed
    assert "\u202e" not in printed


def test_recorded_runs_are_compared_from_end_to_end(
    recorded: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [word for kind in ("csv", "xlsx", "html") for word in (f"--{kind}", tmp_path / f"out.{kind}")]
    code, printed, error = trueline(monkeypatch, capsys, recorded["tanh"], recorded["good"], *files)
    lines = printed.splitlines()

    assert (code, error) == (1, "")
    assert "…" not in printed  # this is no terminal: nothing is cut
    assert "first       0.0/r0/fwd/Small.gelu#0:out0" in lines
    assert any(line.startswith("code        ") and "test_compare.py:" in line for line in lines)
    assert 'arguments   gelu(in0, approximate="tanh"); differs: approximate is "tanh", in REF "none"' in lines
    assert "Small.gelu#0:out0" in (tmp_path / "out.html").read_text(encoding="utf-8")
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as file:
        first = next(line for line in csv.DictReader(file) if line["judgement"] == "beyond")
    assert first["site"] == "0.0/r0/fwd/Small.gelu#0:out0"
    assert float(first["times"]) > 1000


def test_recorded_runs_of_one_seed_are_the_same(
    recorded: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed, _ = trueline(monkeypatch, capsys, recorded["again"], recorded["good"])

    assert code == 0
    assert printed.startswith("The same: all ")
    assert trueline_package.compare(recorded["again"], str(recorded["good"])).exit_code == 0
    code, printed, _ = trueline(monkeypatch, capsys, recorded["again"], recorded["good"], "--json", "--step", "1")
    assert {row["step"] for row in json.loads(printed)["rows"]} == {1}


def test_a_run_without_recorded_steps_cannot_be_compared(
    runs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed, error = trueline(monkeypatch, capsys, *runs)

    assert (code, printed, error.count("\n")) == (3, "", 1)


def test_a_tolerance_that_is_none_is_one_sentence(
    recorded: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = tmp_path / "floor.json"
    wrong.write_text("{}")
    for path in (wrong, tmp_path / "none.json"):
        words = (recorded["again"], recorded["good"], "--tolerance", path)
        code, printed, error = trueline(monkeypatch, capsys, *words)

        assert (code, printed, error.count("\n")) == (2, "", 1)
        assert str(path) in error


def test_a_measured_tolerance_is_made_and_taken_in_python(recorded: dict[str, Path], tmp_path: Path) -> None:
    floor = trueline_package.calibrate([recorded["again"], recorded["good"]])
    floor.save(tmp_path / "floor.json")
    compared = trueline_package.compare(recorded["tanh"], recorded["good"], tolerance=tmp_path / "floor.json")

    assert compared.first is not None
    assert compared.first.site == "0.0/r0/fwd/Small.gelu#0:out0"
    assert trueline_package.compare(recorded["tanh"], recorded["good"], tolerance=floor).exit_code == 1


def test_a_map_is_applied_and_one_that_fits_nothing_is_one_sentence(
    recorded: dict[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = (recorded["again"], recorded["good"], "--map")
    assert trueline(monkeypatch, capsys, *words, "up = lift")[0] == 0
    code, printed, error = trueline(monkeypatch, capsys, *words, "uppp = lift")

    assert (code, printed, error.count("\n")) == (2, "", 1)
    assert "'uppp'" in error
    assert "Did you mean 'up'?" in error
