"""What a cross-entropy is without a look at the inputs, beside the losses of a training."""

import math

import numpy as np
import pytest
import torch
from tests.unit.healthy_run import healthy_rows, write_run
from torch import nn

import trueline
from trueline.judge.facts.training_facts import read_facts
from trueline.laws.terms.columns import FUNCTIONS, NUM_FIELDS

SHARES = np.array([5, 3, 2])
ENTROPY = -sum(share * math.log(share) for share in SHARES / 10)


def fact_of(run, name="chance"):
    return next((fact for fact in read_facts(run).facts if fact.name == name), None)


def rows_with(loss_at, first=1.1, terms=1):
    """Of 40 steps, looked at in the first: 1000 targets of three classes."""
    nan, rows = float("nan"), healthy_rows(1, 40)
    for (step, _), row in rows.items():
        row["loss"] = loss_at(step)
    row = [0, FUNCTIONS.index("cross-entropy"), 1, nan, first, first, 1.0, *[nan] * (NUM_FIELDS - 7)]
    other = [0, 0, 1, nan, nan, first, 1.0, *[nan] * (NUM_FIELDS - 7)]
    rows[0, 0] |= {"loss_terms": row + other * (terms - 1), "class_counts": [3, 1000, *(100 * SHARES).tolist()]}
    return rows


def test_shares_of_many_classes_are_not_known(tmp_path):
    rows = rows_with(lambda step: 1.0 + 0.05 * (-1) ** step)
    rows[0, 0]["class_counts"] = [65, 1000, *[16] * 25, *[15] * 40]
    assert "lower" not in fact_of(write_run(tmp_path / "run", rows)).value


@pytest.mark.parametrize(("level", "is_lower"), [(ENTROPY, False), (1.5, False), (0.7, True)])
def test_losses_are_lower_than_a_constant_prediction_or_not(tmp_path, level, is_lower):
    fact = fact_of(write_run(tmp_path / "run", rows_with(lambda step: level + 0.05 * (-1) ** step)))
    assert fact.value["constant"] == pytest.approx(ENTROPY + 2 / 2000, rel=1e-9)
    assert fact.value["lower"] is is_lower
    assert not fact.marks


def test_a_loss_with_other_terms_is_not_compared_with_a_constant(tmp_path):
    fact = fact_of(write_run(tmp_path / "run", rows_with(lambda step: 1.0, terms=2)))
    assert "constant" not in fact.value


def test_a_first_loss_far_above_that_of_equal_chances_is_marked(tmp_path):
    fact = fact_of(write_run(tmp_path / "run", rows_with(lambda step: 0.5, first=1.37e6)))
    assert fact.value["uniform"] == pytest.approx(math.log(3))
    assert set(fact.marks) == {"first-loss-above-chance"}


def test_classes_are_counted_as_they_are_trained_on(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    targets = torch.tensor([0, 1, 1, 3, -100, 1])
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan={"every": 1}):
        for _ in range(2):
            for _ in range(2):
                nn.functional.cross_entropy(model(torch.randn(6, 4)), targets).backward()
            optimizer.step()
            optimizer.zero_grad()
    run = trueline.open_run(tmp_path / "run")
    assert run.lists("class_counts")[0, 0].tolist() == [5, 10, 2, 6, 0, 2, 0]


def test_of_many_classes_only_their_number_is_kept(tmp_path):
    model = nn.Linear(4, 2000)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan={"every": 1}):
        nn.functional.cross_entropy(model(torch.randn(6, 4)), torch.arange(6)).backward()
        optimizer.step()
    run = trueline.open_run(tmp_path / "run")
    assert run.lists("class_counts")[0, 0].tolist() == [2000, 6]
    assert fact_of(run).value["uniform"] == pytest.approx(math.log(2000))


@pytest.mark.parametrize(("rate", "is_lower"), [(0.0, False), (0.3, True)])
def test_a_mean_squared_error_is_compared_with_the_variance_of_its_targets(tmp_path, rate, is_lower):
    draw, mean = torch.Generator().manual_seed(0), torch.tensor([3.0, -1.0])
    model = nn.Linear(4, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(mean)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan={"every": 1}):
        for _ in range(40):
            x = torch.randn(64, 4, generator=draw)
            nn.functional.mse_loss(model(x), mean + 2 * x[:, :2]).backward()
            optimizer.step()
            optimizer.zero_grad()
    fact = fact_of(trueline.open_run(tmp_path / "run"))
    # Of 7 looks at 128 numbers with variance 4, whose mean is known to 4 * sqrt(2 / 896).
    assert fact.value["constant"] == pytest.approx(4, abs=4 * 4 * math.sqrt(2 / 896))
    assert fact.value["lower"] is is_lower
