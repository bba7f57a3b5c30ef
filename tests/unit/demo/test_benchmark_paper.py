"""The workers that benchmarks/paper plays in one process, and the numbers that its tables are made of."""

import dataclasses
import itertools
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
from benchmarks.paper.cells import LIBRARY, PAPER, READINGS, Cell, Size, cells, job_of, setting_of
from benchmarks.paper.coverage import consumed
from benchmarks.paper.figure import figure
from benchmarks.paper.results import Results, read_results
from benchmarks.paper.tables import interval, sections
from benchmarks.paper.together import Curves, norms_and_cosine, train_together

from trueline.demo.fine_tune import Material
from trueline.demo.model import ModelSpec, build_model
from trueline.demo.tokens import Sample
from trueline.demo.worker_training import LEARNING_RATE, endless_batches

SIZE = Size(workers=3, steps=3, batch_size=2, max_length=8)


@pytest.fixture
def material() -> Material:
    rng = np.random.default_rng(0)
    ids = rng.integers(2, 64, size=(48, 8))
    return Material(samples=[Sample(row, row.copy()) for row in ids], pad_id=0, model=ModelSpec(None, 64, 8))


def job(material, reading, name):
    return job_of(setting_of(reading, name), material, SIZE, seed=0)


def curves(num_steps=3):
    rng = np.random.default_rng(0)
    return Curves(rng.random((num_steps, 3)) + 1, rng.random((num_steps, 3)) + 1, rng.random(num_steps))


def test_one_process_takes_the_step_of_the_mean_over_the_whole_batch(material):
    work = job(material, "sharded", "s1-1")
    torch.manual_seed(work.seed)
    model = build_model(work.model).eval()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    loaders = [endless_batches(work, rank, 3, seed=0) for rank in range(3)]
    expected = []
    for _ in range(SIZE.steps):
        losses = [model(**next(batches)).loss for batches in loaders]
        torch.stack(losses).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append([loss.item() for loss in losses])

    found, _ = train_together(work, 3, dropout="off")

    assert found.losses_TN == pytest.approx(np.array(expected), rel=1e-5)  # float32: another order of summation


def test_workers_with_one_seed_and_no_sampler_are_one_worker(material):
    found, _ = train_together(job(material, "unsharded", "s1-1"), 3, dropout="on")

    assert np.ptp(found.losses_TN, axis=1).max() == 0
    assert found.cosine_T == pytest.approx(1, abs=1e-6)


def test_workers_computed_once_are_those_that_would_be_equal(material):
    found, _ = train_together(job(material, "unsharded", "s1-2"), 3, dropout="on")
    assert (found.losses_TN[:, 1] == found.losses_TN[:, 2]).all()
    assert (found.losses_TN[:, 0] != found.losses_TN[:, 1]).all()

    own, _ = train_together(job(material, "unsharded", "s1-1"), 3, dropout="own")
    assert (np.ptp(own.losses_TN, axis=1) > 0).all()


def test_norms_and_cosine_are_those_of_numpy():
    rows = torch.randn(4, 10_000, generator=torch.Generator().manual_seed(0))
    slow = rows.double().numpy()

    norms, cosine = norms_and_cosine(rows)

    pairs = [a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in itertools.combinations(slow, 2)]
    assert norms == pytest.approx(np.linalg.norm(slow, axis=1), rel=1e-6)  # float32 in chunks
    assert cosine == pytest.approx(np.mean(pairs), abs=1e-6)


@pytest.mark.parametrize(("reading", "covered"), [("sharded", 48), ("unsharded", 48 * 3)])
def test_coverage_reads_an_epoch_as_the_recorder_does(material, reading, covered):
    work = job_of(setting_of(reading, "s1-1"), material, SIZE, seed=0, steps=24)

    epochs, declared = consumed(work, 3)

    first = np.concatenate(epochs[0])
    assert len(first) == covered
    assert len(np.unique(first)) == 48
    assert declared.num_replicas == (3 if reading == "sharded" else None)


def test_interval_is_that_of_student():
    mean, half = interval(np.array([1.0, 2.0, 3.0]))

    assert (mean, half) == pytest.approx((2.0, 4.303 / np.sqrt(3)))
    assert interval(np.array([1.0])) == (1.0, np.inf)


def test_results_survive_the_file_and_fill_every_table_and_the_figure(tmp_path: Path):
    results = Results(about={"size": dataclasses.asdict(SIZE), "rows": {LIBRARY: 12}})
    for cell, seed in itertools.product(cells(LIBRARY), range(2)):
        results.add(cell, seed, curves())
    row = {"first_shared": 1, "declared": 2, "digests_only": None, "duplicates": None}
    for reading, setting in itertools.product(READINGS, PAPER):
        results.coverage.append({"text": LIBRARY, "reading": reading, "setting": setting.name, "seed": 0, **row})
    results.write(tmp_path / "results.json")

    again = read_results(tmp_path / "results.json")

    assert again == results
    assert again.has(Cell(LIBRARY, "trained", "sharded", "s1-1", "on"), 1)
    tables = sections(again)
    assert tables.count("| unsharded | own | s1-1 | low | 2 |") == 1
    assert tables.count("| s1-3 | later | +0.0 ± 0.0 % |") == 3  # dropout on and off, and on from random weights
    assert "1 of 1: 2 (2) | 0 of 1 | 0 of 1 |" in tables
    assert figure(again).count('<path class="area') == 18
