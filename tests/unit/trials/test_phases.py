"""`trial phases` on jobs that exist in numbers only, and what is held still in a real one."""

import random

import pytest
import torch
from torch import nn

from trueline.capture.model import patches
from trueline.capture.trial.phases import ELSEWHERE, Phase, parts_of
from trueline.schema.law import is_of_update
from trueline.trials.frame.runs import Runs
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.phases.phases import CAUSES, EXPERIMENTS, PhaseTrial, ways


def tried(folder, gone, *, rate=1.0):
    """The answer where the finding is gone in the experiments ``gone``."""
    stream = random.Random(0)

    def runner(way, place):
        return Outcome(way.arm not in gone and stream.random() < rate)

    return PhaseTrial(Runs("phases", folder / "t", runner, {}), "?", EXPERIMENTS, ways()).answer()


@pytest.mark.parametrize("cause", CAUSES)
def test_each_cause_is_told_by_what_takes_the_finding_away(tmp_path, cause):
    found = tried(tmp_path, {each.name for each in EXPERIMENTS if cause in each.cures})
    assert (found.answer, found.credible) == ("confirmed", (cause,)), found
    assert found.says[0].startswith(f"It is {cause}: ")
    assert found.next


def test_a_fault_by_chance_takes_more_runs(tmp_path):
    found = tried(tmp_path, ("elsewhere", "first elsewhere"), rate=0.5)
    assert found.credible == ("kernels, first half",)
    assert found.runs > tried(tmp_path / "sure", ("elsewhere", "first elsewhere")).runs


def test_where_the_sham_takes_it_away_nothing_is_told(tmp_path):
    found = tried(tmp_path, ("sham", "fixed"))
    assert (found.answer, "timing or watching takes it away" in found.says[0]) == ("undecided", True)


def test_findings_of_updates_are_not_asked_of():
    assert is_of_update("param-frozen")
    assert not is_of_update("worker-nonfinite")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.blocks = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
        self.seen = []

    def forward(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
            self.seen.append(x.dtype)
        return x


def moved(kind, half=""):
    """Of each part how far a step of Adam moved it, beside its gradient."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    phase = Phase(kind, half=half, tell=lambda word: None)
    patches.module_call.add(phase._at_call)
    optimizer.register_step_pre_hook(phase._keep)
    optimizer.register_step_post_hook(phase._put_back)
    try:
        model(torch.randn(8, 4)).square().mean().backward()
        before = [part.weight.detach().clone() for part in parts_of(model)]
        optimizer.step()
    finally:
        patches.module_call.remove(phase._at_call)
    after = zip(parts_of(model), before, strict=True)
    return [(part.weight.detach() - old, part.weight.grad) for part, old in after]


def test_weights_that_are_fixed_or_frozen_do_not_move():
    as_it_is = moved("sham")
    assert all(step.abs().max() > 0.05 for step, _ in as_it_is)
    assert all(step.abs().max() == 0 for step, _ in moved("fixed"))
    assert [bool(step.abs().max() > 0) for step, _ in moved("frozen", "first")] == [False, False, True, True]
    assert [bool(step.abs().max() > 0) for step, _ in moved("frozen", "second")] == [True, True, False, False]


def test_a_plain_update_goes_along_the_gradient_and_as_far():
    as_it_is = moved("sham")
    for (step, gradient), (usual, _) in zip(moved("plain"), as_it_is, strict=True):
        assert step.norm().item() == pytest.approx(usual.norm().item(), rel=1e-5)
        cosine = nn.functional.cosine_similarity(step.flatten(), -gradient.flatten(), dim=0).item()
        assert cosine == pytest.approx(1.0, abs=1e-5)
        assert nn.functional.cosine_similarity(usual.flatten(), -gradient.flatten(), dim=0) < 0.99


def test_half_a_model_computes_in_float64_where_it_is_on_the_cpu():
    told = []
    phase = Phase("elsewhere", half="second", tell=told.append)
    phase.install()
    model = Model()
    inside = []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda module, args: inside.append(args[0].dtype))
        block.forward = lambda x, block=block: inside.append(x.dtype) or nn.Linear.forward(block, x)
    try:
        out = model(torch.randn(2, 4))
    finally:
        patches.module_call.remove(phase._at_call)
    assert out.dtype == torch.float32
    assert inside[1::2] == [torch.float32, torch.float64, torch.float64]
    assert told == [f"{ELSEWHERE} float64"] * 2
