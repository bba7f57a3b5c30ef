"""The probes that read batches, loaders, losses and streams, each against what was put in."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Subset,
    TensorDataset,
)

from trueline.capture.model import patches
from trueline.capture.model.layout import make_layout
from trueline.capture.probes.base import Step
from trueline.capture.probes.batch import read_batch
from trueline.capture.probes.dataloader import EpochProbe, describe_loader, rows_digest
from trueline.capture.probes.losses.loss import LossProbe
from trueline.capture.probes.surroundings import (
    Settings,
    hyper_parameters,
    repeated_layers,
    rng_digests,
    updates_made,
)
from trueline.capture.step.passes import Contributions, CountedPasses
from trueline.schema.errors import CaptureError
from trueline.schema.plan import Plan

STEP = Step(0, make_layout(nn.Linear(1, 1), patterns=("*",), max_groups=1), Plan(), facts={}, watched=True)
IDS = torch.tensor([[5, 6, 7, 0], [1, 2, 3, 4]])


# -- batches


def digests(*args, **kwargs):
    batch = read_batch(*args, **kwargs)
    assert batch is not None
    return batch.samples.tolist()


def test_one_digest_a_sample_whatever_holds_it():
    @dataclass
    class Holder:
        input_ids: torch.Tensor

    expected = digests(IDS)
    assert len(set(expected)) == 2
    assert digests({"input_ids": IDS}) == digests(input_ids=IDS) == expected
    assert digests((IDS,)) == digests([IDS]) == digests(Holder(IDS)) == digests({"inner": {"ids": IDS}}) == expected


def test_labels_masks_and_positions_are_not_part_of_a_sample():
    mask, positions = torch.ones_like(IDS), torch.arange(4).expand(2, 4)
    expected = digests({"input_ids": IDS, "attention_mask": mask})
    for labels in (IDS, IDS.flip(0)):
        batch = {"input_ids": IDS, "attention_mask": mask, "labels": labels, "position_ids": positions}
        assert digests(batch) == expected


def test_padding_does_not_change_a_sample_when_a_mask_tells():
    wide = torch.tensor([[9, 9, 5, 6, 7], [9, 1, 2, 3, 4]])
    mask = torch.tensor([[0, 0, 1, 1, 1], [0, 1, 1, 1, 1]])
    short = torch.tensor([[5, 6, 7, 9], [1, 2, 3, 4]])
    short_mask = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])
    assert digests({"input_ids": wide, "attention_mask": mask}) == digests(
        {"input_ids": short, "attention_mask": short_mask}
    )


def test_a_pair_is_inputs_and_targets():
    x = torch.randn(3, 4)
    first, second = read_batch((x, torch.tensor([0, 1, 2]))), read_batch(x, torch.tensor([2, 1, 0]))
    assert first.samples.tolist() == second.samples.tolist()
    assert first.targets.tolist() != second.targets.tolist()


def test_what_autograd_has_computed_is_no_data():
    x, table = torch.randn(2, 3), nn.Embedding(8, 5)
    assert digests(seen=table(IDS), x=x) == digests(x=x)
    assert digests(x.clone().requires_grad_()) == digests(x)
    alone = read_batch(table(IDS))
    assert alone.samples is None
    assert float(alone.tokens) == 2


@pytest.mark.parametrize(
    ("batch", "tokens", "source"),
    [
        ({"input_ids": IDS, "labels": torch.where(IDS > 4, IDS, -100)}, 3, "labels"),
        ({"input_ids": IDS, "attention_mask": (IDS > 0).long()}, 7, "attention_mask"),
        ({"input_ids": IDS}, 8, "inputs"),
        ({"x": torch.randn(6, 3)}, 6, "samples"),
    ],
)
def test_tokens_are_counted_from_what_tells_most(batch, tokens, source):
    read = read_batch(batch)
    assert float(read.tokens) == tokens
    assert read.token_source == source


def test_no_tensor_is_no_batch():
    assert read_batch("text", 3) is None
    assert read_batch() is None
    assert read_batch(torch.tensor(3.0)) is None


# -- loaders


class Custom(Dataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        raise AssertionError("the dataset was indexed")


def test_rows_are_told_apart_without_indexing_the_dataset():
    texts = [f"row {index}" for index in range(100)]
    everything = [
        rows_digest(dataset)
        for dataset in (Custom(texts), Custom(texts[::2]), Subset(Custom(texts), range(0, 100, 2)), texts[1::2])
    ]
    assert len(set(everything)) == 4
    assert "" not in everything
    assert rows_digest(Custom([dict.fromkeys("ab", 1)] * 3)) == rows_digest(Custom([dict.fromkeys("ab", 1)] * 3))
    assert rows_digest(Custom([object()] * 3)) == ""
    assert rows_digest(Custom([None] * 3)) == "", "a cache that is filled rank by rank is no content"
    assert rows_digest(TensorDataset(IDS)) != rows_digest(TensorDataset(IDS + 1))


def test_a_loader_is_described():
    rows = TensorDataset(torch.arange(10))
    sampler = DistributedSampler(rows, num_replicas=2, rank=1, seed=7)
    facts = describe_loader(DataLoader(rows, batch_size=3, sampler=sampler, drop_last=True))
    expected = {"dataset_len": 10, "num_replicas": 2, "sampler_rank": 1, "seed": 7, "batch_size": 3, "drop_last": True}
    assert expected.items() <= facts.items()


def test_a_batch_sampler_that_splits_between_processes_is_the_sampler():
    """The sampler of a loader that was given one is a default, which nothing uses."""
    rows = TensorDataset(torch.arange(12))
    inner = BatchSampler(RandomSampler(rows), 2, drop_last=True)
    facts = describe_loader(DataLoader(rows, batch_sampler=BatchSamplerShard(inner, 3, 1)))
    expected = {"sampler": "BatchSamplerShard", "num_replicas": 3, "sampler_rank": 1, "batch_rows": 2}
    assert expected.items() <= facts.items()
    assert describe_loader(DataLoader(rows, batch_sampler=inner))["sampler"] == "RandomSampler"
    assert describe_loader(DataLoader(rows))["sampler"] == "SequentialSampler"


def test_a_part_that_was_drawn_is_told_from_one_that_was_cut():
    rows = TensorDataset(torch.arange(12))
    drawn, cut, even = (describe_loader(DataLoader(Subset(rows, part))) for part in ([3, 9, 1], [4, 5, 6], [0, 3, 6]))
    assert [drawn["drawn"], cut["drawn"], even["drawn"]] == [True, False, False]
    assert drawn["part_of"] == cut["part_of"] != drawn["rows_digest"]


def test_epochs_are_those_of_the_training_data():
    probe = EpochProbe()
    rows, held_out = TensorDataset(torch.arange(4)), TensorDataset(torch.arange(2))
    seen = []
    for _ in range(3):
        for _ in DataLoader(rows):  # a new loader every epoch over the same rows
            probe.at_training_step()
            seen.append(probe.epoch)
        list(DataLoader(held_out))
    probe.detach()
    assert seen == [0] * 4 + [1] * 4 + [2] * 4


def test_the_training_loader_is_the_one_whose_batches_are_still_to_come():
    """An evaluation that ran since the iterator was made is over, and is not what is trained on."""
    probe = EpochProbe()
    batches = iter(DataLoader(TensorDataset(torch.arange(4))))
    list(DataLoader(TensorDataset(torch.arange(2))))
    next(batches)
    probe.at_training_step()
    probe.detach()
    assert (probe.facts["dataset_len"], probe.epoch) == (4, 0)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_evaluation_that_was_left_half_way_is_not_what_is_trained_on(num_workers):
    """Lightning makes the iterator of the training before that of its sanity check, and keeps both."""
    probe = EpochProbe()
    batches = iter(DataLoader(TensorDataset(torch.arange(12)), num_workers=num_workers))
    evaluation = iter(DataLoader(TensorDataset(torch.arange(6)), num_workers=num_workers))
    next(evaluation)
    next(batches)
    probe.at_training_step()
    probe.detach()
    assert probe.facts["dataset_len"] == 12
    del evaluation


@pytest.mark.parametrize("num_workers", [0, 1])
def test_batches_of_the_pass_over_the_training_data_are_counted(num_workers):
    probe = EpochProbe()
    loader = DataLoader(TensorDataset(torch.arange(6)), batch_size=2, num_workers=num_workers)
    seen = []
    for _ in range(2):
        for _ in loader:
            probe.at_training_step()
            seen.append(probe.take("updated", dataclasses.replace(STEP, sampled=True)))
        assert "loader_batches" not in probe.take("updated", STEP)
    probe.detach()
    assert seen == [{"epoch": epoch, "loader_batches": batch} for epoch in range(2) for batch in (1, 2, 3)]


class Flipped(Dataset):
    """Rows that draw as they are read."""

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return index + torch.rand(())


def test_seeds_of_loader_workers_are_noted_by_epoch():
    probe, facts = EpochProbe(), {}
    generator = torch.Generator()
    for epoch in range(3):
        generator.manual_seed(max(epoch, 1))
        for _ in DataLoader(ROWS_THAT_DRAW, num_workers=1, generator=generator, multiprocessing_context="fork"):
            probe.take("forward", dataclasses.replace(STEP, facts=facts))
            probe.take("updated", dataclasses.replace(STEP, facts=facts))
    probe.detach()
    first, second, third = facts["data"]["worker_seeds"]
    assert first == second != third


ROWS_THAT_DRAW = Flipped()


# -- losses


@pytest.fixture
def probe():
    """A LossProbe in a step, which hears of each backward pass what follows them has made of it."""
    passes = Contributions()
    passes.listen(contextlib.nullcontext)
    probe = LossProbe(passes=passes)
    probe.begin(STEP)
    yield probe
    probe.detach()
    passes.detach()


def loss_columns(probe):
    """What is recorded of the step that the probe has seen."""
    return probe.columns(probe.result(CountedPasses()), STEP, {})


def test_losses_by_hand_are_weighted_by_tokens(probe):
    probe.give(torch.tensor(1.0), 1)
    probe.give(torch.tensor(4.0), torch.tensor(3))
    result = loss_columns(probe)
    assert float(result["loss"]) == pytest.approx(3.25)
    assert float(result["tokens"]) == 4


def test_the_loss_is_found_at_backward_and_added_up_over_micro_batches(probe):
    weight = torch.ones(1, requires_grad=True)
    for _ in range(2):
        (weight * 3).sum().div(2).backward()
    result = loss_columns(probe)
    assert float(result["loss"]) == pytest.approx(3.0)
    assert probe.source == "backward"


def test_a_scaled_loss_is_taken_before_it_is_scaled(probe):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loss = (torch.ones(1, requires_grad=True) * 3).sum()
    scaler.scale(loss).backward()
    result = loss_columns(probe)
    assert float(result["loss"]) == pytest.approx(3.0)


def test_seams_are_closed_behind_the_last_listener():
    before = torch.autograd.backward
    one, two = LossProbe(), LossProbe()
    assert torch.autograd.backward is not before
    one.detach()
    assert torch.autograd.backward is not before
    two.detach()
    assert torch.autograd.backward is before


def test_a_listener_that_fails_never_reaches_training():
    def fail(*_args, **_kwargs):
        raise ValueError("mine")

    patches.backward.add(fail)
    torch.ones(1, requires_grad=True).sum().backward()
    patches.backward.remove(fail)


# -- streams, optimizers, environment, layout


def test_reading_the_streams_draws_nothing_and_sees_every_draw():
    cpu = torch.device("cpu")
    first = rng_digests(cpu)
    assert rng_digests(cpu) == first
    random.random()
    np.random.rand()
    torch.rand(1)
    after = rng_digests(cpu)
    assert all(after[name] != first[name] for name in ("rng_python", "rng_numpy", "rng_torch"))
    assert after["rng_device"] is None


def test_a_stream_counts_as_used_once_somebody_drew_from_it_since_it_was_seeded():
    draws = (random.random, np.random.rand, lambda: torch.rand(1))
    for place, draw in enumerate(draws):
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        assert rng_digests(torch.device("cpu"))["rng_used"] == 0
        draw()
        assert rng_digests(torch.device("cpu"))["rng_used"] == 1 << place


def test_any_hyper_parameter_changes_the_digest():
    weight = [nn.Parameter(torch.ones(2))]
    held = {id(weight[0])}
    base = hyper_parameters(torch.optim.AdamW(weight, lr=0.1), held)
    assert base["lr"] == [0.1]
    others = [
        torch.optim.AdamW(weight, lr=0.1, weight_decay=0.2),
        torch.optim.AdamW(weight, lr=0.1, betas=(0.8, 0.99)),
        torch.optim.Adam(weight, lr=0.1, weight_decay=0.01),
    ]
    digests_ = {hyper_parameters(other, held)["optimizer_digest"] for other in others} | {base["optimizer_digest"]}
    assert len(digests_) == 4


def test_how_many_parts_an_optimizer_holds_is_the_rank_s_own():
    parts = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    some, more = (torch.optim.AdamW(parts[:count], lr=0.1) for count in (2, 3))
    assert hyper_parameters(some, ()) == hyper_parameters(more, ())
    assert hyper_parameters(some, {id(parts[0])}) != hyper_parameters(more, {id(parts[0])})


def test_groups_are_layers_and_stay_few():
    layers = nn.ModuleDict({"layers": nn.ModuleList(nn.Linear(4, 4) for _ in range(40))})
    model = nn.Sequential(nn.Embedding(4, 4), layers)
    layout = make_layout(model, patterns=("*",), max_groups=16)
    assert len(layout.groups) <= 16
    assert sum(len(group.params) for group in layout.groups) == len(layout.names) == 81
    assert sum(group.numel for group in layout.groups) == sum(p.numel() for p in model.parameters())


def test_a_model_without_parameters_and_a_glob_that_matches_none_are_refused():
    with pytest.raises(CaptureError, match="no parameter that requires a gradient"):
        make_layout(nn.ReLU(), patterns=("*",), max_groups=16)
    with pytest.raises(CaptureError, match="matches none of the 2 parameters"):
        make_layout(nn.Linear(2, 2), patterns=("head.*",), max_groups=16)


def replace_a_parameter(model):
    model[0].weight = nn.Parameter(torch.zeros(4, 4))


def replace_a_module(model):
    model[1] = nn.Linear(4, 4)


def freeze_one(model):
    model[0].bias.requires_grad_(False)


def thaw_one(model):
    model[2].bias.requires_grad_(True)


def add_a_module_inside_of_a_leaf(model):
    model[0].adapter = nn.Linear(4, 4)


def add_a_parameter(model):
    model[3].scale = nn.Parameter(torch.ones(1))


@pytest.mark.parametrize(
    "change",
    [replace_a_parameter, replace_a_module, freeze_one, thaw_one, add_a_module_inside_of_a_leaf, add_a_parameter],
)
@pytest.mark.parametrize("patterns", [("*",), ("*.weight",)])
def test_a_layout_fits_until_the_parameters_are_others(change, patterns):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4), nn.ReLU())
    model[2].bias.requires_grad_(False)
    layout = make_layout(model, patterns=patterns, max_groups=16)
    assert layout.fits()
    change(model)
    unseen = change is freeze_one and patterns != ("*",)  # a bias that nobody watches
    assert layout.fits() is unseen


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize(
    ("kind", "counts"),
    [
        (lambda params: torch.optim.AdamW(params), True),
        (lambda params: torch.optim.RMSprop(params), True),
        (lambda params: torch.optim.SGD(params), False),
        (lambda params: torch.optim.SGD(params, momentum=0.9), False),
    ],
)
def test_the_optimizers_count_of_updates_is_read_where_it_has_one(kind, counts, steps):
    model = nn.Linear(2, 2)
    optimizer = kind(model.parameters())
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    expected = steps if counts else None
    assert updates_made([optimizer, None]) == expected
    again = kind(nn.Linear(2, 2).parameters())
    again.load_state_dict(optimizer.state_dict())
    assert updates_made([again]) == expected


def test_a_count_that_is_no_number_is_no_count():
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([parameter])
    optimizer.state[parameter] = {"step": torch.ones(2), "other": "text"}
    assert updates_made([optimizer]) is None


# -- structure


def test_places_that_hold_one_module_are_told_and_no_shared_heads():
    def block():
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 4))

    one, act, head = block(), nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model = nn.ModuleDict(
        {
            "stack": nn.ModuleList([one, block(), one, one]),
            "heads": nn.ModuleList([head] * 3),
            "narrow": nn.ModuleList([nn.Linear(4, 4)] * 3),
            "plain": nn.Sequential(act, nn.Linear(4, 4), act),
        }
    )
    assert repeated_layers(model) == [["stack.0", "stack.2", "stack.3"]]
    assert repeated_layers(nn.Sequential(one, one)) == [["0", "1"]]


def test_settings_that_change_in_any_way_are_seen_as_if_they_were_looked_at_for_the_first_time():
    optimizer = torch.optim.AdamW(nn.Linear(2, 2).parameters(), lr=0.1)
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))], "schedule": [1, 2]})
    group, settings, seen = optimizer.param_groups[0], Settings(), []
    changes = (
        {},
        {"lr": 0.05},
        {"betas": (0.8, 0.95)},
        {"lr": torch.tensor(0.02)},
        {"betas": [0.8, 0.9]},
        {"new": "key"},
        {"eps": 0},
        {"weight_decay": None},
    )
    held = {id(param) for group in optimizer.param_groups for param in group["params"]}
    for change in changes:
        group.update(change)
        for _ in range(2):
            columns = hyper_parameters(optimizer, held, settings)
            assert columns == hyper_parameters(optimizer, held)
        seen.append(columns["optimizer_digest"])
    optimizer.param_groups[1]["schedule"].append(3)
    group["betas"][0] = 0.7
    assert hyper_parameters(optimizer, held, settings) == hyper_parameters(optimizer, held)
    assert len({*seen, hyper_parameters(optimizer, held, settings)["optimizer_digest"]}) == len(changes) + 1
