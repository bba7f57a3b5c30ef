"""The report on one Run: which checks ran, which could not, and what is wrong with the Run itself."""

import json
import os
import sys
import types
from dataclasses import replace

import numpy as np
import pytest
from tests.simulated_epochs import HEALTHY, Size, same_batches
from tests.unit.healthy_run import healthy_rows, rank_env, sample_rows, write_run

from trueline.judge import check_run, registry
from trueline.judge.check_run import check
from trueline.schema.errors import RunError
from trueline.schema.files.run_manifest import Manifest
from trueline.schema.finding import Finding
from trueline.schema.judged import Judged
from trueline.schema.law import COMPARISON, SAME_JOB, findings_of, installed_laws
from trueline.store.writer import RunWriter

EXACT = (
    "duplicate-data",
    "gradient-not-reduced",
    "rank-config-differs",
    "reduction-mismatch",
    "replica-drift",
    "rng-streams",
    "sample-repeats",
    "updates-apart",
    "shard-overlap",
    "shard-small",
    "worker-nonfinite",
    "worker-silent",
)
STATISTICAL = (
    "dispersion-high",
    "dispersion-low",
    "token-imbalance",
    "worker-direction-outlier",
    "worker-grad-norm-outlier",
    "worker-loss-outlier",
    "worker-scale",
)
SPIKES = ("grad-spike", "grad-vanishes", "loss-spike")
"""Checks along time, which one worker is enough for, and fewer than 49 steps are not."""

RECORDED = ("grad-explosion", "overflow-origin", "range-saturation")
"""Checks that need recorded steps, which none of these Runs has."""

CODES = tuple(sorted(code for law in installed_laws() for code in law.checks))
NOT_RUN = tuple(code for code in CODES if code not in EXACT + STATISTICAL + SPIKES)
"""Checks of what these Runs do not have: optimizers, losses, forward passes, rollouts, recorded steps."""


def healthy_run(path, *, num_ranks=2, num_steps=16):
    rows = healthy_rows(num_ranks, num_steps)
    epochs = HEALTHY["distributed sampler"](Size(512, num_ranks, 4, 1), np.random.default_rng(0), np.arange(512))
    for key, row in sample_rows(epochs, 4, num_steps=num_steps).items():
        rows[key] |= row
    rng = np.random.default_rng(3)
    for row in rows.values():
        parts = row["loss"] + rng.normal(0, 0.5, 4)
        row |= {"part_losses": parts, "loss": float(parts.mean())}
        row |= {"cosine_others": rng.uniform(-1, 1), "group_cosine_others": rng.uniform(-1, 1, 3)}
    return write_run(path, rows)


def test_every_check_runs_on_a_healthy_run_and_finds_nothing(tmp_path):
    report = check(healthy_run(tmp_path, num_ranks=4, num_steps=60))

    assert {*EXACT, *STATISTICAL, *SPIKES} <= set(report.checks_run)
    # A law that lacks what these Runs do not have says so, and which.
    assert all(
        entry.reason in ("no-data", "one-worker", "by-design", "not-recorded") for entry in report.checks_not_run
    )
    assert {*report.checks_run, *(entry.check for entry in report.checks_not_run)} == set(CODES)
    assert report.notes == ()
    assert report.findings == ()
    assert (report.has_incidents, report.exit_code) == (False, 0)
    assert report.next == (
        "Not looked at: what all ranks share (mask, order, batch, padding). "
        "To look: `trueline run --plan laws -- COMMAND`",
    )


def test_what_is_worth_knowing_begins_with_what_speaks_for_the_cause_and_ends_with_mere_facts():
    def info(code, ranks, **given):
        return Finding(code, "info", f"{code}.", ranks, 0, 20, measured=1.0, **given)

    every = (0, 1, 2, 3)
    findings = (
        Finding("grad-spike", "warning", "A jump.", (2,), 8, 9),
        info("rng-streams", every),
        info("optimizer-detached", every, expected=0.0),
        info("dispersion-high", (1,), expected=1.0),
        info("optimizer-state-stale", every, expected=2.0),
    )
    report = check_run.CheckReport("run", findings, Judged((), every, 4, 100, (0, 99)))
    order = ["optimizer-state-stale", "dispersion-high", "optimizer-detached", "rng-streams"]
    assert [finding.code for finding in report.worth_knowing] == order
    alone = replace(report, findings=findings[1:])
    assert [finding.code for finding in alone.worth_knowing] == [order[1], order[2], order[0], order[3]]


@pytest.mark.parametrize("data", [{}, {"sampler": "RandomSampler"}])
def test_a_trial_of_batches_is_proposed_with_what_it_needs(tmp_path, data):
    rows = healthy_rows(2, 60)
    for row in rows.values():
        row |= {"influence": [0.0, 1.0, *[0.0] * 6], "row_influence": [0.0, 1.0, 1.0, *[0.0] * 12]}
    envs = {rank: rank_env(rank, 2, data=data) for rank in range(2)}
    (line,) = check(write_run(tmp_path, rows, envs=envs)).next
    told = (
        "by the batch: `trueline trial batch -- COMMAND`"
        if data
        else "`trueline trial batch --law gradient -- COMMAND`"
    )
    assert told in line
    assert ("take batches of a torch DataLoader, and none was seen" in line) == (not data)


def test_a_path_is_as_good_as_an_open_run(tmp_path):
    run = healthy_run(tmp_path)
    assert check(tmp_path).to_json() == check(str(tmp_path)).to_json() == check(run).to_json()


def test_the_document_has_the_fields_of_the_contract(tmp_path):
    document = check(healthy_run(tmp_path)).to_json()

    assert list(document) == [
        *("schema", "run", "status", "exit_code", "verdict", "cause", "not_judged", "actions"),
        *("confirm", "facts"),
        *("judged", "incidents"),
        *("findings", "checks_run", "checks_not_run", "next", "notes"),
    ]
    assert document["schema"] == 1
    assert json.loads(json.dumps(document)) == document


def test_errors_come_first_and_make_exit_code_1(tmp_path):
    rows = healthy_rows(2, 10)
    for key, row in sample_rows(same_batches(Size(512, 2, 4, 1), np.random.default_rng(0)), 4, num_steps=10).items():
        rows[key] |= row
    report = check(write_run(tmp_path, rows))

    assert [finding.code for finding in report.findings] == ["duplicate-data"]
    assert report.exit_code == 1


def test_a_run_of_a_few_steps_is_read(tmp_path):
    assert check(healthy_run(tmp_path, num_steps=1)).exit_code == 0


def test_one_worker_runs_what_needs_no_second_and_that_is_enough(tmp_path):
    report = check(healthy_run(tmp_path, num_ranks=1, num_steps=60))

    assert report.checks_run == ("grad-spike", "grad-vanishes", "loss-spike", "sample-repeats", "worker-nonfinite")
    others = [entry for entry in report.checks_not_run if entry.check not in NOT_RUN]
    assert {entry.reason for entry in others} == {"one-worker"}
    assert report.exit_code == 0
    assert report.verdict.line.startswith(
        "No fault found in 60 steps of one process. Comparisons between ranks do not apply."
    )


def test_what_is_found_on_one_worker_is_told(tmp_path):
    rows = healthy_rows(1, 9)
    rows[5, 0]["loss"] = float("nan")
    report = check(write_run(tmp_path, rows))
    assert (report.exit_code, report.verdict.status) == (1, "out")


def test_ranks_that_are_taken_for_a_pipeline_cannot_be_told(tmp_path):
    envs = {rank: rank_env(rank, 4, replica_key=f"stage {rank}", buffer_key=f"stage {rank}") for rank in range(4)}
    run = write_run(tmp_path, healthy_rows(4, 60), envs=envs, adapter="sharded", data_parallel_ranks=[0])
    report = check(run)
    assert len(report.checks_run) <= 4
    assert report.exit_code == 3
    assert report.verdict.line == "Cannot tell: no two of 4 ranks could be compared with each other."


def test_an_empty_run_cannot_be_told(tmp_path):
    report = check(write_run(tmp_path, {}))
    assert (report.checks_run, report.exit_code) == ((), 3)
    assert report.verdict.line == "Cannot tell: no step was recorded."


def test_samples_alone_are_not_enough(tmp_path):
    rows = {(step, rank): {"epoch": 0, "sample_digests": [2 * step + rank]} for step in range(60) for rank in range(2)}
    report = check(write_run(tmp_path, rows))
    assert "duplicate-data" in report.checks_run
    assert report.exit_code == 3
    assert "Not tested: averaging of gradients" in report.verdict.line


def test_every_check_belongs_to_a_question_and_gives_its_reason(tmp_path):
    assert all(each.question != "other" for each in registry.installed_checks())
    report = check(healthy_run(tmp_path, num_ranks=2, num_steps=6))
    reason = {entry.check: entry.reason for entry in report.checks_not_run}
    assert {code: reason[code] for code in RECORDED} == dict.fromkeys(RECORDED, "not-recorded")
    assert reason["worker-loss-outlier"] == reason["loss-spike"] == "too-few-steps"


def test_recorded_steps_that_were_asked_for_and_are_not_there_are_a_lack(tmp_path):
    report = check(write_run(tmp_path, healthy_rows(2, 6), plan={"preset": "mix"}))
    assert {entry.reason for entry in report.checks_not_run if entry.check in RECORDED} == {"no-data"}


def test_a_worker_that_stopped_before_the_others_is_noted(tmp_path):
    rows = {key: row for key, row in healthy_rows(3, 9).items() if key[1] != 2 or key[0] < 4}
    report = check(write_run(tmp_path, rows))
    assert report.notes == ("Rank 2 has rows up to step 3 only, others go on to step 8.",)


def left_open(path, num_steps):
    """A Run whose rank 1 is still written by this process; a child process left rank 0 without a word."""
    for rank, steps in enumerate(num_steps):
        if rank == 0 and os.fork():
            os.wait()
            continue
        writer = RunWriter(path, rank=rank)
        manifest = Manifest(world_size=2, data_parallel_ranks=[0, 1], adapter="ddp")
        writer.describe(manifest if rank == 0 else None, rank_env(rank, 2))
        rows = healthy_rows(2, steps)
        for step in range(steps):
            writer.write({"step": step, **rows[step, rank]})
        if rank == 0:
            os._exit(0)
    return writer


@pytest.mark.parametrize("ahead_ns", [0, 3_600_000_000_000, -3_600_000_000_000])
def test_what_ended_the_training_is_told_of_the_rank_that_raised_first(tmp_path, ahead_ns):
    """Also where the clock of its machine is an hour ahead of the others."""
    ends = {
        0: ("RuntimeError at train.py:9", 200_000),
        1: ("ValueError at train.py:5", 100_000 + ahead_ns),
        2: ("", 0),
        3: ("RuntimeError at train.py:9", 210_000),
    }
    rows = healthy_rows(4, 6)
    for rank, (raised, raised_ns) in ends.items():
        writer = RunWriter(tmp_path, rank=rank)
        manifest = Manifest(world_size=4, data_parallel_ranks=[0, 1, 2, 3], adapter="ddp")
        writer.describe(manifest if rank == 0 else None, rank_env(rank, 4, raised=raised, raised_ns=raised_ns))
        for step in range(6):
            writer.write({"step": step, **rows[step, rank], "time_ns": 1000 * step + (ahead_ns if rank == 1 else 0)})
        writer.close()
    report = check(tmp_path)
    said = (
        "ank 1 raised ValueError at train.py:5 after step 5; ranks 0 and 3 raised RuntimeError at train.py:9 after "
        "step 5; rank 2 ended without an exception."
    )
    assert report.notes[0] == f"R{said}"
    assert report.verdict.line == f"Fault found: the job died: r{said.removesuffix('.')}; 1 finding."
    (death,) = (finding for finding in report.findings if finding.severity == "error")
    assert (death.code, death.claim, death.ranks, death.step_first) == ("job-died", f"The job died: r{said}", (1,), 5)
    assert report.exit_code == 1


@pytest.mark.parametrize("raised", ["KeyboardInterrupt at train.py:5", "TrainingStopped at train.py:5"])
def test_a_job_that_somebody_ended_did_not_die(tmp_path, raised):
    rows = healthy_rows(2, 12)
    for rank, (text, raised_ns) in enumerate([(raised, 100), ("RuntimeError at train.py:9", 200)]):
        writer = RunWriter(tmp_path, rank=rank)
        manifest = Manifest(world_size=2, data_parallel_ranks=[0, 1], adapter="ddp")
        writer.describe(manifest if rank == 0 else None, rank_env(rank, 2, raised=text, raised_ns=raised_ns))
        for step in range(12):
            writer.write({"step": step, **rows[step, rank]})
        writer.close()
    report = check(tmp_path)
    assert not report.incidents
    assert report.notes[0].startswith(f"Rank 0 raised {raised} after step 11; rank 1 raised RuntimeError")


def test_a_rank_that_is_killed_beside_one_that_ends_well_is_a_death(tmp_path):
    left_open(tmp_path, (12, 12)).close()
    report = check(tmp_path)
    said = "rank 0 did not close this Run (last step 11): killed, or ended without a chance to close it"
    assert report.verdict.line == f"Fault found: the job died: {said}; 1 finding."
    assert (report.exit_code, report.incidents[0].ranks) == (1, (0,))


def test_a_job_that_is_killed_as_a_whole_is_said_to_have_been_ended_and_is_no_fault(tmp_path):
    if os.fork() == 0:
        left_open(tmp_path, (12, 12))
        os._exit(0)
    os.wait()
    report = check(tmp_path)
    assert not report.incidents
    assert ", before the job was killed, or ended without closing its Run" in report.verdict.line


def test_killed_ranks_and_running_ones_are_noted_with_their_last_step(tmp_path):
    writer = left_open(tmp_path, (6, 8))
    try:
        report = check(tmp_path)
    finally:
        writer.close()
    assert report.notes[:2] == (
        "Rank 0 did not close this Run (last step 5): killed, or ended without a chance to close it.",
        "Rank 1 did not close this Run (last step 7): the job may still be running.",
    )
    assert report.judged.unclosed == (0, 1)
    assert report.verdict.line.startswith("No fault found so far in 8 steps of 2 ranks")

    (tmp_path / "journal" / ".rank-00000-owner.tmp").unlink()
    (note,) = check(tmp_path).notes
    assert note == "Rank 0 did not close this Run (last step 5): killed, or still running."


def test_a_worker_that_is_missing_is_noted(tmp_path):
    envs = {rank: rank_env(rank, 3) for rank in range(2)}
    report = check(write_run(tmp_path, healthy_rows(2, 4), envs=envs, world_size=3))
    assert any(note.startswith("rank 2: it wrote nothing") for note in report.notes)


def test_notes_of_the_recorder_are_passed_on(tmp_path):
    report = check(write_run(tmp_path, healthy_rows(2, 2), notes=["buckets could not be seen"]))
    assert report.notes == ("buckets could not be seen",)


def test_live_findings_are_included(tmp_path):
    writer = RunWriter(tmp_path, rank=0)
    writer.describe(None, rank_env(0, 1))
    writer.write(Finding(code="watch-degraded", severity="warning", claim="Something stopped."))
    writer.close()
    report = check(tmp_path)

    assert [finding.code for finding in report.findings] == ["watch-degraded"]
    assert report.exit_code == 1


def test_what_is_no_run_is_an_error(tmp_path):
    with pytest.raises(RunError):
        check(tmp_path / "nothing")


def test_a_check_that_fails_leaves_the_others_alone(tmp_path, monkeypatch):
    def broken(run):
        raise ZeroDivisionError("of mine")

    checks = [registry.Check("mine", (), "", broken), *registry.installed_checks()]
    monkeypatch.setattr(check_run, "installed_checks", lambda: checks)
    report = check(healthy_run(tmp_path))

    assert set(EXACT) <= set(report.checks_run)
    (mine,) = (entry for entry in report.checks_not_run if entry.check == "mine")
    assert "ZeroDivisionError: of mine" in mine.why
    assert (mine.reason, report.exit_code) == ("failed", 3)


def test_laws_name_every_check():
    assert tuple(each.code for each in registry.installed_checks()) == CODES
    assert all(each.summary.endswith(".") for each in registry.installed_checks())


def _not_there():
    raise ModuleNotFoundError("No module named 'gone'")


BROKEN = {
    "It cannot be loaded from 'mine:check': ModuleNotFoundError: No module named 'gone'": _not_there,
    "It cannot be loaded from 'mine:check': SystemExit: 3": lambda: sys.exit(3),
    "json is no check: it lacks CODE, NEEDS, check": lambda: json,
    "It has the QUESTION 'weather'": lambda: types.SimpleNamespace(
        CODE="mine", NEEDS=(), QUESTION="weather", check=list
    ),
}


@pytest.mark.parametrize(("says", "load"), BROKEN.items(), ids=["missing", "ends", "no check", "no question"])
def test_a_check_that_cannot_be_loaded_is_named_and_the_others_run(tmp_path, monkeypatch, says, load):
    run = healthy_run(tmp_path)
    whole, ours = check(run), registry.entry_points(group=registry.GROUP)
    mine = types.SimpleNamespace(name="mine", value="mine:check", load=load)
    monkeypatch.setattr(registry, "entry_points", lambda group: [*ours, mine])
    report = check(run)

    assert report.checks_run == whole.checks_run
    (entry,) = (entry for entry in report.checks_not_run if entry.check == "mine")
    assert (entry.why.startswith(says), entry.reason, entry.why[-1] != ".") == (True, "failed", True)
    assert (whole.exit_code, report.exit_code, report.judged.enough) == (0, 3, False)
    assert report.verdict.line == (
        "Cannot tell: mine could not be run, and nobody looked at what it looks for; the other checks found nothing in "
        "16 steps of 2 ranks."
    )


def test_a_comparison_that_meets_damage_leaves_the_other_checks_their_say(tmp_path, monkeypatch):
    def damaged(run, ref):
        raise RunError("a value is damaged")

    monkeypatch.setattr("trueline.comparison.compare.compare", damaged)
    run = healthy_run(tmp_path)
    report = check(run, ref=run)
    assert {entry.why for entry in report.checks_not_run if entry.check in findings_of(COMPARISON)} == {
        "a value is damaged"
    }
    assert set(report.checks_run) - set(findings_of(SAME_JOB)) == set(check(run).checks_run)
