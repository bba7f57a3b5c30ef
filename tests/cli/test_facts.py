"""`trueline facts` prints a line a fact, and one document with --json."""

import json

import pytest
from tests.synthetic_runs import write_run
from typer.testing import CliRunner

from trueline.cli.main import app


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("facts") / "run", num_ranks=2, num_steps=12)


@pytest.fixture(autouse=True)
def unwrapped(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)


def test_lines_stand_under_their_headings(run):
    result = CliRunner().invoke(app, ["facts", str(run)])
    lines = result.stdout.splitlines()
    assert result.exit_code == 0
    assert lines[:2] == ["Data:", "  24 samples in 12 steps of 2 ranks, all of them different"]
    assert lines[-1].startswith("Not known: the DataLoader (no DataLoader of torch was seen)")


def test_the_document(run):
    document = json.loads(CliRunner().invoke(app, ["facts", str(run), "--json"]).stdout)
    assert document["run"] == str(run)
    assert document["facts"][0]["value"] == {"read": 24, "different": 24, "data_set": None}


def test_no_run_is_one_sentence(tmp_path):
    result = CliRunner().invoke(app, ["facts", str(tmp_path / "none")])
    assert result.exit_code != 0
    assert "none" in str(result.exception)


def test_a_check_says_them_where_it_is_asked_and_always_to_programs(run):
    facts = json.loads(CliRunner().invoke(app, ["facts", str(run), "--json"]).stdout)["facts"]
    lines = CliRunner().invoke(app, ["facts", str(run)]).stdout
    assert json.loads(CliRunner().invoke(app, ["check", str(run), "--json"]).stdout)["facts"] == facts
    assert CliRunner().invoke(app, ["check", str(run), "--facts"]).stdout.endswith(lines)
    assert "24 samples" not in CliRunner().invoke(app, ["check", str(run)]).stdout
