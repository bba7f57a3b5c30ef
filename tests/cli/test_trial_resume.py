"""`trueline trial resume` on a job that saves and resumes, of whose checkpoint something is not loaded."""

import json
from functools import partial
from pathlib import Path

import pytest
from tests.cli import in_process

JOB = Path(__file__).parents[1] / "resume_job.py"


def asked(python, monkeypatch, capsys, lost, *options, at_restart="", resume_with=""):
    """The command line, on the job: ``lost`` at both starts, or ``at_restart`` alone."""
    words = [python, str(JOB), "{folder}", *(["--lose", lost] if lost else [])]
    resume_with = resume_with or " ".join(["--resume", *(["--lose", at_restart] if at_restart else [])])
    command_line = ("trial", "resume", "--at", "6", "--steps", "5", "--resume-with", resume_with, "--json", *options)
    code, out, err = in_process.trueline(monkeypatch, capsys, *command_line, "--", *words)
    return code, json.loads(out) if out.startswith("{") else out, err


@pytest.fixture
def resume(python, alike, tmp_path, monkeypatch, capsys):
    """A trial of the job, whose runs that are alike are run once for all tests."""
    monkeypatch.chdir(tmp_path)
    return partial(asked, python, monkeypatch, capsys)


@pytest.fixture
def resume_unlike(python, forks, tmp_path, monkeypatch, capsys):
    """A trial of the job where it does not repeat itself."""
    monkeypatch.chdir(tmp_path)
    return partial(asked, python, monkeypatch, capsys)


def test_a_restart_that_takes_everything_over_is_the_same_job(resume):
    code, found, _ = resume("")
    assert (code, found["answer"], found["credible"]) == (0, "excluded", []), found
    assert found["says"][0].startswith(
        "After a restart at update 6 the job is the same, bit for bit, in 5 steps: weights"
    )


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("lost", "causes", "words"),
    [
        ("weights", ["weights-not-restored"], "Weights are those of no update"),
        ("buffers", ["buffers-not-restored"], "The buffers are not as in the run that was not stopped"),
        ("states", ["optimizer-state-lost"], "the optimizer has none of 0.bias"),
        ("rate", ["schedule-not-restored"], "The learning rate is 0.01 at update 6"),
        ("schedule", ["schedule-not-restored"], "at update 7, and 0.00966"),
        ("samples,schedule", ["schedule-not-restored", "data-restarted"], "at update 7, and 0.00966"),
        ("samples", ["data-restarted"], "The data began again"),
        ("streams", ["random-state-lost"], "The random streams are not as in the run"),
    ],
)
def test_what_is_not_taken_over_is_told_apart(resume, lost, causes, words):
    code, found, _ = resume("", at_restart=lost)
    assert (code, found["answer"], found["credible"]) == (0, "confirmed", causes), found
    assert words in " ".join(found["says"])
    assert [finding["evidence"]["cause"] for finding in found["findings"]] == causes


def test_an_older_checkpoint_is_aligned_by_its_weights(resume):
    _, found, _ = resume("late")
    assert (found["answer"], found["credible"]) == ("excluded", []), found
    assert "It went on at update 4, and was stopped after update 6" in " ".join(found["says"])


def test_a_job_that_does_not_repeat_itself_is_undecided(resume_unlike):
    code, found, _ = resume_unlike("noise")
    assert (code, found["answer"]) == (3, "undecided")
    assert "The job does not repeat itself" in found["says"][0]


def test_a_start_that_fails_is_said(resume):
    code, found, _ = resume("", at_restart="itself")
    assert (code, found["answer"]) == (3, "undecided")
    assert "the start that resumes: it ended with status 1" in found["says"][0]


def test_a_start_that_loads_nothing_begins_anew(resume):
    _, found, _ = resume("", at_restart="all")
    assert (found["answer"], found["credible"][0]) == ("confirmed", "weights-not-restored"), found
    assert "The start that resumes begins with the weights of update 0: they were not loaded" in found["says"][0]


def test_a_job_that_later_does_not_repeat_itself_is_not_accused_of_its_restart(resume_unlike):
    code, found, _ = resume_unlike("later")
    assert (code, found["answer"]) == (3, "undecided"), found
    assert "The job does not repeat itself" in found["says"][0]


def test_what_is_recorded_at_the_first_steps_of_a_start_alone_is_no_difference(resume):
    _, found, _ = resume("within")
    assert (found["answer"], found["credible"]) == ("excluded", []), found


def test_a_start_that_makes_no_update_tells_nothing(resume):
    code, found, _ = resume("", at_restart="none")
    assert (code, found["answer"]) == (3, "undecided"), found


def test_states_that_nobody_saw_are_not_said_to_be_the_same(resume):
    _, found, _ = resume("late", at_restart="buffers")
    assert found["credible"] == ["buffers-not-restored"], found
    (same,) = [line for line in found["says"] if line.startswith("The same as")]
    assert "optimizer states" not in same
