"""`trueline report`: a file and a line a Run, one JSON document for programs, one sentence for mistakes."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from tests.cli.in_process import trueline
from tests.synthetic_runs import write_run

from trueline.schema.finding import Finding

FINDING = Finding("shard-overlap", "error", "Rank 1 shares samples.", (1,), 10, 39, measured=math.nan)


@pytest.fixture
def run_path(tmp_path: Path) -> Path:
    return write_run(tmp_path / "exp", findings=(FINDING,))


def test_report_writes_the_file_and_says_the_verdict(
    run_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.html"
    code, printed, _ = trueline(monkeypatch, capsys, "report", run_path, "-o", out)

    assert code == 0
    assert printed == f"exp: Fault found: rank 1, since step 10; 1 finding.\nReport: {out}\n"
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_report_shows_the_further_models_of_a_job(
    run_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_run(run_path / "models" / "critic")
    code, printed, _ = trueline(monkeypatch, capsys, "report", run_path, "-o", tmp_path / "r.html")

    assert code == 0
    assert [line.partition(": ")[0] for line in printed.splitlines()] == ["exp", "critic", "Report"]


def test_report_json_is_one_document(
    run_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed, _ = trueline(monkeypatch, capsys, "report", run_path, run_path, "-o", tmp_path / "r.html", "--json")
    document = json.loads(printed, parse_constant=pytest.fail)

    assert code == 0
    assert document["report"] == str(tmp_path / "r.html")
    assert [(run["name"], run["status"]) for run in document["runs"]] == [("exp (1)", "fault"), ("exp (2)", "fault")]
    assert ("shard-overlap", "NaN") in [(each["code"], each["measured"]) for each in document["runs"][0]["findings"]]


def test_report_refuses_to_replace_a_file_and_does_when_told(
    run_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.html"
    out.write_text("mine")
    code, printed, error = trueline(monkeypatch, capsys, "report", run_path, "-o", out)

    assert (code, printed) == (2, "")
    assert error == f"trueline: '{out}' exists already. Pass another file, or overwrite it with --overwrite.\n"
    assert out.read_text() == "mine"
    assert trueline(monkeypatch, capsys, "report", run_path, "-o", out, "--overwrite")[0] == 0


def test_report_on_no_run_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, printed, error = trueline(monkeypatch, capsys, "report", tmp_path / "none", "-o", tmp_path / "r.html")

    assert (code, printed) == (2, "")
    assert error.startswith("trueline: ")
    assert error.count("\n") == 1
