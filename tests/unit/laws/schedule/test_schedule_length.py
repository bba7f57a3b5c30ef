"""Schedules against the number of updates that options declare."""

import pytest
from tests.unit.healthy_run import rank_env, write_run
from tests.unit.laws.schedule.test_schedule_passed import rows_of

from trueline.laws.schedule import schedule_length, schedule_passed
from trueline.schema.errors import CannotTell
from trueline.schema.files.job_facts import JobFacts


def run_of(folder, epochs, *, length, configs=None, command=()):
    envs = {0: rank_env(0, 1, facts=JobFacts(configs=configs or {}))}
    return write_run(folder, rows_of(epochs, length=length), envs=envs, command=["train.py", *command])


@pytest.mark.parametrize(
    ("epochs", "length", "claim"),
    [
        (range(0, 16, 2), 120, "by 2 of its steps an update, and is at its end at update 60 of the 120"),
        (range(8), 480, "at the last of the 120 updates that max_steps declares it is at its step 120 of 480."),
    ],
    ids=["once a process", "made for micro-batches"],
)
def test_a_schedule_that_ends_elsewhere_is_to_be_confirmed_early(tmp_path, epochs, length, claim):
    (finding,) = schedule_length.check(
        run_of(tmp_path / "run", epochs, length=length, configs={"a": {"max_steps": 120}})
    )
    assert finding.severity == "confirm"
    assert claim in finding.claim


@pytest.mark.parametrize(
    ("epochs", "length"),
    [(range(8), 120), (range(8), 118), (range(0, 16, 2), 240), ([0] * 4 + [1] * 4, 5)],
    ids=["as many", "an error in counting", "made for processes", "epochs"],
)
def test_schedules_that_end_with_the_training_are_left_alone(tmp_path, epochs, length):
    assert schedule_length.check(run_of(tmp_path / "run", epochs, length=length, command=["--max-steps=120"])) == []


@pytest.mark.parametrize(
    ("epochs", "length", "claims"),
    [
        (
            [0] * 32 + [1] * 32 + [2] * 32,
            96,
            ["made for as many steps as there were updates, 96, and was stepped 2 times"],
        ),
        ([0] * 32 + [1] * 32 + [2] * 32, 200, []),
        ([0] * 32 + [1] * 32 + [2] * 32, 3, []),
    ],
    ids=["for updates", "for more epochs", "for these epochs"],
)
def test_a_schedule_for_all_updates_that_is_stepped_once_an_epoch(tmp_path, epochs, length, claims):
    rows = {key: row | {"epoch": key[0] // 32} for key, row in rows_of(epochs, length=length).items()}
    run = write_run(tmp_path / "run", rows, command=["train.py", "--max-steps=96"])
    findings = schedule_length.check(run)
    assert [claim in finding.claim for claim, finding in zip(claims, findings, strict=True)] == [True] * len(claims)


def test_what_is_passed_is_told_once(tmp_path):
    run = run_of(tmp_path / "run", range(24), length=8, command=["--max_train_steps", "24"])
    assert [len(module.check(run)) for module in (schedule_length, schedule_passed)] == [0, 1]


@pytest.mark.parametrize(
    ("configs", "command", "why"),
    [
        ({"a": {"max_steps": -1, "num_epochs": 3, "max_iters": True}}, ["--max_steps", "many"], "no option in sight"),
        ({"a": {"max_steps": 120}, "b": {"train_iters": 60}}, [], "several numbers"),
    ],
)
def test_where_it_cannot_be_told(tmp_path, configs, command, why):
    with pytest.raises(CannotTell, match=why):
        schedule_length.check(run_of(tmp_path / "run", range(8), length=480, configs=configs, command=command))
