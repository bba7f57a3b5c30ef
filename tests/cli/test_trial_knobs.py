"""`trueline trial knobs` on jobs that know nothing of it."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from tests.cli import in_process

JOB = Path(__file__).parents[1] / "faulty_job.py"
OWN = ("--knob", "FUSE_A=0", "--knob", "FUSE_B=0")


@pytest.fixture
def trueline(python, alike, tmp_path, monkeypatch, capsys):
    """The command line, and a Run of the job that shows its fault as `first`."""
    monkeypatch.chdir(tmp_path)

    def call(*words):
        code, out, err = in_process.trueline(monkeypatch, capsys, *words)
        return code, json.loads(out) if out.startswith("{") else out, err

    def first(*words):
        alike.record("first", JOB, *words)
        return call

    return first


@pytest.mark.in_turn
@pytest.mark.skipif(not torch.__version__.startswith("2.13.0"), reason="the fault is one of torch 2.13.0 alone")
def test_a_real_fault_of_torch_is_named_without_a_word_in_the_script(trueline, python, tmp_path):
    call = trueline("fused")
    code, found, err = call("trial", "knobs", "first", "--json", "--", python, JOB, "fused")
    assert (code, found["answer"], found["credible"]) == (0, "confirmed", ["fused-optimizer"]), found
    assert set(found) == {
        *("status", "exit_code", "verdict", "cause", "actions"),
        *("schema", "trial", "question", "answer", "says", "arms", "error_asked", "runs", "rate", "credible", "next"),
    }
    assert found["arms"][0]["name"] == "sham"
    assert found["rate"]["showed"] == found["rate"]["runs"] >= 2
    assert "run 1 of at most 200: sham" in err
    written = json.loads((tmp_path / "trials/knobs/trial.json").read_text())
    assert len(written["log"]) == found["runs"]

    before = (tmp_path / "trials/knobs/trial.json").read_text()
    code, again, err = call("trial", "knobs", "first", "--json", "--", python, JOB, "fused")
    assert again == found
    assert "run 1" not in err, "all of it was on disk"
    assert (tmp_path / "trials/knobs/trial.json").read_text() == before


@pytest.mark.in_turn
@pytest.mark.parametrize(("needs", "credible"), [("both", "FUSE_A + FUSE_B"), ("either", "FUSE_A | FUSE_B")])
def test_settings_of_the_script_are_told_as_together_or_as_two_faults(trueline, python, needs, credible):
    call = trueline(needs)
    code, found, _ = call("trial", "knobs", *OWN, "first", "--json", "--", python, JOB, needs)
    assert (code, found["credible"]) == (0, [credible]), found


@pytest.mark.in_turn
def test_a_flag_of_the_command_is_named_and_the_screen_says_it(trueline, alike, python):
    """All runs are processes, as users have them."""
    alike.as_processes = True
    call = trueline("flag", "--fast")
    words = ("trial", "knobs", "first", "--knob=--fast", "--only=--fast", "--", python, JOB, "flag", "--fast")
    code, said, _ = call(*words)
    assert code == 0, said
    assert said.startswith("Confirmed: the finding needs what is named below.")
    assert "The finding needs --fast: with only this off it is gone" in " ".join(said.split())
    assert "it takes" not in said  # how many runs would say so is of no use once they have


def test_a_fault_of_no_setting_is_excluded(trueline, python):
    call = trueline("none")
    code, found, _ = call("trial", "knobs", *OWN, "first", "--json", "--", python, JOB, "none")
    assert (code, found["answer"], found["credible"]) == (0, "excluded", ["none of these"]), found


def test_nothing_is_run_for_a_plan_and_bad_input_is_one_sentence(trueline, python, tmp_path):
    call = trueline("none")
    code, said, _ = call("trial", "knobs", "first", "--dry-run", "--", python, JOB, "none")
    assert code == 0
    assert "worker-nonfinite" in said
    assert not (tmp_path / "trials").exists()
    for words, told in [
        (("first",), "No command was given"),
        (("first", "--", "no-such-program"), "is not a program on PATH"),
        (("nowhere", "--", python, JOB), "nowhere"),
        (("first", "--code", "replica-drift", "--", python, JOB), "'replica-drift' is no finding"),
        (("first", "--only", "nothing", "--", python, JOB), "There is no setting 'nothing'"),
        (("first", "--knob", "nothing", "--", python, JOB), "give NAME=VALUE"),
        (("first", "--error", "0.7", "--", python, JOB), "--error is 0.7"),
        (("first", "--timeout", "0", "--", python, JOB), "--timeout is 0"),
        (
            ("first", "--out", "first/manifest.json/t", "--", python, JOB),
            "cannot be written to 'first/manifest.json/t'",
        ),
    ]:
        code, _, err = call("trial", "knobs", *words)
        assert code == 2, (words, err)
        assert told in err
        assert err.count("\n") == 1


def test_a_job_that_does_not_end_is_stopped_and_told(trueline, python):
    call = trueline("none")
    words = ("first", "--timeout", "1.5", "--json", "--", python, "-c", "import time; time.sleep(60)")
    code, found, _ = call("trial", "knobs", *words)
    assert (code, found["answer"]) == (3, "undecided")
    assert "it was stopped, as it took too long" in found["says"][0]


def test_a_signal_keeps_what_was_run_and_ends_the_job(trueline, python, tmp_path):
    trueline("none")
    sleeper = tmp_path / "sleeper.py"
    sleeper.write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(60)\n")
    words = ["trial", "knobs", "first", "--", python, str(sleeper)]
    trial = subprocess.Popen([python, "-m", "trueline", *words], stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert trial.poll() is None
        time.sleep(0.05)
    trial.send_signal(signal.SIGTERM)  # as Ctrl-C, which a shell lets its background jobs ignore
    _, err = trial.communicate(timeout=60)
    assert trial.returncode == 130
    assert "stopped after 0 runs" in err
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert json.loads((tmp_path / "trials/knobs/trial.json").read_text())["log"] == []
