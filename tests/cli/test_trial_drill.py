"""`trueline trial drill` on a script that knows nothing of it, on two ranks."""

import json
from pathlib import Path

import pytest
from tests.cli import in_process

JOB = Path(__file__).parents[1] / "drill_job.py"


@pytest.mark.in_turn
def test_faults_are_planted_into_a_job_of_two_ranks_and_said_to_be_seen_or_not(
    python, forks, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    forks.world_size = 2
    names = ("same-samples", "not-reduced", "schedule")
    only = [word for name in names for word in ("--only", name)]
    words = ("trial", "drill", "--steps", "12", "--at", "6", *only, "--json", "--", python, str(JOB))
    code, out, err = in_process.trueline(monkeypatch, capsys, *words)
    answer = json.loads(out)
    assert (code, answer["answer"]) == (0, "confirmed"), err
    rows = {row["state"]["name"]: row for row in answer["table"]}
    assert all(row["planted"]["touched"] for row in rows.values()), rows
    seen = {name: {sighting["code"] for sighting in row["sightings"]} for name, row in rows.items()}
    assert "duplicate-data" in seen["same-samples"]
    assert "gradient-not-reduced" in seen["not-reduced"]
    assert rows["not-reduced"]["seen"] == "after 1 step"
    assert rows["schedule"]["state"]["is"] == "not seen"
    assert "finding already" not in answer["says"][0]
    assert not [line for line in answer["says"] if "nothing changed" in line], "the sham shows nothing"
