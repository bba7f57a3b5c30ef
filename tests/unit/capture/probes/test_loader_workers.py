"""What loader workers draw from, as far as it can be read: generators that they have copies of, and seeds."""

import random
from functools import partial

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Subset, get_worker_info

from trueline.capture.probes.loader_workers import copied_generators, seeds_workers_alike, workers_draw


class Rows(Dataset):
    def __init__(self, **held):
        vars(self).update({"rng": np.random.default_rng(0)} | held)

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return index


class Drawing(Rows):
    def __getitem__(self, index):
        return index + self.noise()

    def noise(self):
        return sum(self.rng.random() for _ in range(2))


class Seeding(Rows):
    def __getitem__(self, index):
        self.rng.seed(index)
        return self.rng.random()


class Making(Rows):
    def __getitem__(self, index):
        if get_worker_info() is not None:
            self.rng = np.random.default_rng(get_worker_info().seed)
        return self.rng.random()


class Transformed(Rows):
    def __getitem__(self, index):
        return self.transform(index)


class Jitter:
    def __init__(self):
        self.generator = torch.Generator()

    def __call__(self, x):
        return x + torch.rand((), generator=self.generator)


class Held:
    """Two transforms, one after the other."""

    def __init__(self, *transforms):
        self.transforms = list(transforms)

    def __call__(self, x):
        return x


def loader(data, **settings):
    return DataLoader(data, **({"num_workers": 2} | settings))


def seeds_the_copy(number):
    get_worker_info().dataset.rng = np.random.default_rng(number)


@pytest.mark.parametrize(
    ("loading", "expected"),
    [
        (loader(Drawing()), ["Drawing.rng"]),
        (loader(Drawing(rng=random.Random(0))), ["Drawing.rng"]),
        (loader(Subset(Drawing(), range(4))), ["Drawing.rng"]),
        (loader(Transformed(transform=Jitter())), ["Jitter.generator"]),
        (loader(Transformed(transform=Held(Jitter(), 1))), ["Jitter.generator"]),
        (loader(Drawing(), worker_init_fn=lambda number: np.random.seed(number)), ["Drawing.rng"]),
        (loader(Rows()), []),  # held, and not drawn from as a sample is read
        (loader(Seeding(rng=random.Random(0))), []),
        (loader(Making()), []),
        (loader(Drawing(rng=None)), []),
        (loader(Drawing(), num_workers=0), []),
        (loader(Drawing(), worker_init_fn=seeds_the_copy), []),
        (loader(Drawing(), worker_init_fn=partial(seeds_the_copy, 1)), []),  # code that is not seen
    ],
)
def test_generators_that_each_worker_has_a_copy_of(loading, expected):
    assert copied_generators(loading) == expected


def two_seeds(number):
    random.seed(3)
    np.random.seed(3)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda number: np.random.seed(42), True),
        (two_seeds, True),
        (lambda number: np.random.seed(42 + number), False),
        (lambda number: np.random.seed(torch.initial_seed() % 2**32), False),
        (lambda number: [random.seed(number) for _ in range(1)], False),
        (lambda number: None, False),
        (partial(two_seeds), False),
        (None, False),
    ],
)
def test_seeds_that_all_workers_are_given(function, expected):
    assert seeds_workers_alike(loader(Rows(), worker_init_fn=function)) is expected


class Flipping(Rows):
    def __getitem__(self, index):
        return -index if torch.rand(()) < 0.5 else index


def seeds_by_epoch(number, offset):
    np.random.seed(torch.initial_seed() % 2**32 + offset)


@pytest.mark.parametrize(
    ("loading", "expected"),
    [
        (loader(Flipping()), True),
        (loader(Subset(Flipping(), range(4))), True),
        (loader(Flipping(), worker_init_fn=partial(seeds_by_epoch, offset=1)), True),
        (loader(Rows()), False),
        (loader(Flipping(), num_workers=0), False),
        (loader(Flipping(), persistent_workers=True), False),
        (loader(Flipping(), worker_init_fn=two_seeds), False),
        (loader(Seeding(rng=random.Random(0))), False),
    ],
)
def test_workers_that_draw_from_what_torch_seeds(loading, expected):
    assert workers_draw(loading) is expected


def test_copies_really_draw_alike():
    """What is said of them holds of those that torch starts."""
    drawn = [batch.item() for batch in loader(Jittered(), batch_size=1, multiprocessing_context="fork")]
    assert drawn[0] == drawn[1] != drawn[2] == drawn[3]


class Jittered(Dataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return self.rng.random()
