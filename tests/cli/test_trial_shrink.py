"""`trueline trial shrink` on a job that knows nothing of it."""

import json
from pathlib import Path

import pytest
from tests.cli import in_process

JOB = Path(__file__).parents[1] / "faulty_job.py"


@pytest.mark.in_turn
def test_the_fewest_steps_that_show_it_are_found_and_told_as_a_command(python, alike, tmp_path, monkeypatch, capsys):
    """The loss becomes NaN at step 5 of 24."""
    monkeypatch.chdir(tmp_path)
    command = (python, str(JOB), "flag", "--fast", "--steps", "24")
    alike.record("first", *map(Path, command[1:2]), *command[2:])
    alike.as_processes = True  # as users have them
    words = ("trial", "shrink", "first", "--cured-by=--fast", "--json", "--", *command)
    code, out, err = in_process.trueline(monkeypatch, capsys, *words)
    assert out, err
    found = json.loads(out)
    assert (code, found["answer"], found["credible"]) == (0, "confirmed", ["steps 6"]), found
    assert found["next"][0].endswith("flag --fast --steps 24 (up to step 5)")
    assert "Its healthy twin is clean." in found["says"]
    assert found["runs"] <= 20

    code, _, err = in_process.trueline(
        monkeypatch, capsys, "trial", "shrink", "first", "--axis=--depth", "--", *command
    )
    assert (code, "which is no option of the command with a whole number" in err) == (2, True)
