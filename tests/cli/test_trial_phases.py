"""`trueline trial phases` on a script that knows nothing of it."""

import json
from pathlib import Path

import pytest
from tests.cli import in_process

JOB = Path(__file__).parents[1] / "phases_job.py"


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("kernel", "kernels, second half"),
        ("update", "update, second half"),
    ],
)
def test_the_phase_and_the_half_that_a_finding_needs_are_named(
    python, alike, tmp_path, monkeypatch, capsys, kind, cause
):
    monkeypatch.chdir(tmp_path)
    alike.record("bad", JOB, kind)
    alike.as_processes = kind == "update"  # as users have them
    words = ("trial", "phases", "bad", "--json", "--", python, JOB, kind)
    code, out, err = in_process.trueline(monkeypatch, capsys, *words)
    found = json.loads(out)
    assert (code, found["answer"], found["credible"]) == (0, "confirmed", [cause]), (found, err)
    arms = {arm["name"]: (arm["runs"], arm["showed"]) for arm in found["arms"]}
    assert arms["sham"][1] == arms["sham"][0] > 0
