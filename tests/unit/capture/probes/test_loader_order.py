"""What the order of a DataLoader is drawn from, and whether it declares to shuffle."""

from types import SimpleNamespace

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Sampler,
    TensorDataset,
    WeightedRandomSampler,
)

from trueline.capture.probes.dataloader import EpochProbe
from trueline.capture.probes.loader_order import declared_shuffle, order_state

ROWS = TensorDataset(torch.arange(12))


class Stream(IterableDataset):
    def __init__(self, **settings):
        vars(self).update(settings)

    def __iter__(self):
        return iter(range(12))


class Ordered(Sampler):
    """Of the user's own."""

    def __init__(self, **settings):
        vars(self).update(settings)

    def __iter__(self):
        return iter(range(12))

    def __len__(self):
        return 12


class ToldTheEpoch(Ordered):
    def set_epoch(self, epoch):
        self.epoch = epoch


def _distributed(**settings):
    return DistributedSampler(ROWS, num_replicas=2, rank=0, **settings)


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        (DataLoader(ROWS), False),
        (DataLoader(ROWS, shuffle=True), True),
        (DataLoader(ROWS, sampler=_distributed()), True),
        (DataLoader(ROWS, sampler=_distributed(shuffle=False)), False),
        (DataLoader(ROWS, sampler=WeightedRandomSampler([1.0] * 12, 12)), True),
        (DataLoader(ROWS, batch_sampler=BatchSampler(RandomSampler(ROWS), 2, drop_last=False)), True),
        (DataLoader(ROWS, sampler=Ordered()), None),
        (DataLoader(ROWS, sampler=Ordered(shuffle=True)), True),
        (DataLoader(ROWS, sampler=ToldTheEpoch(epoch=0)), True),
        (DataLoader(ROWS, sampler=ToldTheEpoch(epoch=0, shuffle=False)), False),
        (DataLoader(Stream()), None),
        (DataLoader(Stream(shuffle_buffer=100)), True),
        (DataLoader(Stream(shuffle=False)), False),
        (DataLoader(Stream(shuffle_seed=1)), None),
        (DataLoader(Stream(dataset=Stream(shuffle=True))), True),
        (DataLoader(Stream(_shuffling=SimpleNamespace(seed=0))), True),
    ],
)
def test_what_a_loader_declares(loader, expected):
    assert declared_shuffle(loader) is expected


def test_a_sampler_that_is_told_the_epoch_has_another_state():
    sampler = _distributed(seed=7)
    loader = DataLoader(ROWS, sampler=sampler)
    assert order_state(loader) == order_state(loader) == "seed 7, epoch 0"
    sampler.set_epoch(3)
    assert order_state(loader) == "seed 7, epoch 3"
    assert order_state(DataLoader(ROWS, sampler=_distributed(shuffle=False))) == ""


@pytest.mark.parametrize("is_own", [True, False])
def test_one_state_of_the_generator_gives_one_order(is_own):
    generator = torch.Generator() if is_own else torch.default_generator
    loader = DataLoader(ROWS, sampler=RandomSampler(ROWS, generator=generator if is_own else None))
    states, orders = [], []
    for seed in (0, 0, 1):
        generator.manual_seed(seed)
        states.append(order_state(loader))
        orders.append(torch.cat([batch for (batch,) in loader]).tolist())
    assert states[0] == states[1] != states[2]
    assert orders[0] == orders[1] != orders[2]


def test_the_order_of_a_sampler_of_the_users_own_is_not_known():
    assert order_state(DataLoader(ROWS, sampler=ToldTheEpoch(epoch=0))) == ""


def test_looking_draws_nothing():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    order_state(DataLoader(ROWS, shuffle=True))
    assert torch.equal(before, torch.get_rng_state())


def test_states_of_the_first_epochs_are_facts_of_the_step(monkeypatch):
    monkeypatch.setattr("trueline.capture.probes.dataloader.MAX_EPOCHS", 3)
    probe, sampler = EpochProbe(), _distributed()
    loader = DataLoader(ROWS, sampler=sampler)
    step = SimpleNamespace(facts={})
    for epoch in range(5):
        sampler.set_epoch(epoch)
        for _ in loader:
            if epoch == 0:
                probe.take("forward", step)
    probe.detach()
    assert step.facts["data"]["orders"] == tuple(f"seed 0, epoch {epoch}" for epoch in range(3))
