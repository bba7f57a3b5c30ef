"""Waiting on a Run ends with what was waited for, with the job, or with the time, and says nothing else than that."""

from __future__ import annotations

import shutil

import fsspec
import pytest
from tests.synthetic_runs import write_run

from trueline.judge.awaited import Until, wait_for
from trueline.schema.errors import InputError, RunError
from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.schema.finding import Finding
from trueline.store.writer import RunWriter


def spoiled(step, rank, row):
    if (step, rank) == (5, 1):
        row["loss"] = float("nan")


class Time:
    """A clock that goes on as somebody sleeps, and what happens meanwhile: an event a sleep."""

    def __init__(self, *events):
        self.now, self.events = 0.0, list(events)

    def sleep(self, seconds):
        self.now += seconds
        if self.events:
            self.events.pop(0)()

    def clock(self):
        return self.now


def wait(path, until, *events, timeout_s=100.0):
    time = Time(*events)
    return wait_for(str(path), Until.parse(until), timeout_s=timeout_s, sleep=time.sleep, clock=time.clock)


class Job:
    """Two ranks that write a Run as they are told."""

    def __init__(self, path):
        self.writers = [RunWriter(path, rank=rank) for rank in (0, 1)]
        for rank, writer in enumerate(self.writers):
            manifest = Manifest(world_size=2, adapter="ddp", data_parallel_ranks=[0, 1]) if rank == 0 else None
            writer.describe(manifest, RankEnv(rank=rank, world_size=2, params=["w"], param_shapes=[[2]]))

    def train(self, *steps, ranks=(0, 1), loss=1.0):
        for step in steps:
            for rank in ranks:
                self.writers[rank].write({"step": step, "loss": loss, "sample_digests": [2 * step + rank + 1]})

    def end(self):
        for writer in self.writers:
            writer.close()


@pytest.fixture
def job(tmp_path):
    job = Job(tmp_path / "run")
    yield job
    job.end()


def test_a_place_where_nothing_is_yet_is_waited_for(tmp_path):
    run = tmp_path / "run"
    awaited = wait(run, "finding", run.mkdir, lambda: write_run(run, num_ranks=2, num_steps=12, change=spoiled))
    assert (awaited.stop, awaited.exit_code, awaited.status) == ("reached", 1, "fault")
    document = awaited.to_json()
    assert document["findings"][0]["code"] == "worker-nonfinite"
    assert document["findings"][0]["where"]["rank"] == 1


def test_a_finding_of_a_job_that_runs_ends_waiting_once_every_rank_has_written_the_step(job, tmp_path):
    events = (
        lambda: job.train(0, 1, 2),
        lambda: job.train(3, ranks=(0,), loss=float("inf")),
        lambda: job.train(3, ranks=(1,)),
    )
    awaited = wait(tmp_path / "run", "finding", *events)
    assert (awaited.stop, awaited.exit_code, awaited.ended) == ("reached", 1, False)
    assert (awaited.to_json()["step_last"], awaited.waited_s) == (3, 6.0)


@pytest.mark.parametrize("until", ["finding", "confirm", "end", "step:50"])
def test_time_that_is_over_never_reads_as_fine(job, tmp_path, until):
    job.train(*range(12))
    awaited = wait(tmp_path / "run", until, timeout_s=10.0)
    assert (awaited.stop, awaited.exit_code, awaited.status) == ("timeout", 3, "cannot-tell")
    assert awaited.verdict.startswith("Cannot tell: ")
    assert "did not come in 10 s; the job may still be running, after 12 steps" in awaited.verdict
    (again,) = awaited.actions
    assert again.argv == ("trueline", "wait", str(tmp_path / "run"), "--until", until)


def test_time_that_is_over_with_a_finding_is_that_finding(job, tmp_path):
    job.train(0, 1)
    job.train(2, loss=float("nan"))
    awaited = wait(tmp_path / "run", "end", timeout_s=10.0)
    assert (awaited.stop, awaited.exit_code, awaited.status) == ("timeout", 1, "fault")


def test_no_run_in_time_is_cannot_tell(tmp_path):
    awaited = wait(tmp_path / "none", "finding", timeout_s=5.0)
    assert (awaited.exit_code, awaited.status, awaited.report) == (3, "cannot-tell", None)
    assert awaited.verdict == f"Cannot tell: no Run began at '{tmp_path / 'none'}' in 5 s."


def test_a_step_has_come_when_every_rank_has_written_it(job, tmp_path):
    job.train(*range(9))
    awaited = wait(tmp_path / "run", "step:9", lambda: job.train(9, ranks=(0,)), lambda: job.train(9, ranks=(1,)))
    assert (awaited.stop, awaited.waited_s) == ("reached", 4.0)
    assert awaited.to_json()["num_steps"] == 10


def test_the_end_of_the_job_ends_waiting(tmp_path):
    write_run(tmp_path / "run", num_ranks=2, num_steps=12)
    until_end, until_finding, until_step = (wait(tmp_path / "run", text) for text in ("end", "finding", "step:50"))
    assert (until_end.stop, until_end.exit_code, until_end.status) == ("reached", 0, "fine")
    assert (until_finding.stop, until_finding.exit_code) == ("ended", 0)
    assert (until_step.stop, until_step.exit_code, until_step.status) == ("ended", 3, "cannot-tell")
    assert until_step.verdict == "Cannot tell: the job ended after 12 steps, before step 50."


def test_what_is_to_confirm_counts_where_it_is_waited_for(tmp_path):
    question = Finding(code="update-lost", severity="confirm", claim="Weights stay as they are.")
    write_run(tmp_path / "run", num_ranks=2, num_steps=12, findings=(question,))
    confirm, finding = (wait(tmp_path / "run", text) for text in ("confirm", "finding"))
    assert (confirm.stop, confirm.exit_code, confirm.status) == ("reached", 1, "confirm")
    assert (finding.stop, finding.exit_code, finding.status) == ("ended", 0, "confirm")


def test_a_run_behind_a_url_is_waited_for(tmp_path):
    write_run(tmp_path / "run", num_ranks=2, num_steps=12, change=spoiled)
    store = fsspec.filesystem("memory")

    def arrive():
        for file in (tmp_path / "run").rglob("*"):
            if file.is_file():
                store.pipe_file(f"/jobs/{file.relative_to(tmp_path)}", file.read_bytes())

    try:
        assert wait("memory://jobs/run", "finding", arrive).exit_code == 1
    finally:
        store.rm("/jobs", recursive=True)


def test_a_place_where_no_run_can_come_is_one_sentence(tmp_path):
    (tmp_path / "file").write_text("x")
    write_run(tmp_path / "runs" / "a", num_ranks=1, num_steps=2)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("x")
    for name in ("file", "runs", "other"):
        with pytest.raises(RunError):
            wait(tmp_path / name, "finding")
    shutil.rmtree(tmp_path / "runs")


def test_a_run_that_cannot_be_read_for_a_while_is_looked_at_again(job, tmp_path):
    manifest = tmp_path / "run" / "manifest.json"
    whole = manifest.read_bytes()
    job.train(0, 1, 2, loss=float("nan"))
    awaited = wait(
        tmp_path / "run",
        "step:3",
        lambda: manifest.write_bytes(whole[: len(whole) // 2]),
        lambda: (manifest.write_bytes(whole), job.train(3)),
    )
    assert (awaited.stop, awaited.why_unread) == ("reached", "")


@pytest.mark.parametrize("text", ["", "findings", "step", "step:", "step:-1", "step:x", "end "])
def test_what_cannot_be_waited_for_is_one_sentence(text):
    with pytest.raises(InputError, match=r"cannot be waited for\. Take finding, confirm, end, or step:N"):
        Until.parse(text)
