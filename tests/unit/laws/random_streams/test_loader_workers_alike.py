"""loader-workers-alike: copies of a generator are a warning, one seed for all workers is to be confirmed."""

import pytest
from tests.unit.healthy_run import rank_env, write_run

from trueline.laws.random_streams import loader_workers_alike
from trueline.schema.errors import CannotTell

WORKERS = {"num_workers": 4, "persistent_workers": False, "copied_generators": [], "workers_seeded_alike": False}
COPIES = WORKERS | {"copied_generators": ["Noisy.rng"]}


def found_in(tmp_path, *data):
    envs = {rank: rank_env(rank, len(data), data=facts) for rank, facts in enumerate(data)}
    rows = {(step, rank): {"loss": 1.0} for step in range(3) for rank in envs}
    return loader_workers_alike.check(write_run(tmp_path, rows, envs=envs))


def test_copies_of_a_generator_are_found(tmp_path):
    (finding,) = found_in(tmp_path, COPIES, COPIES)
    assert (finding.severity, finding.ranks, finding.evidence["kind"]) == ("warning", (0, 1), "copies")
    assert finding.claim == (
        "Each of the 4 loader workers has a copy of `Noisy.rng` in one state, and draws from it as it reads a sample: "
        "they draw alike, and begin again in each epoch."
    )


def test_a_single_worker_begins_again_unless_it_lives_on(tmp_path):
    (finding,) = found_in(tmp_path / "anew", COPIES | {"num_workers": 1})
    assert finding.claim.endswith("each epoch draws as the one before.")
    assert found_in(tmp_path / "lives", COPIES | {"num_workers": 1, "persistent_workers": True}) == []


def test_one_seed_for_all_workers_is_to_be_confirmed(tmp_path):
    (finding,) = found_in(tmp_path, WORKERS | {"workers_seeded_alike": True})
    assert (finding.severity, finding.evidence["kind"], finding.false_alarm_rate) == ("confirm", "seed", None)


def test_workers_that_share_nothing_are_silent(tmp_path):
    assert found_in(tmp_path, WORKERS) == []


@pytest.mark.parametrize("data", [{}, {"num_workers": 0}, {"num_workers": 2}])
def test_what_was_not_looked_at_cannot_be_judged(tmp_path, data):
    with pytest.raises(CannotTell):
        found_in(tmp_path, data)


def test_epochs_that_seed_their_workers_by_one_number_are_to_be_confirmed(tmp_path):
    data = WORKERS | {"worker_seeds": ["a", "a", "b", "a"], "orders": ["1", "2", "3", "4"], "shuffles": True}
    (finding,) = found_in(tmp_path, data)
    assert (finding.severity, finding.evidence["kind"], finding.measured) == ("confirm", "epochs", 3.0)
    assert finding.claim.startswith("3 of the first 4 epochs seed their loader workers by one number")


@pytest.mark.parametrize(
    "data",
    [
        {"worker_seeds": ["a", "b", "c"]},
        {"worker_seeds": ["", ""]},
        {"worker_seeds": ["a", "a"], "orders": ["1", "1"], "shuffles": True},  # epochs-alike says that
    ],
)
def test_epochs_that_draw_anew_are_silent(tmp_path, data):
    assert found_in(tmp_path, WORKERS | data) == []
