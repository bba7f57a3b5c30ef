"""Several starts of one job in one Run: the later one's steps win, and nothing else of the earlier is lost."""

from __future__ import annotations

import json

import numpy as np
import pytest

from trueline.schema.columns.records import StackRecord, StepRecords
from trueline.schema.errors import ResumeError
from trueline.schema.files.run_manifest import Attempt, Manifest, PlanRevision, RankEnv
from trueline.schema.files.start import Job, Start
from trueline.schema.finding import Finding
from trueline.store.attempts import next_start
from trueline.store.reader import Run
from trueline.store.writer import RunWriter

JOB = Job(world_size=2, adapter="ddp", params=("a", "b"), plan={"preset": "workers"}, updates=0)


def begin(path, job=JOB, *, seal_steps=3):
    """The writers of both ranks, as one start of ``job`` opens them."""
    start = next_start(path, job, rank=0)
    writers = [RunWriter(path, rank=rank, seal_steps=seal_steps, start=start) for rank in range(2)]
    first = Attempt(step=start.step, started_at="then", updates=job.updates, plan=job.plan)
    manifest = Manifest(world_size=2, adapter="ddp", started_at="then", plan=job.plan, attempts=[first])
    for rank, writer in enumerate(writers):
        writer.describe((start.manifest or manifest) if rank == 0 else None, RankEnv(rank=rank, params=["a", "b"]))
    return writers, start


def write(writers, steps, loss):
    for step in steps:
        for rank, writer in enumerate(writers):
            writer.write({"step": step, "loss": loss + step + 0.5 * rank})


def kill(writers):
    """What a SIGKILL leaves: nothing is sealed, journals stay."""
    for writer in writers:
        writer._rows._close_journal()
        writer._closed = True


def resumed(path, *, job_step, steps, first=range(10), dies=True):
    """A Run of two starts; their losses differ by 100. Its writers are closed, or the first was killed."""
    writers, _ = begin(path)
    write(writers, first, 0.0)
    for writer in writers:
        writer.write({"step": 8, "sketch": [1.0, 2.0]})
    kill(writers) if dies else [writer.close() for writer in writers]
    writers, start = begin(path, Job(**{**vars(JOB), "step": job_step}))
    write(writers, steps, 100.0)
    return writers, start


@pytest.mark.parametrize("dies", [True, False])
@pytest.mark.parametrize("closes", [True, False])
def test_from_its_first_step_on_the_run_belongs_to_the_later_start(tmp_path, dies, closes):
    writers, start = resumed(tmp_path, job_step=6, steps=range(6, 8), dies=dies)
    assert (start.attempt, start.step) == (1, 6)
    if closes:
        for writer in writers:
            writer.close()
    run = Run(tmp_path)
    assert run.problems == []
    (note,) = run.manifest.notes
    assert note.endswith(
        "goes on from step 6; what the start before recorded from there on, up to step 9, is left out."
    )
    assert run.steps.tolist() == list(range(8))
    assert run.restarts == [6]
    losses, measured = run.pivot("loss")
    assert measured.all()
    assert losses[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 106, 107]
    assert run.lists("sketch") == {}
    assert run.unclosed == ([] if closes else [0, 1])


def test_what_the_earlier_start_measured_is_not_mixed_into_a_repeated_step(tmp_path):
    writers, _ = resumed(tmp_path, job_step=6, steps=range(6, 9))
    run = Run(tmp_path)
    assert run.steps.tolist() == list(range(9))
    assert run.lists("sketch") == {}
    assert run.lists("sketch", steps=[8]) == {}
    assert run.column("sketch").null_count == 18
    for writer in writers:
        writer.close()
    assert Run(tmp_path).lists("sketch", steps=[8]) == {}


def test_lists_of_steps_that_were_not_repeated_stay(tmp_path):
    resumed(tmp_path, job_step=9, steps=range(9, 12))
    run = Run(tmp_path)
    assert {key: values.tolist() for key, values in run.lists("sketch").items()} == {
        (8, 0): [1.0, 2.0],
        (8, 1): [1.0, 2.0],
    }
    assert run.stack("sketch", steps=[8, 9])[1].tolist() == [[True, True], [False, False]]


def test_a_start_that_finishes_no_step_hides_nothing(tmp_path):
    writers, start = resumed(tmp_path, job_step=4, steps=[])
    kill(writers)
    assert Run(tmp_path).steps.tolist() == list(range(10))
    assert Run(tmp_path).restarts == []
    writers, again = begin(tmp_path, Job(**{**vars(JOB), "step": 5}))
    assert (start.attempt, again.attempt) == (1, 2)
    write(writers, [5], 100.0)
    assert Run(tmp_path).steps.tolist() == list(range(6))
    assert Run(tmp_path).restarts == [5]


def test_a_start_that_goes_back_further_replaces_one_that_did_not(tmp_path):
    writers, _ = resumed(tmp_path, job_step=8, steps=range(8, 12))
    kill(writers)
    writers, _ = begin(tmp_path, Job(**{**vars(JOB), "step": 3}))
    write(writers, [3], 200.0)
    run = Run(tmp_path)
    assert run.restarts == [3]
    assert run.pivot("loss")[0][:, 0].tolist() == [0, 1, 2, 203]


@pytest.mark.parametrize(
    ("job", "step"),
    [
        ({"step": 2, "updates": 7}, 2),
        ({"step": None, "updates": 7}, 7),
        ({"step": None, "updates": 0}, 0),
        ({"step": None, "updates": None}, 10),
    ],
)
def test_steps_go_on_where_the_user_says_or_the_optimizer_counts_or_after_the_last(tmp_path, job, step):
    writers, first = begin(tmp_path)
    assert first == Start()
    write(writers, range(10), 0.0)
    kill(writers)
    assert next_start(tmp_path, Job(**{**vars(JOB), **job}), rank=0).step == step


def test_an_optimizer_that_had_counted_before_the_run_began_counts_from_there(tmp_path):
    writers, _ = begin(tmp_path, Job(**{**vars(JOB), "updates": 5000}))
    write(writers, range(10), 0.0)
    kill(writers)
    assert next_start(tmp_path, Job(**{**vars(JOB), "updates": 5008}), rank=0).step == 8
    assert next_start(tmp_path, Job(**{**vars(JOB), "updates": 4}), rank=0).step == 10


@pytest.mark.parametrize(
    ("other", "says"),
    [
        ({"world_size": 4}, "has workers 2, and this start of the job has 4"),
        ({"adapter": "fsdp2"}, "has adapter ddp, and this start of the job has fsdp2"),
        ({"params": ("a", "c", "d")}, "watched 2 parameters, and this start of the job has 3: 'b' is only in the Run"),
        ({"params": ("a", "b", "d")}, "'d' is only in this model"),
    ],
)
def test_the_run_of_another_job_is_left_alone(tmp_path, other, says):
    kill(begin(tmp_path)[0])
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(ResumeError, match=says):
        next_start(tmp_path, Job(**{**vars(JOB), **other}), rank=0)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before


def test_what_is_no_recorded_run_is_left_alone(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("keep", encoding="utf-8")
    with pytest.raises(ResumeError, match="is not a Run"):
        next_start(tmp_path / "thesis", JOB, rank=0)
    with pytest.raises(ResumeError, match="is a file"):
        next_start(tmp_path / "thesis" / "chapter.tex", JOB, rank=0)
    writers, _ = begin(tmp_path / "imported")
    writers[0].describe(Manifest(world_size=2, source={"format": "msprobe"}), RankEnv())
    with pytest.raises(ResumeError, match="was imported"):
        next_start(tmp_path / "imported", JOB, rank=0)


def test_recorded_steps_and_their_call_stacks_are_those_of_the_start_that_made_them(tmp_path):
    def record(writers, step, name, frames):
        writers[0].write(StackRecord(0, frames))
        columns = {"phase": ["fwd"], "name": [name], "call": [0], "slot": ["out0"], "stack": [0]}
        writers[0].write(StepRecords(step, columns, np.empty(0, np.int32)))
        writers[0]._records.drain()

    writers, _ = begin(tmp_path)
    write(writers, range(6), 0.0)
    for step in (2, 4):
        record(writers, step, f"first.{step}", ("first.py:1 f",))
    kill(writers)
    writers, _ = begin(tmp_path, Job(**{**vars(JOB), "step": 3}))
    write(writers, [3], 100.0)
    record(writers, 3, "second.3", ("second.py:1 f",))
    for _ in range(2):
        run = Run(tmp_path)
        rows = run.records(columns=["step", "name", "stack"]).to_pylist()
        assert [(row["step"], row["name"]) for row in rows] == [(2, "first.2"), (3, "second.3")]
        assert [run.stack_frames(0, row["stack"]) for row in rows] == [("first.py:1 f",), ("second.py:1 f",)]
        assert run.problems == []
        for writer in writers:
            writer.close()


def test_the_plan_of_each_step_is_the_one_that_was_in_force(tmp_path):
    writers, _ = begin(tmp_path)
    write(writers, range(10), 0.0)
    manifest = Run(tmp_path).manifest
    plans = [PlanRevision(revision=n, step=step, plan={"every": n}) for n, step in ((1, 4), (2, 8))]
    writers[0].describe(manifest.model_copy(update={"plans": plans}), RankEnv(params=["a", "b"]))
    kill(writers)
    start = next_start(tmp_path, Job(**{**vars(JOB), "step": 6}), rank=0)
    assert start.keeps_plan
    assert start.revision == 3
    assert [start.manifest.plan_at(step) for step in (0, 4, 6)] == [JOB.plan, {"every": 1}, JOB.plan]
    assert not next_start(tmp_path, Job(**{**vars(JOB), "plan": {"every": 9}}), rank=0).keeps_plan


def test_a_line_that_was_torn_off_does_not_take_the_next_finding_with_it(tmp_path):
    writers, _ = begin(tmp_path)
    write(writers, [0], 0.0)
    writers[0].write(Finding(code="one", severity="info", claim="One."))
    kill(writers)
    with (tmp_path / "findings.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"code": "tw')
    writers, _ = begin(tmp_path)
    writers[0].write(Finding(code="three", severity="info", claim="Three."))
    assert [finding.code for finding in Run(tmp_path).live_findings] == ["one", "three"]
    lines = (tmp_path / "findings.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["code"] for line in lines[::2]] == ["one", "three"]


def test_a_torn_or_sealed_journal_is_taken_over_once(tmp_path):
    writers, _ = begin(tmp_path, seal_steps=100)
    write(writers, range(5), 0.0)
    kill(writers)
    journal = tmp_path / "journal" / "rank-00000.tlj"
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-7])
    begin(tmp_path)
    assert Run(tmp_path).pivot("loss")[1].tolist() == [[True, True]] * 4 + [[False, True]]
    journal.write_bytes(whole)  # as if the process had died between sealing it and emptying it
    begin(tmp_path)
    assert len(list((tmp_path / "workers").glob("part-r00000-*"))) == 1


def test_a_start_that_was_killed_as_it_began_is_gone_on_with(tmp_path, monkeypatch):
    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("trueline.store.writer.TableWriter", die)
        with pytest.raises(KeyboardInterrupt):
            RunWriter(tmp_path, rank=0)
    writers, start = begin(tmp_path)
    write(writers, [0], 0.0)
    assert (start.attempt, start.step) == (1, 0)
    assert Run(tmp_path).steps.tolist() == [0]


def test_the_manifest_is_there_before_anything_else(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(
        "trueline.store.writer.replace_file", lambda path, data: seen.append(sorted(tmp_path.iterdir()))
    )
    RunWriter(tmp_path, rank=0)
    assert seen == [[]]
