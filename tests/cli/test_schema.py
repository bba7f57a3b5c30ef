"""`trueline schema`: what is printed and read keeps to the JSON Schemas, and they name every key."""

from __future__ import annotations

import json

import jsonschema
import pytest
from tests.cli import in_process
from tests.cli.schemas import validator
from tests.synthetic_runs import write_run

from trueline.judge.json_schemas import json_schema
from trueline.schema.finding import Finding
from trueline.schema.live import Numbers
from trueline.schema.plan import Plan
from trueline.sinks.jsonl import open_sink


@pytest.fixture
def trueline(monkeypatch, capsys):
    def call(*words):
        return in_process.trueline(monkeypatch, capsys, *words)

    return call


def spoiled(step, rank, row):
    """Two ranks that read the same, and a NaN."""
    row["sample_digests"] = [step + 1]
    row["loss"] = float("nan") if (step, rank) == (5, 1) else row["loss"]


def test_what_diagnose_prints_keeps_to_its_schema(trueline, tmp_path):
    diagnose = validator("diagnose")
    write_run(tmp_path / "faulty", num_ranks=2, change=spoiled)
    code, printed, _ = trueline("diagnose", tmp_path / "faulty", "--json")
    document = json.loads(printed)
    assert code == 1
    assert {verdict["incident"] for verdict in document["verdicts"]} == set(range(len(document["incidents"])))
    assert list(diagnose.iter_errors(document)) == []


def test_what_check_prints_keeps_to_its_schema(trueline, tmp_path):
    check = validator("check")
    known = Finding(code="x", severity="info", claim="c", measured=float("nan"), expected=float("-inf"), ranks=(1,))
    write_run(tmp_path / "healthy", num_ranks=2, findings=(known,))
    write_run(tmp_path / "faulty", num_ranks=2, change=spoiled)
    for name in ("healthy", "faulty"):
        document = json.loads(trueline("check", tmp_path / name, "--json")[1])
        assert document["findings"]
        check.validate(document)
    for key in document:
        with pytest.raises(jsonschema.ValidationError):
            check.validate({name: value for name, value in document.items() if name != key})
    with pytest.raises(jsonschema.ValidationError):
        check.validate(document | {"unknown": 1})


def test_lines_of_a_sink_keep_to_their_schema(trueline, tmp_path):
    live, path = validator("live"), tmp_path / "live.jsonl"
    sink = open_sink(str(path), "")
    sink.numbers([Numbers(1, {"loss": float("inf"), "worst_rank": 2.0})])
    sink.finding(Finding(code="x", severity="error", claim="c", ranks=(1, 2), measured=float("nan")))
    sink.close()
    for line in path.read_text().splitlines():
        live.validate(json.loads(line))
        with pytest.raises(jsonschema.ValidationError):
            live.validate(json.loads(line) | {"kind": "other"})


def test_plan_files_keep_to_their_schema(trueline):
    plan = validator("plan")
    plan.validate(Plan().model_dump(mode="json"))
    for wrong in ({"presett": "mix"}, {"preset": "all"}, {"every": 0}):
        with pytest.raises(jsonschema.ValidationError):
            plan.validate(wrong)


def test_what_is_printed_is_the_schema(trueline):
    assert json.loads(trueline("schema", "check")[1]) == json_schema("check")


def test_a_name_that_has_no_schema_is_refused_with_those_that_have(trueline):
    assert trueline("schema", "chek")[::2] == (
        2,
        "trueline: There is no JSON Schema of 'chek'. There are those of check, diagnose, compare, diff, facts, trial, "
        "wait, live, plan.\n",
    )
