"""Where runs take place: processes here, torchrun, tasks of a real Ray, and batch jobs of SLURM (a stub where it is not
here).
"""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
from tests.clusters import engine, ray_cluster, slurm, warm_torchrun

from trueline.schema.errors import InputError
from trueline.trials.frame.engines.engine import engine_named, launched
from trueline.trials.frame.engines.local import Local
from trueline.trials.frame.trial import Job

__all__ = ["engine", "ray_cluster", "slurm", "warm_torchrun"]  # fixtures


def job_of(engine, *words, timeout_s=60.0):
    return Job(launched(engine, words), timeout_s, engine_named(engine))


def run(job, folder, **environ):
    place = folder / "place"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    return job.run({**os.environ, **environ}, printed=place / "printed.txt", folder=folder)


@pytest.mark.in_turn
@pytest.mark.usefixtures("warm_torchrun")
def test_a_run_ends_with_its_status_what_it_printed_its_environment_and_folder(engine, tmp_path):
    says = "import os; print(os.environ['OURS'], os.getcwd()); raise SystemExit(3 if 'X' in os.environ else 0)"
    ended = run(job_of(engine, sys.executable, "-c", says), tmp_path, OURS="given")
    assert (ended.status, ended.tail) == (0, f"given {tmp_path}")
    ended = run(job_of(engine, sys.executable, "-c", says), tmp_path, OURS="given", X="1")
    assert ended.status != 0
    assert engine == "torchrun" or ended.status == 3


def wait_for(path):
    until = time.monotonic() + 150
    while not path.exists() or not path.read_text():
        assert time.monotonic() < until
        time.sleep(0.05)
    return int(path.read_text())


def is_running(number):
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


SLEEPS = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(600)"


@pytest.mark.in_turn
@pytest.mark.usefixtures("warm_torchrun")
def test_a_run_that_does_not_end_in_time_is_ended(engine, tmp_path):
    timeout_s = 4.0 if engine == "torchrun" else 1.0
    ended = run(job_of(engine, sys.executable, "-c", SLEEPS, timeout_s=timeout_s), tmp_path)
    assert ended.status is None
    if not (tmp_path / "pid").exists():  # a busy machine had not started it yet
        return
    gone = time.monotonic() + 150
    while is_running(wait_for(tmp_path / "pid")):
        assert time.monotonic() < gone, "its processes are ended, too"
        time.sleep(0.1)


@pytest.mark.in_turn
@pytest.mark.usefixtures("warm_torchrun")
def test_runs_are_ended_from_outside_as_by_ctrl_c(engine, tmp_path):
    """As a trial does it whose threads wait for runs."""
    job = job_of(engine, sys.executable, "-c", SLEEPS)
    found = []
    thread = threading.Thread(target=lambda: found.append(run(job, tmp_path)))
    thread.start()
    number = wait_for(tmp_path / "pid")
    job.end()
    thread.join(60)
    assert [ended.status for ended in found] != [0]
    gone = time.monotonic() + 150
    while is_running(number):
        assert time.monotonic() < gone
        time.sleep(0.1)


ON_NODE = """
import sys
from trueline.trials.frame.engines import local, ray
local.GRACE_S = 1.0
ray._run(sys.argv[1:], {}, "printed.txt", ".", "began")
"""
STAYS = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEPS


@pytest.mark.parametrize("started", ["", "trap '' INT; "], ids=["by hand", "in the background"])
def test_a_task_that_ray_interrupts_again_and_again_leaves_no_process(tmp_path, monkeypatch, started):
    monkeypatch.chdir(tmp_path)
    command = ["sh", "-c", f'{started}exec "$0" "$@"', sys.executable, "-c", ON_NODE, sys.executable, "-c", STAYS]
    task = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    number = wait_for(tmp_path / "pid")
    until = time.monotonic() + 150
    while task.poll() is None:
        assert time.monotonic() < until
        task.send_signal(signal.SIGINT)
        time.sleep(0.05)
    while is_running(number):
        assert time.monotonic() < until, "it was sent SIGKILL before the task ended"
        time.sleep(0.1)


INTERRUPTED_AT_START = """
import os, signal, sys
from trueline.trials.frame.engines import local, ray
start = local.Local.start
def interrupted(*given, **named):
    process = start(*given, **named)
    open("pid", "w").write(str(process.process.pid))
    os.kill(os.getpid(), signal.SIGINT)
    return process
local.Local.start = interrupted
ray._run(sys.argv[1:], {}, "printed.txt", ".", "began")
"""


def test_a_task_that_is_interrupted_as_its_command_starts_ends_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = [sys.executable, "-c", INTERRUPTED_AT_START, "sleep", "60"]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode != 0
    assert "KeyboardInterrupt" in ended.stderr
    assert not is_running(wait_for(tmp_path / "pid"))


def test_torchrun_is_put_in_front_of_the_command_and_of_no_other_engine():
    words = ("python", "train.py", "--lr", "1")
    assert launched("local", words) == launched("slurm:-N 2", words) == words
    made = launched("torchrun:--nproc-per-node 2", words)
    assert made == ("torchrun", "--standalone", "--nproc-per-node", "2", "--no-python", *words)
    assert isinstance(engine_named("torchrun:--nproc-per-node 2"), Local)


def test_a_launcher_within_torchrun_is_refused():
    with pytest.raises(InputError, match="starts ranks itself, and so does the command: '/opt/bin/torchrun'"):
        launched("torchrun:--nproc-per-node=2", ["/opt/bin/torchrun", "--nproc-per-node", "2", "train.py"])


def test_what_an_engine_does_not_know_is_one_sentence(slurm, tmp_path):
    for text, told in (
        ("kubernetes", "--engine is 'kubernetes'; give one of local, torchrun, ray, slurm"),
        ("local:fast", "--engine is 'local:fast'"),
        ("slurm:'", "cannot be read: No closing quotation"),
    ):
        with pytest.raises(InputError, match=told):
            engine_named(text)
    with pytest.raises(InputError, match=r"sbatch did not take the job: .*invalid partition"):
        run(job_of("slurm:--partition=none", "true"), tmp_path)


def test_where_slurm_is_not_here_it_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="there is no sbatch on PATH"):
        engine_named("slurm")


def test_what_ray_does_not_take_is_one_sentence():
    pytest.importorskip("ray", reason="ray is not installed")
    with pytest.raises(InputError, match="--engine is ray with 'cpus=2'; give address="):
        engine_named("ray:cpus=2")
