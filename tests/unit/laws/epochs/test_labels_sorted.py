"""labels-sorted: batches of one class or few; shuffled ones, and samplers that choose classes on purpose."""

import math

import numpy as np
import pytest
from tests.unit.healthy_run import rank_env, write_run

from trueline.laws.epochs import labels_sorted
from trueline.schema.columns.input_values import ROWS_ALIKE, InputFact, facts_text
from trueline.schema.errors import CannotTell

IN_ORDER = {"dataset_type": "Folder", "sampler": "SequentialSampler", "shuffles": False}
SHUFFLED = {"dataset_type": "Folder", "sampler": "RandomSampler", "shuffles": True}
BATCH = 16


def found_in(tmp_path, labels, data=IN_ORDER, *, classes=8, batch=BATCH, ranks=(0,), samples=None):
    """Of batches of ``labels``, one after the other."""
    rows = {}
    for step in range(len(labels) // batch):
        counts = np.bincount(labels[step * batch : (step + 1) * batch], minlength=classes)
        for rank in ranks:
            digests = np.arange(samples or batch, dtype=np.uint64) + np.uint64(1000 * step + 1)
            rows[step, rank] = {"class_counts": [classes, batch, *counts.tolist()], "sample_digests": digests}
    envs = {rank: rank_env(rank, len(ranks), data=data) for rank in ranks}
    return labels_sorted.check(write_run(tmp_path, rows, envs=envs))


SORTED = np.repeat(np.arange(8), 32)


def test_batches_of_one_class_are_found(tmp_path):
    (finding,) = found_in(tmp_path, SORTED)
    assert (finding.severity, finding.false_alarm_rate) == ("confirm", 1e-6)
    assert finding.claim == (
        "Each batch has labels of one class, at 16 steps that were looked at, of 8 classes in all: Folder is read in "
        "its order (SequentialSampler), which is sorted by class."
    )


def test_batches_of_few_classes_are_found(tmp_path):
    (finding,) = found_in(tmp_path, np.repeat(np.arange(8), 40))
    assert "two of one batch are the same in 89% of pairs, two of all batches in 12%" in finding.claim


def test_two_classes_one_after_the_other_are_found(tmp_path):
    assert len(found_in(tmp_path, np.repeat([0, 1], 72), classes=2)) == 1


def test_a_shuffle_that_leaves_the_order_is_said(tmp_path):
    (finding,) = found_in(tmp_path, SORTED, SHUFFLED, ranks=(0, 1))
    assert finding.claim.endswith("Folder declares to shuffle, and comes sorted by class all the same.")
    assert finding.ranks == (0, 1)


def test_shuffled_labels_are_silent(tmp_path):
    for seed in range(50):
        rng = np.random.default_rng(seed)
        unequal = rng.choice(8, p=rng.dirichlet([0.3] * 8), size=256)
        assert found_in(tmp_path / f"{seed}", unequal) == []


@pytest.mark.parametrize(
    ("labels", "more"),
    [
        (np.tile(np.arange(8), 32), {}),  # balanced batches
        (np.zeros(256, dtype=int), {}),  # one class: input-constant
        (SORTED, {"data": {**IN_ORDER, "sampler": "ClassesInTurn"}}),
        (SORTED[:16], {}),
        (np.repeat(np.arange(8), 32), {"samples": 2}),  # more labels than samples: tokens
    ],
)
def test_what_may_be_so_is_silent(tmp_path, labels, more):
    if "samples" in more:
        with pytest.raises(CannotTell):
            found_in(tmp_path, labels, **more)
    else:
        assert found_in(tmp_path, labels, **more) == []


def test_few_batches_of_one_class_may_be_chance(tmp_path):
    """Of two batches of four it is in 2 of 70 orders."""
    assert found_in(tmp_path, np.repeat([0, 1], 4), batch=4) == []


def test_without_a_loader_only_batches_of_one_class_are_told(tmp_path):
    assert len(found_in(tmp_path / "sorted", SORTED, {})) == 1
    assert found_in(tmp_path / "drifting", np.repeat(np.arange(8), 40), {}) == []


def test_of_many_classes_batches_of_one_are_told(tmp_path):
    target = InputFact("cross_entropy", True, "torch.int64", (BATCH,), 1000)
    rows = {}
    for step in range(8):
        bits = int(np.float64(100 * step).view(np.int64))
        rows[step, 0] = {"input_facts": facts_text([target]), "input_values": [step, 1, bits, ROWS_ALIKE]}
    (finding,) = labels_sorted.check(write_run(tmp_path, rows, envs={0: rank_env(0, 1, data=IN_ORDER)}))
    assert finding.claim.startswith("Each batch has labels of one class, at 8 steps that were looked at, of 8 classes")


def test_the_evidence_has_an_expectation_of_one():
    """By going through all arrangements of given labels: the mean over them is 1 at most."""
    rng = np.random.default_rng(0)
    labels = np.array([0] * 6 + [1] * 4 + [2] * 2)
    evidence = []
    for _ in range(20_000):
        batches = rng.permutation(labels).reshape(3, 4)
        evidence.append(math.exp(labels_sorted.log_evidence(np.array([np.bincount(b, minlength=3) for b in batches]))))
    assert np.mean(evidence) <= 1.0


def test_without_labels_nothing_is_said(tmp_path):
    with pytest.raises(CannotTell, match="by class"):
        labels_sorted.check(write_run(tmp_path, {(0, 0): {"loss": 1.0}}))
