"""`trueline trial` with its runs as torchrun, Ray and SLURM start them, and ended with it."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli import in_process
from tests.clusters import engine, ray_cluster, slurm

__all__ = ["engine", "ray_cluster", "slurm"]  # fixtures
JOB = Path(__file__).parents[1] / "repeating_job.py"


@pytest.mark.in_turn
def test_a_trial_has_the_same_answer_wherever_its_runs_take_place(engine, python, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("trial", "repeat", "--in-place", "--json", "--engine", engine, "--", python, JOB, "order")
    code, out, err = in_process.trueline(monkeypatch, capsys, *words)
    assert code == 0, err
    assert json.loads(out)["credible"] == ["mine.total.default(float32[64, 16])"]
    asked = json.loads((tmp_path / "trials/repeat-in-place/trial.json").read_text())["asked"]
    assert asked.get("engine") == (engine if engine.startswith(("ray", "slurm")) else None)


def test_ctrl_c_ends_the_batch_job(slurm, python, tmp_path):
    (tmp_path / "sleeper.py").write_text("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n")
    words = ["trial", "repeat", "--engine", slurm, "--", sys.executable, "sleeper.py"]
    trial = subprocess.Popen([python, "-m", "trueline", *words], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        assert trial.poll() is None
        time.sleep(0.05)
    trial.send_signal(signal.SIGINT)
    _, err = trial.communicate(timeout=180)
    assert (trial.returncode, "stopped after 0 runs" in err) == (130, True), err
    number = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 150
    while os.path.exists(f"/proc/{number}"):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_an_engine_that_is_none_is_bad_input(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ("trial", "repeat", "--engine", "cloud", "--", sys.executable, JOB, "order")
    code, _, err = in_process.trueline(monkeypatch, capsys, *words)
    assert code == 2
    assert "--engine is 'cloud'; give one of local, torchrun, ray, slurm" in " ".join(err.split())
    assert err.count("\n") == 1
    assert not (tmp_path / "trials").exists()
