"""Indices that ranks drew, together, and what facts say by them where samples change their values."""

import numpy as np
from tests.unit.healthy_run import rank_env, write_run

from trueline.judge.facts import data
from trueline.judge.series.drawn_indices import different_indices, index_passes
from trueline.laws.epochs import epochs_alike

SIZE = 64


def facts_of(drawn, *, orders=("a", "b"), ended=True):
    bits = np.zeros(SIZE, dtype=np.uint8)
    bits[list(drawn)] = 1
    row = {"drawn": len(drawn), "different": len(set(drawn)), "ended": ended}
    return {"passes": [row | {"order": order} for order in orders], "bits": np.packbits(bits).tobytes().hex()}


def run_of(tmp_path, *drawn, sampler="Mine", **more):
    """Two epochs of ranks that read samples of new values each time, and drew these indices."""
    rows = {}
    for rank in range(len(drawn)):
        for step in range(16):
            digests = np.arange(8, dtype=np.uint64) + np.uint64(1 + 1000 * step + 10**6 * rank)
            rows[step, rank] = {"sample_digests": digests, "epoch": step // 8}
    settings = {"dataset_len": SIZE, "dataset_type": "Augmented", "shuffles": True, "sampler": sampler}
    envs = {
        rank: rank_env(rank, len(drawn), data={**settings, "indices": facts_of(indices, **more)})
        for rank, indices in enumerate(drawn)
    }
    return write_run(tmp_path, rows, envs=envs)


def test_what_ranks_drew_together(tmp_path):
    run = run_of(tmp_path, range(0, SIZE, 2), range(1, SIZE, 2))
    assert different_indices(run, [0, 1]) == SIZE
    assert [(index_pass.drawn, index_pass.ended) for index_pass in index_passes(run, 0)] == [(32, True)] * 2
    assert data.shares(run)[1] == {"least": 1.0, "most": 1.0, "unread": 0, "data_set": SIZE, "epochs": 2}


def test_what_no_rank_drew_is_told(tmp_path):
    run = run_of(tmp_path, [*range(8)] * 4, [*range(8)] * 4)
    text, value = data.shares(run)
    assert text == (
        "the ranks drew 12% of the indices of the data set in 2 whole epochs; 56 of its 64 samples were read by none"
    )
    assert value["unread"] == 56
    assert data.samples(run)[0].endswith("the data set has 64, of which 8 were drawn")
    assert data.reads_few(data.samples(run)[1])
    assert data.read_twice(run)[1] == {"again": 24, "samples": 32}


def test_samples_that_have_the_values_of_another_are_not_called_unread(tmp_path):
    """All indices are drawn, and what is read are 20 different samples."""
    rows = {}
    for step in range(16):
        digests = (np.arange(8, dtype=np.uint64) + np.uint64(8 * step)) % np.uint64(20) + np.uint64(1)
        rows[step, 0] = {"sample_digests": digests, "epoch": step // 8}
    settings = {"dataset_len": SIZE, "shuffles": True, "sampler": "Mine", "indices": facts_of(range(SIZE))}
    run = write_run(tmp_path, rows, envs={0: rank_env(0, 1, data=settings)})
    text, value = data.shares(run)
    assert text.endswith("; 44 of its 64 samples have the values of another one")
    assert (value["unread"], value["alike"]) == (0, 44)
    assert not data.reads_few(data.samples(run)[1])
    assert data.has_many_alike(value)
    assert not data.leaves_many_out(value)


def test_what_a_weighted_sampler_leaves_out_by_chance_is_not_told(tmp_path):
    half = [*range(40), *range(24)]
    assert data.shares(run_of(tmp_path / "weighted", half, sampler="WeightedRandomSampler"))[1]["unread"] == 0
    assert data.shares(run_of(tmp_path / "few", [0, 1] * 32, sampler="WeightedRandomSampler"))[1]["unread"] == 62
    assert data.shares(run_of(tmp_path / "other", half))[1]["unread"] == 24


def test_a_pass_that_left_some_out_on_purpose_tells_nothing(tmp_path):
    """As where a start goes on within an epoch."""
    assert different_indices(run_of(tmp_path, range(20)), [0]) is None


def test_a_pass_that_goes_on_tells_nothing(tmp_path):
    assert different_indices(run_of(tmp_path, range(SIZE), ended=False), [0]) is None


def test_epochs_of_augmented_samples_in_one_order_are_found(tmp_path):
    run = run_of(tmp_path / "one", range(SIZE), orders=("a", "a"))
    (finding,) = epochs_alike.check(run)
    assert (finding.false_alarm_rate, finding.evidence["kind"]) == (0.0, "same-state")
    assert epochs_alike.check(run_of(tmp_path / "two", range(SIZE))) == []
