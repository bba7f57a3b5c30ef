"""A Run that a living job writes is not replaced, and a job whose Run was taken away says so."""

import json
import logging
import os
import shutil
import subprocess
import textwrap

import pytest
from tests.unit.recorded_steps import make_step
from tests.unit.writer_deaths import start

from trueline.capture.job.safe_sink import SafeSink
from trueline.schema.errors import ResumeError, RunExistsError
from trueline.schema.files import run_lock
from trueline.schema.files.run_manifest import RankEnv
from trueline.schema.files.start import Job, Start
from trueline.schema.finding import Finding
from trueline.store.attempts import next_start
from trueline.store.log.claim import alone_in
from trueline.store.reader import Run
from trueline.store.writer import RunWriter

WRITES_FOR_EVER = textwrap.dedent("""
    import os, sys
    from trueline.store.writer import RunWriter
    writer = RunWriter(sys.argv[1], rank=0)
    writer.write({"step": 0, "loss": 1.0})
    os.write(1, b"ready")
    os.read(0, 1)
    writer.write({"step": 1, "loss": 2.0})
    writer.close()
""")
JOB = Job(world_size=1, adapter="", params=())


@pytest.fixture
def other_job(tmp_path):
    """Another process that writes ``tmp_path / "run"``, and waits."""
    job = start(WRITES_FOR_EVER, tmp_path / "run", stdin=subprocess.PIPE)
    assert job.stdout.read(5) == b"ready"
    yield job
    job.kill()
    job.communicate()


def owner_file(path, rank=0):
    return path / "journal" / f".rank-{rank:05d}-owner.tmp"


def write_run(path, num_steps=2):
    writer = RunWriter(path, rank=0)
    for step in range(num_steps):
        writer.write({"step": step})
    writer.close()


def test_the_run_of_a_living_process_is_neither_replaced_nor_gone_on_with(tmp_path, other_job):
    path = tmp_path / "run"
    words = rf"is still being written by process {other_job.pid} on .*kill {other_job.pid}"
    with pytest.raises(RunExistsError, match=words):
        RunWriter(path, rank=0, overwrite=True)
    with pytest.raises(ResumeError, match=words):
        next_start(path, JOB, rank=0)
    other_job.communicate(b"x", timeout=100)
    assert other_job.returncode == 0
    assert Run(path).steps.tolist() == [0, 1]
    assert not owner_file(path).exists()
    assert next_start(path, JOB, rank=0).step == 2
    RunWriter(path, rank=0, overwrite=True).close()
    assert Run(path).steps.tolist() == []


def test_the_run_of_a_killed_process_may_be_replaced_before_its_parent_has_noticed(tmp_path, other_job):
    other_job.kill()
    os.waitid(os.P_PID, other_job.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
    assert next_start(tmp_path / "run", JOB, rank=0).step == 1
    RunWriter(tmp_path / "run", rank=0, overwrite=True).close()
    assert Run(tmp_path / "run").steps.tolist() == []


def change_owner(path, **facts):
    file = owner_file(path)
    file.write_text(json.dumps(json.loads(file.read_text()) | facts))


def test_a_later_process_with_the_same_pid_is_not_the_owner(tmp_path, other_job):
    change_owner(tmp_path / "run", started="1")
    RunWriter(tmp_path / "run", rank=0, overwrite=True).close()


@pytest.mark.parametrize("machine", ["another boot", ""])
def test_a_job_of_another_machine_lives_as_long_as_it_writes(tmp_path, monkeypatch, other_job, machine):
    path = tmp_path / "run"
    change_owner(path, machine=machine, host="node-7", pid=1)
    monkeypatch.setattr(run_lock, "this_process", lambda: run_lock.Owner("here", 2, "", ""))
    with pytest.raises(RunExistsError, match=r"by process 1 on node-7.*5 minutes after its last step"):
        RunWriter(path, rank=0, overwrite=True)
    assert next_start(path, JOB, rank=0).step == 1  # it may have been killed just now, and started again here
    old = os.stat(owner_file(path)).st_mtime - run_lock.STALE_S - 1
    os.utime(owner_file(path), (old, old))
    RunWriter(path, rank=0, overwrite=True).close()


def test_writing_freshens_what_tells_other_machines(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "BEAT_S", 0.0)
    writer = RunWriter(tmp_path, rank=0)
    os.utime(owner_file(tmp_path), (1, 1))
    writer.write({"step": 0})
    assert os.stat(owner_file(tmp_path)).st_mtime > 1e9


def test_this_process_has_to_close_its_own_watch_first(tmp_path):
    writer = RunWriter(tmp_path, rank=0)
    with pytest.raises(RunExistsError, match=r"by this process.*watch\.close\(\)"):
        RunWriter(tmp_path, rank=0, overwrite=True)
    writer.close()
    RunWriter(tmp_path, rank=0, overwrite=True)


def test_of_two_jobs_that_begin_at_once_one_is_refused(tmp_path):
    with alone_in(str(tmp_path / "run")), pytest.raises(RunExistsError, match="Another job is beginning a Run"):
        RunWriter(tmp_path / "run", rank=0)
    RunWriter(tmp_path / "run", rank=0)


def files_in(path):
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("by", ["removal", "another job", "a later start"])
@pytest.mark.parametrize("meets_it", ["write", "seal", "finding", "describe", "close"])
def test_a_job_whose_run_was_taken_away_says_so_and_touches_nothing(tmp_path, monkeypatch, caplog, by, meets_it):
    path = tmp_path / "run"
    monkeypatch.setattr(run_lock, "LOOK_S", 0.0 if meets_it == "write" else 1e9)
    writer = RunWriter(path, rank=0, seal_steps=2)
    outlet = SafeSink(writer, rank=0)
    outlet.write({"step": 0, "loss": 1.0})
    outlet.write(make_step(0))
    writer._records.drain()
    assert caplog.text == ""
    if by != "a later start":
        shutil.rmtree(path)
    if by != "removal":
        later = RunWriter(path, rank=0, start=Start(attempt=1) if by == "a later start" else Start())
        later.write({"step": 7, "loss": 3.0})
        later.write(make_step(7))
        later._records.drain()
    before = files_in(path) if path.exists() else {}
    with caplog.at_level(logging.WARNING):
        if meets_it in ("write", "seal"):
            outlet.write({"step": 1, "loss": 1.0})
        elif meets_it == "finding":
            outlet.write(Finding("rng-streams", "info", "Equal."))
        elif meets_it == "describe":
            outlet.describe(None, RankEnv())
        outlet.close()
    assert ("was removed" if by == "removal" else "was taken over by this process") in caplog.text
    assert (files_in(path) if path.exists() else {}) == before
    if by != "removal":
        later.close()
        run = Run(path)
        assert run.problems == [text for text in run.problems if text.startswith("rank 0: it wrote")]
        assert 7 in run.steps
        assert 7 in run.record_steps
