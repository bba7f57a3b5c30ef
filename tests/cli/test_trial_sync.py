"""`trueline trial sync` on jobs whose faults are in time and in memory."""

import json
from pathlib import Path

import pytest
from tests.cli import in_process

from trueline.store.reader import Run
from trueline.trials.frame.runs import Runs
from trueline.trials.frame.trial import Job
from trueline.trials.frame.watched_job import WatchedJob
from trueline.trials.sync import POISONS, SyncTrial

JOB = Path(__file__).parents[1] / "racy_job.py"


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("kind", "answer", "credible", "told"),
    [
        ("race", "confirmed", ["ordering"], "It is gone when each operation is waited for"),
        ("delay", "undecided", ["ordering", "memory", "neither"], "any delay cures it"),
        ("kernel", "excluded", ["neither"], "is the same with memory filled by either of two patterns"),
    ],
)
def test_a_race_timing_and_neither_are_told_apart(
    python, alike, tmp_path, monkeypatch, capsys, kind, answer, credible, told
):
    monkeypatch.chdir(tmp_path)
    alike.record("first", JOB, kind)
    alike.as_processes = kind == "kernel"  # as users have them
    words = ("trial", "sync", "first", "--json", "--", python, JOB, kind)
    code, out, err = in_process.trueline(monkeypatch, capsys, *words)
    assert out, err
    found = json.loads(out)
    assert (code, found["answer"], found["credible"]) == (3 if answer == "undecided" else 0, answer, credible), found
    assert told in " ".join(found["says"])


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("kind", "first", "shown"),
    [
        ("empty", "poison", {"poison": True, "poison 2 + blocking": False}),
        ("freed", "poison 2", {"base": False, "poison": False, "poison 2 + blocking": True}),
        ("shared", "", {"base": True, "poison": True, "poison 2 + blocking": True}),
    ],
)
def test_what_is_read_too_early_or_too_late_follows_what_memory_is_filled_with(
    python, forks, tmp_path, kind, first, shown
):
    """What another tensor writes into the same memory does not."""
    forks.record(str(tmp_path / "first"), JOB, kind, **POISONS.get(first, {}))
    job = WatchedJob.like(Run(tmp_path / "first"), Job((python, str(JOB), kind), 600.0))
    trial = SyncTrial(Runs("sync", tmp_path / "t", job, {}), "?")
    assert {arm: trial.runs.outcome(trial.way(arm)) for arm in shown} == shown
