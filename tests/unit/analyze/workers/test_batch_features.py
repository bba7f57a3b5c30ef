"""A rank that was fed with other inputs or labels is told from one that reads the same; random shards differ enough."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import trueline
from trueline.analyze.workers.batch_features import computed_alike, fed
from trueline.capture.probes.batch import _features, read_features
from trueline.capture.probes.losses.descent import operations_below
from trueline.schema.columns.batch_features import FEATURES, NUM_FEATURES

STEPS, BATCH = 40, 16


def features(read, *, num_ranks=4, steps=STEPS):
    """[S, N, F] of what ``read(step, rank)`` gives as inputs and labels."""
    rows = [[read_features(*read(s, r)) for r in range(num_ranks)] for s in range(steps)]
    return torch.stack([torch.stack(row) for row in rows]).numpy()


def images(change=lambda x: x, labels=lambda y: y, bad=2):
    draw = torch.Generator().manual_seed(0)

    def read(step, rank):
        x, y = torch.randn(BATCH, 3, 8, 8, generator=draw), torch.randint(10, (BATCH,), generator=draw)
        return (change(x), labels(y)) if rank == bad else (x, y)

    return features(read)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x * 5 + 3, "the inputs' root mean square is 5.8"),
        (torch.zeros_like, "the inputs' share of zeros is 1 and not 0"),
        (lambda x: torch.relu(x), "the inputs' share of zeros is 0.5"),
    ],
)
def test_other_inputs(change, said):
    found = fed(images(change), (2,), (0, 1, 3))
    assert found.parts == {"inputs": "other", "labels": "alike"}
    assert found.text.startswith(said)


def test_other_labels():
    found = fed(images(labels=lambda y: y * 0 + 3), (2,), (0, 1, 3))
    assert found.parts == {"inputs": "alike", "labels": "other"}


def test_each_rank_with_a_vocabulary_of_its_own_where_several_stand_beside_several():
    draw = torch.Generator().manual_seed(0)
    often = torch.softmax(2 * torch.randn(200, generator=draw), 0)
    of_rank = torch.stack([torch.randperm(200, generator=draw) for _ in range(4)])
    of_all = of_rank[:1].expand(4, -1)

    def read(ids, rank):
        return ids[rank][torch.multinomial(often, 64 * BATCH, True, generator=draw).view(BATCH, 64)], torch.zeros(BATCH)

    own, shared = (features(lambda step, rank, ids=ids: read(ids, rank)) for ids in (of_rank, of_all))
    assert fed(own, (1, 3), (0, 2)).parts["inputs"] == "other"
    assert fed(shared, (1, 3), (0, 2)).parts["inputs"] == "alike"


@pytest.mark.parametrize("change", [lambda x: x.flip(3), lambda x: x])
def test_what_has_the_same_elements_is_alike(change):
    """Permuted labels and flipped inputs are not seen."""
    found = fed(images(change, labels=lambda y: y[torch.randperm(len(y))]), (2,), (0, 1, 3))
    assert (found.parts, found.text) == ({"inputs": "alike", "labels": "alike"}, "")


def test_ids_of_a_shard_whose_every_second_token_is_zero():
    draw = torch.Generator().manual_seed(0)

    def read(step, rank):
        ids = torch.randint(1, 1000, (BATCH, 32), generator=draw)
        ids[:, ::2] *= rank != 1
        return ids, ids

    found = fed(features(read, num_ranks=2), (1,), (0,))
    assert found.parts == {"inputs": "other", "labels": "other"}
    assert "share of zeros is 0.5 and not 0" in found.text


def test_too_few_steps_say_nothing():
    assert fed(images()[:5], (2,), (0, 1, 3)).parts == {}
    assert fed(np.full((STEPS, 4, NUM_FEATURES), np.nan), (2,), (0, 1, 3)).parts == {}


@pytest.mark.parametrize("seed", range(20))
def test_random_fixed_shards_are_alike(seed):
    """Shards of four batches, read again and again: each differs from the others by chance, for good."""
    draw = np.random.default_rng(seed)
    shards = [torch.tensor(draw.standard_normal((4 * BATCH, 6))) for _ in range(4)]

    def read(step, rank):
        rows = draw.permutation(4 * BATCH)[:BATCH]
        return shards[rank][rows], torch.zeros(BATCH).long()

    values = features(read)
    assert all(fed(values, (r,), tuple({0, 1, 2, 3} - {r})).parts["inputs"] == "alike" for r in range(4))


def test_features_of_a_tensor():
    x = torch.tensor([[0, -100, 4], [3, 0, 5]])
    mean, size, zeros, one, other, broken = read_features(x)[: len(FEATURES)].tolist()
    assert broken == 0
    assert (mean, zeros) == (12 / 5, 2 / 5)
    assert size == pytest.approx((50 / 5) ** 0.5)
    assert all(share in {each / 5 for each in range(6)} for share in (one, other))


def test_a_value_that_is_not_finite_is_seen_wherever_it_is():
    x = torch.zeros(3, 40_000)
    x[1, 12_345] = torch.inf
    assert read_features(x)[len(FEATURES) - 1] == 1
    assert read_features(torch.ones(3, 2), x)[-1] == 1


@pytest.mark.parametrize(
    ("operations", "said"),
    [
        ([7, 7, 8, 7], "other"),
        ([7, 7, 7, 7], "alike"),
        ([7, 9, 8, 7], ""),
        ([7, np.nan, 8, 7], ""),
    ],
)
def test_losses_that_are_computed_otherwise(operations, said):
    assert computed_alike(np.array([operations, operations]), (2,), (0, 1, 3)) == said


def test_a_loss_that_is_computed_otherwise_at_some_steps_only_says_nothing():
    assert computed_alike(np.array([[7.0, 7, 8], [7, 7, 7]]), (2,), (0, 1)) == ""


def test_operations_of_a_loss():
    logits, target = torch.randn(4, 5, requires_grad=True), torch.zeros(4).long()
    plain = [operations_below([functional.cross_entropy(logits * 2, target)]) for _ in range(2)]
    assert plain[0] == plain[1]
    assert operations_below([functional.cross_entropy(logits * 2, target, label_smoothing=0.1)]) != plain[0]
    assert operations_below([functional.cross_entropy(logits * 2, target) + logits.square().mean()]) != plain[0]


@pytest.mark.parametrize("labels", [None, torch.zeros(2).long(), torch.zeros(2).long().to("meta")])
def test_features_are_on_the_device_of_the_inputs(labels):
    """As on a GPU, where labels may be elsewhere, or not given to the model."""
    read = torch.ones(2, 3, device="meta")
    assert torch.cat([_features(each, read) for each in (read, labels)]).device == read.device


class Named(nn.Linear):
    def forward(self, features):
        return super().forward(features)


def test_sampled_steps_have_features_also_of_a_model_whose_input_is_called_so(tmp_path):
    model = Named(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=str(tmp_path / "run"), plan={"every": 4}):
        for _ in range(6):
            model(features=torch.ones(2, 3)).mean().backward()
            optimizer.step()
    run = trueline.open_run(str(tmp_path / "run"))
    assert [step for step, _ in run.lists("sample_digests")] == list(range(6))
    assert {step: row[0] for (step, _), row in run.lists("batch_features").items()} == {0: 1.0, 4: 1.0}
    assert not run.live_findings
