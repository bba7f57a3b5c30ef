"""Indices that samplers draw: by pass, whoever reads the samples and whatever becomes of them."""

import dataclasses

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from tests.unit.capture.probes.test_probes import STEP
from torch.utils.data import BatchSampler, DataLoader, Dataset, SequentialSampler, WeightedRandomSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from trueline.capture.probes import drawn_indices
from trueline.capture.probes.dataloader import EpochProbe


class Noise(Dataset):
    """Samples that are never the same."""

    def __len__(self):
        return 48

    def __getitem__(self, index):
        return torch.rand(2)


DATA = Noise()
SAMPLED = dataclasses.replace(STEP, sampled=True)


def indices_of(loader, *, epochs=2, data=DATA):
    """What is noted of a training that goes through ``loader``, and takes one step more."""
    probe, facts = EpochProbe(), {}
    step = dataclasses.replace(SAMPLED, facts=facts)
    try:
        for _ in range(epochs):
            for _ in loader:
                probe.take("forward", step)
                probe.take("updated", step)
        probe.take("updated", step)
        return facts["data"].get("indices")
    finally:
        probe.detach()


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 8, "shuffle": True},
        {"batch_size": None, "shuffle": True},
        {"batch_sampler": BatchSampler(SequentialSampler(DATA), 8, drop_last=False)},
        {"batch_size": 8, "shuffle": True, "num_workers": 2, "multiprocessing_context": "fork"},
    ],
)
def test_each_pass_draws_all_of_them(settings):
    indices = indices_of(DataLoader(DATA, **settings))
    assert [(row["drawn"], row["different"], row["ended"]) for row in indices["passes"]] == [(48, 48, True)] * 2
    orders = {row["order"] for row in indices["passes"]}
    assert len(orders) == (1 if "batch_sampler" in settings else 2)
    assert indices["bits"] == "ff" * 6


def test_what_accelerate_has_prepared_is_counted():
    indices = indices_of(Accelerator(cpu=True).prepare(DataLoader(DATA, 8)))
    assert [row["different"] for row in indices["passes"]] == [48, 48]


def test_few_indices_that_come_again_are_counted():
    loader = DataLoader(DATA, 8, sampler=WeightedRandomSampler([1.0, 2.0, 1.0], 300))
    indices = indices_of(loader, epochs=1)
    assert [(row["drawn"], row["different"]) for row in indices["passes"]] == [(300, 3)]
    assert np.flatnonzero(np.unpackbits(np.frombuffer(bytes.fromhex(indices["bits"]), np.uint8))).tolist() == [0, 1, 2]


def test_indices_of_another_kind_are_not_counted():
    class Keyed(Noise):
        def __getitem__(self, key):
            return torch.rand(2)

    assert not indices_of(DataLoader(Keyed(), 2, sampler=["a", "b", "c", "d"]))


def test_only_the_first_passes_are_counted():
    passes = indices_of(DataLoader(DATA, 16), epochs=drawn_indices.MAX_PASSES + 2)["passes"]
    assert len(passes) == drawn_indices.MAX_PASSES


def test_torch_is_as_it_was_once_nobody_listens():
    original = _BaseDataLoaderIter._next_index
    first, second = EpochProbe(), EpochProbe()
    assert _BaseDataLoaderIter._next_index is not original
    first.detach()
    assert _BaseDataLoaderIter._next_index is not original
    second.detach()
    assert _BaseDataLoaderIter._next_index is original


def test_what_fails_in_it_never_reaches_the_training(monkeypatch):
    monkeypatch.setattr(drawn_indices.DataSetIndices, "add", lambda *args: 1 / 0)
    assert indices_of(DataLoader(DATA, 8)) is None


@pytest.mark.parametrize(
    ("batches", "known"),
    [([[], [0, 1], [2]], True), ([[0, "a"]], False), ([[0, (1, 2)]], False), ([[-1, 3]], False)],
)
def test_a_strange_batch_ends_no_counting_but_its_own(batches, known, caplog):
    class Plain(Noise):
        def __getitem__(self, index):
            return torch.zeros(2)

    indices = indices_of(DataLoader(Plain(), batch_sampler=batches, collate_fn=len), epochs=1)
    assert (indices["passes"][0]["drawn"] if indices else None) == (3 if known else None)
    assert not caplog.records


def test_a_data_set_that_has_no_length_is_none_to_fail_at(caplog):
    class Unsized(Noise):
        def __len__(self):
            raise NotImplementedError

    probe = EpochProbe()
    try:
        for _ in DataLoader(Unsized(), 2, sampler=[0, 1, 2, 3]):
            probe.take("forward", dataclasses.replace(SAMPLED, facts={}))
        assert probe.epoch == 0
        assert "dataset_len" not in probe.facts
    finally:
        probe.detach()
    assert not caplog.records


def test_of_a_pass_at_its_end_only_numbers_are_kept():
    indices = drawn_indices.DataSetIndices(DATA, 48)
    index_pass = indices.begin()
    indices.add(index_pass, [3, 4, 3])
    index_pass.end()
    assert index_pass.counts is None
    assert index_pass.facts()["different"] == 2
