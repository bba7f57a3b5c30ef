"""Slices are judged together as they are one by one."""

import numpy as np
import pytest
import torch
from tests.optimizer_settings import RULES
from tests.unit.trained_updates import trained

from trueline import open_run
from trueline.judge.series.sampled_updates import sampled_updates
from trueline.laws.optimizer.judgement import judge_updates


@pytest.fixture(scope="module")
def slices(tmp_path_factory):
    """Of two groups of different rates and formats under each rule; at step 2 one parameter has no gradient."""
    slices = []
    for number, (name, settings) in enumerate(RULES.values()):

        def make(model, name=name, settings=settings):
            model[3].to(torch.bfloat16)
            model[2] = torch.nn.Sequential(torch.nn.ReLU(), _Cast())
            groups = [{"params": [*model[1].parameters()], "lr": 2e-3}]
            groups += [{"params": [*model[0].parameters(), *model[3].parameters()]}]
            return getattr(torch.optim, name)(groups, **settings)

        def before(step, model, optimizer):
            model[0].bias.requires_grad_(step != 2)

        out = tmp_path_factory.mktemp("updates") / str(number)
        trained(out, make, steps=4, before=before)
        slices += sampled_updates(open_run(out)).slices
    return slices


class _Cast(torch.nn.Module):
    def forward(self, x):
        return x.bfloat16()


@pytest.mark.in_turn
def test_slices_that_are_judged_at_once_are_judged_as_one_by_one(slices):
    together = judge_updates(slices)
    assert {sample.law for sample in slices} == {name for name, _ in RULES.values()}
    assert any(not sample.has_gradient for sample in slices)
    for sample, update in zip(slices, together, strict=True):
        (alone,) = judge_updates([sample])
        assert update is not None
        assert alone is not None
        assert (update.sample, update.counts_right) == (sample, alone.counts_right)
        for of_name, of_name_alone in ((update.excess, alone.excess), (update.predicted, alone.predicted)):
            assert list(of_name) == list(of_name_alone)
            assert all(np.array_equal(of_name[name], of_name_alone[name], equal_nan=True) for name in of_name)
