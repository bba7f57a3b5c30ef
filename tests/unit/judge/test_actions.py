"""What to do next is a command that runs as it is printed."""

import os
import shlex

import pytest

from trueline.judge.actions import Commands, actions_of, record_step, split_at_command

JOB = ("torchrun", "--nproc-per-node", "2", "train.py", "--name", "a b")


def test_the_command_that_records_a_step_has_the_job_and_a_place_for_the_run():
    (action,) = actions_of([Commands("runs/nan", JOB).filled(f"Record it: {record_step(19)}")])
    said = "trueline run --plan mix --set steps=19:20 --out runs/nan-mix-19 -- torchrun --nproc-per-node 2 train.py"
    assert action.argv == (*shlex.split(said), "--name", "a b")
    assert action.say == f"Record it: `{said} --name 'a b'`"
    assert (action.runs_job, action.cost) == (True, "the job once")


def test_a_place_that_is_taken_is_not_proposed(tmp_path):
    run = str(tmp_path / "exp 1")
    for name in ("exp 1-mix-3", "exp 1-mix-3-2"):
        os.mkdir(tmp_path / name)
    (action,) = actions_of([Commands(run, JOB).filled(record_step(3))])
    assert action.argv is not None
    assert action.argv[action.argv.index("--out") + 1] == f"{run}-mix-3-3"


@pytest.mark.parametrize("job", [(), ("torchrun", "train.py", "--token", "<redacted>")])
def test_a_command_of_which_a_word_is_not_known_is_left_to_a_person(job):
    (action,) = actions_of([Commands("runs/a", job).filled(record_step(3))])
    assert (action.argv, action.runs_job) == (None, False)


def test_what_only_reads_the_run_is_told_from_what_runs_the_job():
    fill = Commands("my run", JOB).filled
    reads, asks, walks = actions_of(
        [fill("Look: `trueline trial op RUN fwd/div#0`"), fill("Try: `trueline trial knobs RUN -- COMMAND`"), "Walk."]
    )
    assert reads.argv == ("trueline", "trial", "op", "my run", "fwd/div#0")
    assert (reads.runs_job, reads.cost) == (False, "reads the Run")
    assert asks.argv == ("trueline", "trial", "knobs", "my run", "--", *JOB)
    assert (asks.runs_job, asks.cost) == (True, "about 12 times the job")
    assert (walks.argv, walks.cost) == (None, "")


def test_a_command_of_a_job_is_cut_out_of_its_line_and_others_stay():
    line = Commands("runs/a", JOB).filled(f"Record it: {record_step(1)}. Then look.")
    before, command, behind = split_at_command(line)
    assert (before, behind) == ("Record it:", "Then look.")
    assert shlex.split(command)[-2:] == ["--name", "a b"]
    assert split_at_command("More: `trueline explain x`") == ("More: `trueline explain x`", "", "")
