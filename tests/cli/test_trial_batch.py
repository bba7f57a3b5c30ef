"""`trueline trial batch` on jobs that know nothing of it: faults and their healthy twins, and what cannot be told."""

import json
from pathlib import Path

import pytest
from tests.cli import in_process

from trueline.trials.batch import gradient

JOB = Path(__file__).parents[1] / "trial_job.py"
TWO = 'export STORE=$(mktemp -u) WORLD_SIZE=2; RANK=1 "$0" "$@" & RANK=0 "$0" "$@"; ended=$?; wait; exit $ended'


@pytest.fixture
def trial(python, alike, tmp_path, monkeypatch, capsys):
    """The command in this process, whose engine starts the ranks, or else what the command has in front."""
    monkeypatch.chdir(tmp_path)

    def call(*words, ranks=1, laws="permute,halves,padding", launcher=()):
        monkeypatch.setattr(gradient, "STEPS", {"along": gradient.STEPS["along"]})  # half of the runs
        monkeypatch.setattr(alike, "world_size", ranks)
        command = (*launcher, python, str(JOB), *words)
        asked = ("trial", "batch", "--json", "--law", laws, "--", *command)
        code, out, err = in_process.trueline(monkeypatch, capsys, *asked)
        document = json.loads(out) if code in (0, 3) else {}
        return code, document, err

    return call


FAULTS = [  # on two ranks under DDP, the sum under FSDP2
    ("broadcast", 1, "halves"),
    ("broadcast", 2, "halves"),
    ("sum", 1, "halves"),
    ("sum", 2, "halves"),
    ("softmax", 1, "halves"),
    ("reshaped", 2, "permute"),
    ("recurrence", 1, "permute"),
    ("last-row", 1, "permute"),
    ("padding-counts", 1, "padding"),
    ("pooled", 2, "padding"),
    ("checkpointed", 1, "padding"),
]


@pytest.mark.in_turn
@pytest.mark.parametrize(("kind", "ranks", "law"), FAULTS)
def test_a_fault_that_all_ranks_share_is_confirmed_and_its_twin_excluded(trial, tmp_path, kind, ranks, law):
    code, found, _ = trial(kind, "faulty", ranks=ranks, laws=law)
    assert (code, found["answer"]) == (0, "confirmed"), found
    assert found["says"][0].startswith(law)
    assert ("add up" in found["says"][0]) == (kind == "sum")
    assert found["next"]

    code, sound, _ = trial(kind, ranks=ranks, laws=law)
    assert (code, sound["answer"]) == (0, "excluded"), sound
    assert not any(arm["showed"] for arm in sound["arms"])
    assert not (tmp_path / "ended").exists(), "nothing that a job does at its end is done"


@pytest.mark.in_turn
def test_a_backward_that_lacks_a_term_is_confirmed_with_what_is_in_front_of_it(trial):
    code, found, _ = trial("own-backward", "faulty", laws="gradient")
    assert (code, found["answer"]) == (0, "confirmed"), found
    assert "It is wrong in" in found["says"][0]
    assert "over_time" not in found["says"][0], "which is behind it"
    assert {"name": "base", "runs": 2, "showed": 0} in found["arms"]
    assert any(arm["name"] == "moved" and arm["showed"] for arm in found["arms"])


def test_ranks_that_the_command_starts_by_itself_obey_as_one(trial, monkeypatch):
    """As processes, by the engine that users have."""
    code, found, _ = trial("pooled", "faulty", laws="padding", launcher=("sh", "-c", TWO))
    assert (code, found["answer"]) == (0, "confirmed"), found


@pytest.mark.parametrize(
    ("kind", "ranks"), [("own-backward", 2), ("sum", 2), ("noise", 1)], ids=["DDP", "FSDP2", "random numbers"]
)
def test_a_sound_gradient_is_that_of_the_mean_over_ranks(trial, kind, ranks):
    code, found, _ = trial(kind, ranks=ranks, laws="gradient")
    assert (code, found["answer"]) == (0, "excluded"), found
    assert "changes as it says" in found["says"][0]


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("noise", "draws random numbers that are no dropout"),
        ("unseeded", "does not repeat itself with the same seeds"),
        ("contrastive", "of one row alone the loss is 0"),
        ("no-update", "before its first update was seen"),
    ],
)
def test_what_cannot_be_told_is_exit_code_3_with_the_reason(trial, kind, told):
    code, found, _ = trial(kind)
    assert (code, found["answer"]) == (3, "undecided"), found
    assert any(told in line for line in found["says"]), found


def test_a_job_without_a_loader_hears_after_its_first_run_what_is_left_out(trial):
    code, found, said = trial("by-hand", laws="permute,gradient")
    assert (code, found["answer"]) == (3, "undecided"), found
    assert any("No batch of a torch DataLoader" in line for line in found["says"])
    assert any("changes as it says" in line for line in found["says"])
    first, second, *_ = said.splitlines()
    assert first == "trueline: run 1 of at most 70: base (about 24 where the gradient is right)"
    left_out = "no batch of a torch DataLoader was seen: only the gradient is looked at"
    assert second == f"trueline: run 2 of at most 61: base ({left_out}; about 15 where the gradient is right)"


def test_a_mean_by_weights_of_its_own_and_a_mean_over_tokens_are_sound(trial):
    _, own, _ = trial("weighted")
    assert own["answer"] == "excluded"
    assert any("weights of its own" in line for line in own["says"])
    _, tokens, _ = trial("padding-counts", laws="halves")
    assert any("weighted by what is" in line for line in tokens["says"]), tokens


def test_each_of_two_micro_batches_is_weighted_by_its_own_tokens(trial):
    _, found, _ = trial("accumulated", laws="halves")
    assert found["answer"] == "excluded"
    assert any("the gradient was not compared" in line for line in found["says"]), found


def test_the_document_has_the_fields_of_the_contract(trial):
    _, found, _ = trial("broadcast", "faulty", laws="halves")
    assert list(found) == [
        *("schema", "trial", "status", "exit_code", "verdict", "cause", "actions"),
        *("question", "answer", "says", "arms", "error_asked", "runs", "credible", "next"),
    ]
    assert found["runs"] == sum(arm["runs"] for arm in found["arms"]) == 6
    assert {"name": "base", "runs": 2, "showed": 0} in found["arms"]
    assert {"name": "first", "runs": 1, "showed": 1} in found["arms"]


@pytest.mark.parametrize(
    "words", [("--law", "permut", "--", "true"), (), ("--", "no-such-program"), ("--seed", "-1", "--", "true")]
)
def test_bad_options_are_exit_code_2_in_one_sentence(monkeypatch, capsys, words):
    code, out, err = in_process.trueline(monkeypatch, capsys, "trial", "batch", *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
