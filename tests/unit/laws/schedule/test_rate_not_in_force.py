"""The learning rate that a command holds, against those of the updates."""

import json

import numpy as np
import pytest
from tests.unit.healthy_run import write_run, write_starts

from trueline.laws.schedule import rate_not_in_force
from trueline.schema.errors import CannotTell


def rows_of(rates, *, first=0, groups=None, num_ranks=1, samples=4, micros=1):
    """Updates with these learning rates of one group, whose settings are ``groups`` at the first."""
    facts = {"groups": {"0": {"lr": rates[0]} if groups is None else groups}}
    rows = {
        (first + step, rank): {
            "lr": [rate] if np.isscalar(rate) else rate,
            "num_micro": micros,
            "sample_digests": np.arange(1, 1 + samples * micros, dtype=np.uint64),
        }
        for step, rate in enumerate(rates)
        for rank in range(num_ranks)
    }
    for rank in range(num_ranks):
        rows[first, rank]["update_facts"] = json.dumps(facts)
    return rows


def found(folder, command, rates, **settings):
    run = write_run(folder, rows_of(rates, **settings), command=["train.py", *command])
    return rate_not_in_force.check(run)


@pytest.mark.parametrize(
    "command",
    [["--lr", "0.0005"], ["--learning_rate=5e-4"], ["--learning-rate", "5e-4"], ["optim.lr=0.0005"], ["+lr=0.0005"],
     ["-lr", "0.0005"], ["--optimizer.lr", "0.0005"], ["--resume", "--lr", "5e-4", "--lr_scheduler", "cosine"]],
)  # fmt: skip
def test_a_rate_that_no_update_has_is_to_be_confirmed(tmp_path, command):
    (finding,) = found(tmp_path / "run", command, [0.013] * 8)
    assert (finding.severity, finding.measured, finding.expected) == ("confirm", 0.013, 0.0005)
    assert finding.evidence["kind"] == "not-read"
    assert found(tmp_path / "same", command, [0.0005] * 8) == []


@pytest.mark.parametrize(
    ("rates", "settings"),
    [
        ([0.0, 0.0002, 0.0004], {"groups": {"lr": 0.0, "initial_lr": 0.001}}),
        ([0.00004, 0.0001], {"groups": {"lr": 0.00004, "initial_lr": 0.00004, "max_lr": 0.001}}),
        ([0.00004, 0.001, 0.0005], {"groups": {"lr": 0.00004, "initial_lr": 0.00004}}),
        ([0.002] * 4, {"num_ranks": 2}),
        ([0.001 * 2**0.5] * 4, {"num_ranks": 2}),
        ([0.00025] * 4, {"micros": 4}),
        ([0.001 * 32 / 256] * 4, {"num_ranks": 2, "samples": 8, "micros": 2}),
        ([[0.01, 0.001]] * 4, {"groups": {"lr": 0.01}}),
    ],
    ids=["warm-up", "one cycle", "a peak", "times ranks", "times their root", "by micro-batches", "by samples over 256",
         "one group of two"],
)  # fmt: skip
def test_rates_that_follow_the_command_are_left_alone(tmp_path, rates, settings):
    assert found(tmp_path / "run", ["--lr", "0.001"], rates, **settings) == []


def restarted(folder, *, before, after, command=("--resume", "--lr", "0.0005"), groups=None):
    starts = [(0, rows_of([before] * 4)), (4, rows_of([after] * 4, first=4, groups=groups))]
    return rate_not_in_force.check(write_starts(folder, starts, command=["train.py", *command]))


def test_the_rate_of_the_start_before_was_loaded(tmp_path):
    (finding,) = restarted(tmp_path / "run", before=0.013, after=0.013)
    assert (finding.severity, finding.evidence["kind"], finding.step_first) == ("warning", "loaded", 4)
    assert finding.claim == (
        "The command has --lr 0.0005, and all 4 updates since step 4 have the learning rate 0.013, as the start before "
        "had."
    )
    assert restarted(tmp_path / "set", before=0.013, after=0.0005) == []
    (other,) = restarted(tmp_path / "other", before=0.013, after=0.07)
    assert (other.severity, other.evidence["kind"]) == ("confirm", "not-read")


def test_a_scheduler_may_begin_from_the_loaded_rate(tmp_path):
    (finding,) = restarted(tmp_path / "run", before=0.013, after=0.012, groups={"lr": 0.012, "initial_lr": 0.013})
    assert finding.evidence["kind"] == "loaded"


@pytest.mark.parametrize(
    ("command", "rates", "settings", "why"),
    [
        ([], [0.1] * 4, {}, "holds no learning rate"),
        (["--lr", "fast"], [0.1] * 4, {}, "holds no learning rate"),
        (["lr", "0.1"], [0.2] * 4, {}, "holds no learning rate"),
        (["--actor.lr", "0.1", "--critic.lr", "0.2"], [0.3] * 4, {}, "several learning rates"),
        (["--lr", "0.1"], [0.01, 0.02, 0.03], {}, "without a schedule"),
    ],
)
def test_where_it_cannot_be_told(tmp_path, command, rates, settings, why):
    with pytest.raises(CannotTell, match=why):
        found(tmp_path / "run", command, rates, **settings)
