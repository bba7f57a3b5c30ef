"""Batches and samples of nothing but zeros are found at any step, and data that have zeros are left alone."""

from __future__ import annotations

import pytest
import torch
from tests.unit.asked import asked
from torch import nn

import trueline
from trueline.tensor.digest import digest_of_zeros, digest_rows

B, D, STEPS = 8, 16, 40


def train(folder, change, *, sampled_every=7, data=torch.randn, width=D, micro=1):
    """The findings of zeros after a training whose batches ``change(step, x)`` spoils."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with trueline.watch(model, optimizer, out=folder, plan={"every": sampled_every}):
        for step in range(STEPS):
            for part in range(micro):
                x = data(B, width)
                change(step + part / micro, x)
                model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return [finding for finding in asked(folder, "input-constant")[0] if finding.evidence.get("kind") == "zeros"]


def spoils(at, rows=slice(None)):
    def change(step, x):
        if step in at:
            x[rows] = 0

    return change


@pytest.mark.parametrize("at", [33, 35])
def test_a_batch_of_zeros_is_found_at_steps_that_are_not_sampled_too(tmp_path, at):
    (finding,) = train(tmp_path / "run", spoils([at]))
    assert (finding.severity, finding.step_first, finding.step_last, finding.measured) == ("warning", at, at, B)
    assert finding.claim.startswith(f"All {B} samples that the model reads at step {at} ")
    assert finding.false_alarm_rate < 1e-6


def test_one_of_two_micro_batches_is_found(tmp_path):
    (finding,) = train(tmp_path / "run", spoils([33]), micro=2)
    assert (finding.step_first, finding.measured) == (33, B)


def test_a_sample_of_zeros_is_found(tmp_path):
    (finding,) = train(tmp_path / "run", spoils([33], slice(3, 4)))
    assert (finding.step_first, finding.measured, finding.false_alarm_rate) == (33, 1, None)


def drawn_on_black(*shape):
    x = torch.randn(*shape)
    x[torch.rand(shape) < 0.8] = 0
    return x


def one_hot(*shape):
    return torch.eye(shape[1])[torch.randint(shape[1], shape[:1])]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("change", "facts"),
    [
        (spoils([]), {}),
        (spoils(range(9, STEPS, 10), slice(-3, None)), {}),  # filled up
        (spoils([5, 20], slice(3, 4)), {"data": drawn_on_black}),
        (spoils([]), {"data": one_hot}),
        (spoils([5, 20], slice(3, 4)), {"data": one_hot}),  # a mask of nothing
        (spoils(range(STEPS)), {}),  # queries that begin at zero
        (spoils(range(0, STEPS, 2)), {}),
        (spoils(range(STEPS), slice(0, 2)), {}),
        (spoils([5, 20], slice(3, 4)), {"width": 3}),  # three numbers may be zero
    ],
)
def test_zeros_that_data_have_are_left_alone(tmp_path, change, facts):
    assert train(tmp_path / "run", change, **facts) == []


@pytest.mark.parametrize("shape", [(4, 16), (4, 3, 40, 40), (4, 7)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_the_digest_of_zeros_is_that_of_a_row(shape, dtype):
    zeros = torch.zeros(shape, dtype=dtype)
    assert digest_rows(zeros).tolist() == [digest_of_zeros(zeros)] * 4
