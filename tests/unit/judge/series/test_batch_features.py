"""A rank that was fed with other inputs or labels is told from one that reads the same; random shards differ enough."""

import re
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import trueline
from trueline.capture.probes.batch import features_of, read_features
from trueline.capture.probes.losses.descent import operations_below
from trueline.judge.series.batch_features import Arguments, compare_feeds, computed_alike, model_arguments, not_finite
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
        (lambda x: x * 5 + 3, "the root mean square of the inputs is 5.8"),
        (torch.zeros_like, "the share of zeros of the inputs is 1 and not 0"),
        (lambda x: torch.relu(x), "the share of zeros of the inputs is 0.5"),
    ],
)
def test_other_inputs(change, said):
    found = compare_feeds(images(change), (2,), (0, 1, 3))
    assert found.parts == {"inputs": "other", "labels": "alike"}
    assert found.text.startswith(said)


def test_other_labels():
    found = compare_feeds(images(labels=lambda y: y * 0 + 3), (2,), (0, 1, 3))
    assert found.parts == {"inputs": "alike", "labels": "other"}


def test_each_rank_with_a_vocabulary_of_its_own_where_several_stand_beside_several():
    draw = torch.Generator().manual_seed(0)
    often = torch.softmax(2 * torch.randn(200, generator=draw), 0)
    of_rank = torch.stack([torch.randperm(200, generator=draw) for _ in range(4)])
    of_all = of_rank[:1].expand(4, -1)

    def read(ids, rank):
        return ids[rank][torch.multinomial(often, 64 * BATCH, True, generator=draw).view(BATCH, 64)], torch.zeros(BATCH)

    own, shared = (features(lambda step, rank, ids=ids: read(ids, rank)) for ids in (of_rank, of_all))
    found = compare_feeds(own, (1, 3), (0, 2), ranks=(4, 5, 6, 7))
    assert found.parts["inputs"] == "other"
    feature, high, high_rank, low, low_rank = re.fullmatch(
        r"the (.*) of the inputs is (\S+) on rank (\d) and not (\S+), as on rank (\d)", found.text
    ).groups()
    of_rank = own[:, :, FEATURES.index(feature)].mean(0)
    assert float(high) == pytest.approx(of_rank[int(high_rank) - 4], rel=0.01) == pytest.approx(of_rank.max(), rel=0.01)
    assert float(low) == pytest.approx(of_rank[int(low_rank) - 4], rel=0.01) == pytest.approx(of_rank.min(), rel=0.01)
    assert compare_feeds(shared, (1, 3), (0, 2)).parts["inputs"] == "alike"


@pytest.mark.parametrize("change", [lambda x: x.flip(3), lambda x: x])
def test_what_has_the_same_elements_is_alike(change):
    """Permuted labels and flipped inputs are not seen."""
    found = compare_feeds(images(change, labels=lambda y: y[torch.randperm(len(y))]), (2,), (0, 1, 3))
    assert (found.parts, found.text) == ({"inputs": "alike", "labels": "alike"}, "")


def test_ids_of_a_shard_whose_every_second_token_is_zero():
    draw = torch.Generator().manual_seed(0)

    def read(step, rank):
        ids = torch.randint(1, 1000, (BATCH, 32), generator=draw)
        ids[:, ::2] *= rank != 1
        return ids, ids

    found = compare_feeds(features(read, num_ranks=2), (1,), (0,))
    assert found.parts == {"inputs": "other", "labels": "other"}
    assert "share of zeros of the labels is 0.5 and not 0" in found.text


def test_too_few_steps_say_nothing():
    assert compare_feeds(images()[:5], (2,), (0, 1, 3)).parts == {}
    assert compare_feeds(np.full((STEPS, 4, NUM_FEATURES), np.nan), (2,), (0, 1, 3)).parts == {}


@pytest.mark.parametrize("seed", range(20))
def test_random_fixed_shards_are_alike(seed):
    """Shards of four batches, read again and again: each differs from the others by chance, for good."""
    draw = np.random.default_rng(seed)
    shards = [torch.tensor(draw.standard_normal((4 * BATCH, 6))) for _ in range(4)]

    def read(step, rank):
        rows = draw.permutation(4 * BATCH)[:BATCH]
        return shards[rank][rows], torch.zeros(BATCH).long()

    values = features(read)
    assert all(compare_feeds(values, (r,), tuple({0, 1, 2, 3} - {r})).parts["inputs"] == "alike" for r in range(4))


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
    assert torch.cat([features_of(each, read) for each in (read, labels)]).device == read.device


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


def more(change, *, name, labels="", bad=2):
    """What ranks read where an argument besides the inputs is changed on one of them."""
    draw = torch.Generator().manual_seed(1)
    rows = []
    for _ in range(STEPS):
        drawn = [torch.rand(BATCH, 5, generator=draw) for _ in range(4)]
        rows.append([features_of(change(x) if rank == bad else x, x) for rank, x in enumerate(drawn)])
    values = torch.stack([torch.stack(row) for row in rows]).numpy()
    return Arguments("x", labels, {name: values})


@pytest.mark.parametrize(("name", "part"), [("remote", "inputs"), ("answer_labels", "labels"), ("labels[1]", "labels")])
def test_another_argument_is_named_and_belongs_to_its_part(name, part):
    """Inputs and labels that are read first are alike."""
    others = {"inputs": "alike", "labels": "alike"}
    found = compare_feeds(images(), (2,), (0, 1, 3), more(torch.zeros_like, name=name))
    assert found.parts == others | {part: "other"}
    assert found.text.startswith(f"the share of zeros of {name} is 1 and not 0")
    healthy = compare_feeds(images(), (2,), (0, 1, 3), more(lambda x: x, name=name))
    assert (healthy.parts, healthy.text) == (others, "")


def test_a_second_argument_that_the_model_does_not_call_a_label_is_an_input():
    """As the times of a diffusion model, forward(x, t)."""
    shifted = images(labels=lambda y: y * 0 + 3)
    assert compare_feeds(shifted, (2,), (0, 1, 3)).parts == {"inputs": "alike", "labels": "other"}
    found = compare_feeds(shifted, (2,), (0, 1, 3), Arguments("x", "t"))
    assert found.parts == {"inputs": "other"}
    assert " of t is " in found.text
    assert compare_feeds(shifted, (2,), (0, 1, 3), Arguments("x", "y")).parts["labels"] == "other"


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", range(5))
def test_more_arguments_do_not_make_a_difference_by_chance(seed):
    draw = torch.Generator().manual_seed(seed)
    values = {
        f"a{index}": np.stack(
            [
                torch.stack([features_of(torch.randn(BATCH, generator=draw), torch.empty(0)) for _ in range(4)])
                for _ in range(STEPS)
            ]
        )
        for index in range(8)
    }
    found = [
        compare_feeds(images(), (r,), tuple({0, 1, 2, 3} - {r}), Arguments("x", "", values)).parts for r in (0, 1, 3)
    ]
    assert {each["inputs"] for each in found} == {"alike"}


class Condition(NamedTuple):
    time: torch.Tensor
    kind: torch.Tensor


class Conditioned(nn.Linear):
    def forward(self, x, condition, *, rest=None):
        return super().forward(x) * condition.time[:, None] + condition.kind[:, None]


def test_all_arguments_of_a_pass_have_features_by_their_names(tmp_path):
    """Of nested ones too; what autograd has made, and the model's own weights, are left out."""
    model = Conditioned(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, kind = torch.ones(4, 3), torch.tensor([1, 0, 0, 0])
    with trueline.watch(model, optimizer, out=str(tmp_path / "run"), plan={"every": 1}):
        for step in range(4):
            time = torch.full((4,), torch.inf if step == 3 else 1.0 + step)
            rest = {"mask": torch.zeros(4), "made": model.weight * 2, "own": model.weight, "several": [kind, kind * 2]}
            model(x, Condition(time, kind), rest=rest).mean().backward()
            optimizer.step()
    run = trueline.open_run(str(tmp_path / "run"))
    assert run.env[0].arguments == [["x", "", "time", "kind", "mask", "several", "several[1]"]]
    found = model_arguments(run, [0], run.steps)
    assert (found.inputs, found.labels, list(found.by_name)) == ("x", "", run.env[0].arguments[0][2:])
    assert found.by_name["time"][:3, 0, 0].tolist() == [1.0, 2.0, 3.0]
    assert found.by_name["kind"][0, 0, 2] == 0.75
    assert found.by_name["several[1]"][0, 0, 0] == 0.5
    assert [not_finite(run, step, [0]) for step in (2, 3)] == [[], ["time"]]
    assert not run.live_findings


def test_passes_that_are_called_otherwise_are_kept_apart(tmp_path):
    """As a model that is called with a mask at every second step, and in two ways within the last."""
    model = Conditioned(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    condition = Condition(torch.ones(4), torch.ones(4))
    with trueline.watch(model, optimizer, out=str(tmp_path / "run"), plan={"every": 1}):
        for step in range(4):
            for rest in [None] * (step % 2 == 0 or step == 3) + [torch.ones(4)] * (step % 2 == 1):
                model(torch.ones(4, 3), condition, rest=rest).mean().backward()
            optimizer.step()
    run = trueline.open_run(str(tmp_path / "run"))
    assert run.env[0].arguments == [["x", "", "time", "kind"], ["x", "", "time", "kind", "rest"]]
    found = model_arguments(run, [0], run.steps)
    assert np.isfinite(found.by_name["rest"][:, 0, 0]).tolist() == [False, True, False, False]
    assert np.isfinite(found.by_name["time"][:, 0, 0]).all()


def test_a_batch_given_by_hand_has_labels_that_the_model_is_not_called_on(tmp_path):
    model = Conditioned(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y, condition = torch.ones(4, 3), torch.zeros(4), Condition(torch.ones(4), torch.ones(4))
    with trueline.watch(model, optimizer, out=str(tmp_path / "run"), plan={"every": 1}) as watch, watch.step((x, y)):
        (model(x, condition) - y).mean().backward()
        optimizer.step()
    run = trueline.open_run(str(tmp_path / "run"))
    assert run.env[0].arguments == [["x", "", "time", "kind"]]
