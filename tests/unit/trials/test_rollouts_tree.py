"""`trial rl` on jobs that exist in numbers only: what each experiment takes away, and what cannot be reached."""

import random

import pytest

from trueline.trials.frame.runs import Runs, Way
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.rollouts.experiments import experiments, reached, with_option
from trueline.trials.rollouts.tree import RolloutTrial

EVERY = experiments()
NAMES = [each.name for each in EVERY]


def tried(folder, gone, *, reach=NAMES, fails=(), rate=1.0, base=1.0, max_runs=200):
    """The answer where the finding is gone in the experiments ``gone``, and runs of ``fails`` tell nothing."""
    stream = random.Random(0)

    def engine(way, place):
        if way.arm in fails:
            return Outcome(None, "it ended with status 1")
        return Outcome(way.arm not in gone and stream.random() < (base if way.arm == "base" else rate))

    runs = Runs("rl", folder / "t", engine, {}, max_runs)
    return RolloutTrial(runs, "?", EVERY, {name: Way(name) for name in reach}).answer()


@pytest.mark.parametrize("rate", [1.0, 0.6])
@pytest.mark.parametrize(
    ("gone", "cause", "arms"),
    [
        (("lr-zero",), "weights", ["lr-zero"]),
        (("one-token", "no-cache"), "cache", ["lr-zero", "one-token", "no-cache"]),
        (("one-token",), "decoding", ["lr-zero", "one-token", "no-cache"]),
        (("one-prompt",), "batch", ["lr-zero", "one-token", "one-prompt"]),
        (("float32",), "precision", ["lr-zero", "one-token", "one-prompt", "float32"]),
        ((), "model", ["lr-zero", "one-token", "one-prompt", "float32"]),
    ],
)
def test_experiments_leave_one_cause_and_none_is_run_that_tells_nothing(tmp_path, gone, cause, arms, rate):
    found = tried(tmp_path, gone, rate=rate, base=rate)
    assert (found.answer, found.credible) == ("confirmed", (cause,)), found
    assert [arm.name for arm in found.arms] == ["base", *arms]
    assert found.says[0].startswith(f"It is {cause}: ")
    assert found.next


def test_what_is_not_reached_leaves_several_and_says_how_to_go_on(tmp_path):
    found = tried(tmp_path, ("one-token",), reach=["lr-zero", "one-token"])
    assert (found.answer, found.credible) == ("undecided", ("cache", "decoding"))
    assert found.next == ("Say how the engine keeps no keys and values: --way no-cache=OPTION=VALUE.",)


def test_an_experiment_that_does_not_run_is_told_and_counts_for_nothing(tmp_path):
    found = tried(tmp_path, ("lr-zero",), fails=("lr-zero",))
    assert (found.answer, found.credible) == ("undecided", ("weights", "model"))
    assert "There is no outcome where the learning rate is 0: it ended with status 1." in found.says


def test_a_job_that_does_not_show_it_is_undecided(tmp_path):
    found = tried(tmp_path, (), base=0.0)
    assert (found.answer, found.runs) == ("undecided", 7)


def test_a_trial_goes_on_where_it_was_left(tmp_path):
    assert tried(tmp_path, (), max_runs=5).answer == "undecided"
    assert tried(tmp_path, (), max_runs=200).credible == ("model",)


@pytest.mark.parametrize(
    ("command", "option", "value", "now"),
    [
        (["t.py", "--lr", "1e-5"], "--lr", "0", ["t.py", "--lr", "0"]),
        (["t.py", "--lr=1e-5"], "--lr", "0", ["t.py", "--lr=0"]),
        (["t.py", "--lr-decay", "2"], "--lr", "0", None),
        (["t.py", "--lr"], "--lr", "0", None),
        (
            ["-m", "verl", "data.batch=8"],
            "data.max_response_length",
            "1",
            ["-m", "verl", "data.batch=8", "data.max_response_length=1"],
        ),
        (
            ["-m", "verl", "+data.max_response_length=9"],
            "data.max_response_length",
            "1",
            ["-m", "verl", "+data.max_response_length=1"],
        ),
        (["-m", "verl"], "data.max_response_length", "1", None),
    ],
)
def test_an_option_of_the_command_gets_its_value(command, option, value, now):
    assert with_option(command, option, value) == now


def test_a_way_of_the_user_comes_before_those_that_are_known():
    found = reached(["t.py", "--lr", "1", "--tokens=9"], ["one-token=--tokens=1", "float32=DTYPE=float32"], EVERY)
    assert found == {
        "lr-zero": (["t.py", "--lr", "0", "--tokens=9"], {}),
        "one-token": (["t.py", "--lr", "1", "--tokens=1"], {}),
        "float32": (["t.py", "--lr", "1", "--tokens=9"], {"DTYPE": "float32"}),
    }
