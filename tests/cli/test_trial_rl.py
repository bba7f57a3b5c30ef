"""`trueline trial rl` on a job whose engine loses precision in its cache, and ways that are none."""

import json
from pathlib import Path

import pytest
from tests.cli import in_process

JOB = Path(__file__).parents[1] / "rollouts_job.py"


@pytest.mark.in_turn
def test_a_gap_that_goes_with_the_cache_is_of_it(python, alike, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [python, str(JOB), "cache", "--lr", "0.05", "--max-new-tokens", "16", "--use-cache=true"]
    alike.record("first", JOB, *words[2:])
    alike.as_processes = True  # as users have them
    code, out, err = in_process.trueline(
        monkeypatch, capsys, "trial", "rl", "first", "--error", "0.2", "--json", "--", *words
    )
    assert out, err
    found = json.loads(out)
    assert [arm["name"] for arm in found["arms"]] == ["base", "lr-zero", "one-token", "no-cache"], found
    assert (code, found["answer"], found["credible"]) == (0, "confirmed", ["cache"])


@pytest.mark.parametrize(
    ("way", "says"),
    [
        ("cold=--x=1", "give NAME=OPTION=VALUE with a name of lr-zero, one-token"),
        ("one-prompt=--x", "give NAME=OPTION=VALUE"),
        ("one-prompt=--nowhere=1", "the command has no option '--nowhere'"),
    ],
)
def test_a_way_that_is_none_is_refused(python, alike, tmp_path, monkeypatch, capsys, way, says):
    monkeypatch.chdir(tmp_path)
    words = [python, str(JOB), "stale", "--lr", "0.05"]
    alike.record("first", JOB, *words[2:])
    code, _, err = in_process.trueline(monkeypatch, capsys, "trial", "rl", "first", "--way", way, "--", *words)
    assert (code, says in " ".join(err.split())) == (2, True), err
