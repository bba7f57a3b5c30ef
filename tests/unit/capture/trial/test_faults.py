"""Faults that are planted in a job that knows nothing of them: what they touch, and when."""

import json
import random

import pytest
import torch
from torch import nn
from torch.nn import functional

from trueline.capture.trial.faults.kinds import KINDS, fault_of
from trueline.capture.trial.faults.samples import labels_of

RATE = 0.1
X = torch.ones(2, 3)


def planted(folder, kind, *, at=2, steps=4, **settings):
    """A training of ``steps`` updates with a fault: weights after each, the rate in force at each, and the document."""
    torch.manual_seed(0)
    fault = fault_of(kind, at=at, folder=str(folder), **settings)
    fault._names = {}
    model = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    fault._before_update(optimizer, (), {})
    weights, rates, losses = [], [], []
    for _ in range(steps):
        model.train()
        fault._before_call(model)
        loss = model(torch.ones(2, 4)).square().mean()
        fault._around_backward(lambda loss: (losses.append(loss.detach()), loss.backward()), loss)
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        fault._count(optimizer, (), {})
        weights.append([param.detach().clone() for param in model.parameters()])
        model.zero_grad(set_to_none=True)
    return weights, rates, losses, json.loads((folder / "planted-0.json").read_text())


def test_in_place_it_changes_nothing(tmp_path):
    _, rates, _, told = planted(tmp_path, "none")
    assert (told["touched"], told["world"], rates) == (0, 1, [RATE] * 4)


def test_the_rate_is_larger_from_its_step_on_and_put_back_after_each_update(tmp_path):
    _, rates, _, told = planted(tmp_path, "rate", size=1.1)
    assert rates == pytest.approx([RATE, RATE, 1.1 * RATE, 1.1 * RATE])
    assert (told["touched"], told["step"], told["what"]) == (2, 2, "0.1")


def test_the_loss_that_backward_is_called_on_is_larger(tmp_path):
    *_, usual, _ = planted(tmp_path, "none")
    *_, losses, told = planted(tmp_path, "loss", size=1.5)
    assert [float(loss / other) for loss, other in zip(losses[:3], usual[:3], strict=True)] == [1.0, 1.0, 1.5]
    assert told["touched"] == 2


def test_one_update_of_one_parameter_is_lost(tmp_path):
    weights, *_, told = planted(tmp_path, "update", at=1)
    assert torch.equal(weights[1][0], weights[0][0])
    assert not torch.equal(weights[1][2], weights[0][2])
    assert not torch.equal(weights[2][0], weights[1][0])
    assert (told["touched"], told["step"], told["what"]) == (1, 1, "0.weight")


def test_a_bit_doubles_or_halves_one_weight_once(tmp_path):
    usual, *_ = planted(tmp_path, "none", steps=1)
    fault = fault_of("bit", at=0, folder=str(tmp_path))
    weight = nn.Parameter(usual[0][0].clone())
    fault.target = weight
    fault.at_call(nn.Identity())
    fault.at_call(nn.Identity())
    ratio = (weight.detach() / usual[0][0]).flatten()
    assert (ratio != 1).sum() == 1
    assert float(ratio[ratio != 1][0]) in (2.0, 0.5)


def test_one_gradient_has_one_nan_at_one_step(tmp_path):
    weights, *_, told = planted(tmp_path, "nan", at=2)
    assert int(weights[2][0].isnan().sum()) == 1
    assert not weights[1][0].isnan().any()
    assert (told["touched"], told["step"]) == (1, 2)


def test_a_gradient_that_nobody_reduces_counts_as_untouched(tmp_path):
    assert planted(tmp_path, "unreduced")[-1]["touched"] == 0


def test_a_reduced_gradient_becomes_the_own_one_again(tmp_path):
    fault = fault_of("unreduced", at=0, folder=str(tmp_path))
    weight = nn.Parameter(torch.ones(3))
    fault.target = weight
    fault._before_call(nn.Identity())

    def reducing(loss):
        loss.backward()
        weight.grad.mul_(0.5)

    fault._around_backward(reducing, (weight * 4).sum())
    assert weight.grad.tolist() == [4.0] * 3
    fault.after_update([weight])
    weight.grad = None
    fault._around_backward(reducing, (weight * 2).sum())
    assert weight.grad.tolist() == [2.0] * 3


def test_evaluation_mode_counts_what_acts_otherwise(tmp_path):
    told = planted(tmp_path, "mode")[-1]
    assert (told["touched"], told["what"]) == (2, "1 modules such as Dropout")


def test_a_tenth_of_the_labels_is_of_another_class_whenever_it_is_read(tmp_path):
    fault = fault_of("labels", at=0, folder=str(tmp_path), size=0.1)
    indices, target = list(range(2000)), torch.randint(5, (2000,))
    target[:200] = -100
    reads = [target.clone(), target.clone()]
    for labels in reads:
        fault._spoil(labels, indices)
    wrong = reads[0] != target
    assert 0.07 < float(wrong[200:].float().mean()) < 0.13
    assert not wrong[:200].any()
    assert int(reads[0].max()) < 5
    assert torch.equal(*reads)


@pytest.mark.parametrize("workers", [0, 1])
def test_labels_of_a_loader_are_those_of_the_samples_that_it_drew(tmp_path, workers):
    fault = fault_of("labels", at=0, folder=str(tmp_path), size=0.3)
    samples = [(torch.tensor(float(index)), index % 4) for index in range(32)]
    base = torch.utils.data.dataloader._BaseDataLoaderIter
    draw, fetch = base._next_index, base.__next__
    read = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "_next_index", lambda iterator: fault._around_draw(draw, iterator))
        patch.setattr(base, "__next__", lambda iterator: fault._around_next(fetch, iterator))
        loader = torch.utils.data.DataLoader(samples, batch_size=4, shuffle=True, num_workers=workers)
        for _ in range(2):
            for inputs, labels in loader:
                for index, label in zip(inputs.int().tolist(), labels.tolist(), strict=True):
                    assert read.setdefault(index, label) == label
    assert 0 < sum(label != index % 4 for index, label in read.items()) < 20


@pytest.mark.parametrize(
    ("batch", "is_known"),
    [
        ({"input_ids": torch.ones(2, 3), "labels": torch.ones(2, 3)}, True),
        ((torch.ones(2, 3), torch.ones(2)), True),
        ({"input_ids": torch.ones(2, 3)}, False),
        (torch.ones(2, 3), False),
        ({"input_ids": X, "labels": X}, False),
    ],
)
def test_labels_are_known_by_their_name_or_as_the_last_of_a_pair(batch, is_known):
    assert (labels_of(batch) is not None) == is_known


def test_of_numbers_the_opposite_is_taken(tmp_path):
    fault = fault_of("labels", at=0, folder=str(tmp_path), size=1.0)
    for numbers, opposite in (([0.0, 1.0], [1.0, 0.0]), ([-3.0, 5.0], [3.0, -5.0])):
        labels = torch.tensor(numbers)
        fault._spoil(labels, [0, 1])
        assert labels.tolist() == opposite


def drawn(fault, indices):
    class Draw:
        _dataset = range(8)

    return fault._around_draw(lambda iterator: indices, Draw())


def test_another_order_is_a_shuffle_of_the_same_samples(tmp_path):
    fault = fault_of("order", at=0, folder=str(tmp_path))
    state = torch.get_rng_state()
    draws = drawn(fault, [0, 1, 2, 3]) + drawn(fault, [4, 5, 6, 7])
    assert sorted(draws) == list(range(8)) != draws
    assert torch.equal(torch.get_rng_state(), state), "the job draws what it would draw"
    with torch.no_grad():
        assert drawn(fault, [0, 1, 2, 3]) == [0, 1, 2, 3], "what is evaluated stays as it is"
    assert drawn(fault, [None]) == [None], "a stream has no indices"


def test_one_rank_reads_what_another_draws(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    ranks = [fault_of("samples", at=0, folder=str(tmp_path)) for _ in range(2)]
    for draw in ([0, 2], [4, 6]):
        monkeypatch.setenv("RANK", "0")
        assert drawn(ranks[0], draw) == draw
        monkeypatch.setenv("RANK", "1")
        assert drawn(ranks[1], [index + 1 for index in draw]) == draw
    assert json.loads((tmp_path / "planted-1.json").read_text())["touched"] == 2


def test_a_rank_waits_once_for_one_that_draws_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr("trueline.capture.trial.faults.samples.PATIENCE_S", 0.01)
    fault = fault_of("samples", at=0, folder=str(tmp_path))
    assert drawn(fault, [1]) == [1]
    monkeypatch.setattr("trueline.capture.trial.faults.samples.PATIENCE_S", 1e9)
    assert drawn(fault, [3]) == [3]


@pytest.mark.parametrize(
    "make",
    [
        lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=20),
        lambda optimizer: torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=20),
        lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(1 - step / 20, 0)),
        lambda optimizer: torch.optim.lr_scheduler.MultiStepLR(optimizer, [6, 12]),
        lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 4),
        lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, total_steps=21, pct_start=0.5),
    ],
)
def test_schedules_come_to_their_end_in_half_the_steps(tmp_path, make):
    fault = fault_of("schedule", at=0, folder=str(tmp_path))

    def rates(is_short):
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=1.0)
        init = torch.optim.lr_scheduler.LRScheduler.__init__
        with pytest.MonkeyPatch.context() as patch:
            if is_short:
                patch.setattr(
                    torch.optim.lr_scheduler.LRScheduler,
                    "__init__",
                    lambda *args, **kwargs: fault._around_init(init, *args, **kwargs),
                )
            schedule = make(optimizer)
        values = []
        for _ in range(20):
            values.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return values

    assert rates(True)[:10] == pytest.approx(rates(False)[::2], abs=1e-6)
    assert fault._num_touched


def test_each_kind_stays_away_from_other_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for kind in sorted(set(KINDS) - {"schedule", "unreduced", "samples"}):
        folder = tmp_path / kind
        folder.mkdir()
        assert planted(folder, kind, size=random.uniform(2, 3))[-1]["touched"] == 0, kind


def test_the_loss_is_scaled_once_below_a_scaler(tmp_path):
    fault = fault_of("loss", at=0, folder=str(tmp_path), size=2.0)
    scaled = fault._around_scale(lambda scaler, loss: loss * 8, None, torch.tensor(1.0))
    assert float(scaled) == 16.0
    assert float(fault.of_loss(scaled)) == 16.0
    assert float(fault.of_loss(functional.mse_loss(torch.ones(1), torch.zeros(1)))) == 2.0
