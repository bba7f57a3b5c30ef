"""`trueline wait` prints one document of at most 2,000 bytes, and leaves with the exit code that is in it."""

import json

import pytest
from tests.cli import in_process
from tests.cli.schemas import validator
from tests.synthetic_runs import write_run

from trueline.schema.finding import Finding


@pytest.fixture
def trueline(monkeypatch, capsys):
    return lambda *words: in_process.trueline(monkeypatch, capsys, *words)


def test_the_document_is_small_whatever_was_found_and_keeps_to_its_schema(trueline, tmp_path):
    many = tuple(Finding(code=f"c{n}", severity="error", claim="ä" * 400, ranks=(0,)) for n in range(40))
    place = tmp_path / ("a-long-name-" * 20)
    write_run(place, num_ranks=2, num_steps=12, findings=many)
    code, printed, errors = trueline("wait", place, "--until", "end")
    document = json.loads(printed)
    assert (code, errors, document["exit_code"], document["status"]) == (1, "", 1, "fault")
    assert len(printed.encode()) <= 2000
    assert len(document["findings"]) + document["left_out"]["findings"] == 40
    validator("wait").validate(document)


def test_time_that_is_over_is_exit_code_3(trueline, tmp_path):
    code, printed, _ = trueline("wait", tmp_path / "none", "--timeout", "0")
    assert (code, json.loads(printed)["stop"]) == (3, "timeout")
    validator("wait").validate(json.loads(printed))


def test_what_cannot_be_waited_for_is_exit_code_2(trueline, tmp_path):
    for words in (["wait", tmp_path, "--until", "now"], ["wait", __file__]):
        code, printed, errors = trueline(*words)
        assert (code, printed) == (2, "")
        assert errors.startswith("trueline: '")
