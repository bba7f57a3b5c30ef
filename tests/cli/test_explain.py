"""What the command says of itself, and of its checks."""

import json
import subprocess
import sys

import pytest
from tests.cli.in_process import trueline as call

import trueline
from trueline.judge.registry import installed_checks
from trueline.laws.replicas import replica_drift
from trueline.schema.finding import LIVE_CODES
from trueline.schema.law import BESIDE, findings_of


def test_python_m_trueline_is_the_command_and_says_its_version():
    done = subprocess.run([sys.executable, "-m", "trueline", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"trueline {trueline.__version__}\n"


def test_a_check_is_explained_by_its_manual(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "explain", "replica-drift")
    assert code == 0
    assert out == f"replica-drift\n{replica_drift.__doc__.strip()}\n"
    _, out, _ = call(monkeypatch, capsys, "explain", "replica-drift", "--json")
    assert json.loads(out)["checks"] == [{"code": "replica-drift", "manual": replica_drift.__doc__.strip()}]


def test_every_installed_check_has_a_manual_and_is_listed(monkeypatch, capsys):
    _, out, _ = call(monkeypatch, capsys, "explain", "--json")
    told = {each["code"]: each["manual"] for each in json.loads(out)["checks"]}
    assert set(told) == {check.code for check in installed_checks()}
    assert all("What it may miss" in manual for manual in told.values())
    _, out, _ = call(monkeypatch, capsys, "explain")
    assert all(check in out for check in told)


@pytest.mark.parametrize("code", [*findings_of(*BESIDE), *LIVE_CODES])
def test_what_no_check_finds_is_explained_too(monkeypatch, capsys, code):
    status, out, _ = call(monkeypatch, capsys, "explain", code)
    assert status == 0
    assert out.startswith(f"{code}\n")
    assert len(out.split()) > 10
    _, listed, _ = call(monkeypatch, capsys, "explain")
    assert code in listed


@pytest.mark.parametrize("remedy", ['"interval": "step"', "estimated_stepping_batches", "Trainer", "num_processes"])
def test_the_length_of_a_schedule_has_its_remedy_in_each_framework(monkeypatch, capsys, remedy):
    _, out, _ = call(monkeypatch, capsys, "explain", "schedule-length")
    assert remedy in out.partition("Wrong and right")[2]


def test_the_id_of_a_finding_is_explained_by_its_code(monkeypatch, capsys):
    code, out, _ = call(monkeypatch, capsys, "explain", "replica-drift.1f2e3d4c")
    assert (code, out) == (0, f"replica-drift\n{replica_drift.__doc__.strip()}\n")
    code, _, errors = call(monkeypatch, capsys, "explain", "unusual.no-such-mark")
    assert (code, "No finding or cause is called 'unusual.no-such-mark'" in errors) == (2, True)
    _, listed, _ = call(monkeypatch, capsys, "explain")
    assert "unusual " in listed


def test_an_unknown_code_is_one_sentence_that_names_the_nearest(monkeypatch, capsys):
    code, _, errors = call(monkeypatch, capsys, "explain", "replica-drfit")
    assert code == 2
    assert "Did you mean 'replica-drift'?" in errors
    assert errors.count("\n") == 1


def test_a_shell_can_complete_verbs(monkeypatch):
    words = {"_TRUELINE_COMPLETE": "complete_bash", "COMP_WORDS": "trueline ch", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "trueline"], env={"PATH": "", **words}, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["check"]
