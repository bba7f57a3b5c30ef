"""epochs-alike: epochs in one order though the sampler shuffles, by values or by what the order is drawn from."""

import numpy as np
import pytest
from tests.unit.healthy_run import rank_env, write_run, write_starts

from trueline.judge.series.epochs import epochs_of
from trueline.laws.epochs import epochs_alike
from trueline.schema.errors import CannotTell

SHUFFLED = {"sampler": "DistributedSampler", "num_replicas": 2, "shuffles": True}
ONE_STATE = ["seed 0, epoch 0"] * 8


def rows_of(epochs, *, rank=0, first=0, batch=4, numbers=None):
    """Rows of one rank that reads the samples of each epoch in ``batch`` a step."""
    rows, step = {}, first
    for number, samples in enumerate(epochs):
        for begin in range(0, len(samples), batch):
            digests = np.asarray(samples[begin : begin + batch]).astype(np.uint64) + np.uint64(1)
            rows[step, rank] = {"sample_digests": digests, "epoch": number if numbers is None else numbers[number]}
            step += 1
    return rows


def shuffles(num, size=24, *, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.permutation(size) for _ in range(num)]


def found_in(tmp_path, rows, data=SHUFFLED):
    ranks = {rank for _, rank in rows}
    envs = {rank: rank_env(rank, len(ranks), data=data) for rank in ranks}
    return epochs_alike.check(write_run(tmp_path, rows, envs=envs))


def test_epochs_in_one_order_are_found(tmp_path):
    order = shuffles(2)
    rows = rows_of([order[0]] * 4) | rows_of([order[1] + 100] * 4, rank=1)
    (finding,) = found_in(tmp_path, rows)

    assert (finding.code, finding.severity, finding.ranks, finding.step_first) == ("epochs-alike", "warning", (0, 1), 6)
    assert finding.claim == (
        "Epochs 0 to 3 have one order of samples on ranks 0 and 1, and DistributedSampler declares to shuffle."
    )
    assert 0 < finding.false_alarm_rate <= 1e-6
    assert "set_epoch" in finding.next[0]


def test_the_last_epoch_may_be_left_in_its_midst(tmp_path):
    (order,) = shuffles(1)
    assert len(found_in(tmp_path, rows_of([order, order[:16]]))) == 1


def test_shuffled_epochs_are_silent(tmp_path):
    for seed in range(20):
        assert found_in(tmp_path / str(seed), rows_of(shuffles(6, 12, seed=seed))) == []


def test_few_samples_in_one_order_may_be_chance_and_many_times_are_not(tmp_path):
    """Eight samples keep their order once in 40,320 shuffles, and twice in a row once in 1.6e9."""
    (order,) = shuffles(1, 8)
    assert found_in(tmp_path / "twice", rows_of([order] * 2)) == []
    assert len(found_in(tmp_path / "thrice", rows_of([order] * 3))) == 1


def test_what_does_not_declare_to_shuffle_is_left_alone(tmp_path):
    (order,) = shuffles(1)
    for number, data in enumerate([{"shuffles": False}, {"shuffle": False}, {"sampler": "Mine"}]):
        assert found_in(tmp_path / str(number), rows_of([order] * 4), data) == []


def test_what_a_run_of_before_says_of_its_sampler_counts(tmp_path):
    (order,) = shuffles(1)
    assert len(found_in(tmp_path, rows_of([order] * 3), {"sampler": "DistributedSampler", "shuffle": True})) == 1


def test_of_augmented_samples_what_the_order_is_drawn_from_tells(tmp_path):
    rows = rows_of(np.arange(96).reshape(4, 24))
    (finding,) = found_in(tmp_path / "one", rows, SHUFFLED | {"orders": ONE_STATE})
    assert finding.claim == (
        "Epochs 0 to 3 have one order of samples on rank 0 (each begins with seed 0, epoch 0), and DistributedSampler "
        "declares to shuffle."
    )
    assert (finding.false_alarm_rate, finding.evidence["kind"]) == (0.0, "same-state")
    set_each = [f"seed 0, epoch {epoch}" for epoch in range(4)]
    assert found_in(tmp_path / "set", rows, SHUFFLED | {"orders": set_each}) == []
    assert found_in(tmp_path / "unknown", rows, SHUFFLED | {"orders": [""] * 4}) == []


def test_samples_that_come_in_another_order_contradict_an_equal_state(tmp_path):
    assert found_in(tmp_path, rows_of(shuffles(4)), SHUFFLED | {"orders": ONE_STATE}) == []


def test_some_augmented_samples_are_enough(tmp_path):
    """Half of the samples are changed in each epoch; those that are not stand at their places."""
    (order,) = shuffles(1, 64)
    rng = np.random.default_rng(1)
    epochs = [np.where(rng.random(64) < 0.5, order, 1000 * (number + 1) + order) for number in range(4)]
    assert len(found_in(tmp_path, rows_of(epochs))) == 1


def test_a_pair_of_epochs_among_others_is_named(tmp_path):
    first, second, third = shuffles(3)
    (finding,) = found_in(tmp_path, rows_of([first, second, second, third]))
    assert finding.claim.startswith("1 epoch of 4 and the one before each have one order of samples on rank 0")
    assert finding.step_first == 12


def test_an_epoch_that_a_restart_began_again_is_no_other_epoch(tmp_path):
    (order,) = shuffles(1)
    run = write_starts(tmp_path, [(0, rows_of([order])), (6, rows_of([order], first=6, numbers=[1]))])
    for env in run.env.values():
        env.data = SHUFFLED
    with pytest.raises(CannotTell, match="two epochs"):
        epochs_alike.check(run)


def test_epochs_of_one_step_are_left_to_others(tmp_path):
    (order,) = shuffles(1, 4)
    with pytest.raises(CannotTell, match="two epochs"):
        found_in(tmp_path, rows_of([order] * 12))


def test_passes_of_a_sampler_that_never_ends_are_epochs(tmp_path):
    (order,) = shuffles(1)
    (finding,) = found_in(tmp_path / "alike", rows_of([np.tile(order, 3)]))
    assert finding.claim.startswith("Epochs 0 to 2 have one order")
    with pytest.raises(CannotTell, match="two epochs"):
        found_in(tmp_path / "shuffled", rows_of([np.concatenate(shuffles(3))]))


def test_a_loader_that_nobody_saw_cannot_be_judged(tmp_path):
    with pytest.raises(CannotTell, match="no DataLoader"):
        found_in(tmp_path, {(0, 0): {"loss": 1.0}}, {})


def test_of_an_epoch_no_more_than_its_beginning_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr("trueline.judge.series.epochs.MOST_SAMPLES", 10)
    run = write_run(tmp_path, rows_of(np.arange(96).reshape(4, 24)))
    assert [epoch.digests.tolist() for epoch in epochs_of(run, 0)][1] == list(range(25, 35))
