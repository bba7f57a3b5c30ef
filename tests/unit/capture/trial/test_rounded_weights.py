"""Weights that are moved by one rounding: by how much, once, and alike on replicas."""

import pytest
import torch
from torch import nn

from trueline.capture.model import patches
from trueline.capture.trial.rounded_weights import RoundedWeights


@pytest.fixture
def moved():
    """The relative change of the weights of a model by its first pass, and the model; ``seed`` draws the signs."""
    installed = []

    def call(seed, dtype=torch.float32, passes=1, **options):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(dtype)
        before = [param.detach().clone() for param in model.parameters()]
        rounded = RoundedWeights(seed)
        rounded.install()
        installed.append(rounded)
        for _ in range(passes):
            with torch.autocast("cpu", torch.bfloat16, enabled=bool(options)):
                model(torch.ones(2, 8, dtype=dtype))
        rounded._at_update()
        return torch.cat([
            ((param.detach().double() - old.double()) / old.double()).flatten()
            for param, old in zip(model.parameters(), before, strict=True)
        ])  # fmt: skip

    yield call
    for rounded in installed:
        patches.module_call.remove(rounded._at_call)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_weight_moves_by_about_one_rounding_of_its_dtype(moved, dtype):
    eps = torch.finfo(dtype).eps
    change = moved(1, dtype)
    assert (change != 0).all()
    assert change.abs().max() <= 2 * eps
    assert (change > 0).any()
    assert (change < 0).any()


def test_under_autocast_it_is_a_rounding_of_what_is_computed_in(moved):
    change = moved(1, autocast=True)
    assert change.abs().min() > torch.finfo(torch.bfloat16).eps / 4


def test_weights_move_once_and_alike_for_one_seed(moved):
    assert torch.equal(moved(1), moved(1, passes=3))
    assert not torch.equal(moved(1), moved(2))
