"""Facts of inputs: between which numbers they lie, of a real model that reads them."""

import pytest
import torch
from tests.unit.healthy_run import write_run
from torch import nn
from torch.nn import functional

import trueline
from trueline.laws.inputs import facts
from trueline.schema.columns.input_values import InputFact, facts_text, input_values
from trueline.store.reader import Run


def trained(tmp_path, pictures, targets):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan={"every": 1}):
        for x, y in zip(pictures, targets, strict=True):
            for part in (slice(0, 4), slice(4, 8)):
                functional.mse_loss(model(x[part])[:, 0], y[part]).backward()
            optimizer.step()
            optimizer.zero_grad()
    return Run(tmp_path / "run")


def marks_of(value):
    (subject,) = facts.SUBJECTS
    return [mark.name for mark in subject.marks if mark.applies(value)]


@pytest.mark.parametrize(
    ("scale", "marks"), [(1.0, []), (255.0, ["inputs-large"]), (1 / 255, ["inputs-tiny"]), (0.0, [])]
)
def test_the_range_is_over_all_passes_and_steps(tmp_path, scale, marks):
    pictures = torch.rand(3, 8, 4, 4, generator=torch.Generator().manual_seed(0))
    pictures[1, 7, 0, 0], pictures[2, 0, 0, 0] = 1.0, 0.0
    targets = torch.linspace(-2.0, 3.0, 24).view(3, 8)
    text, value = facts.ranges(trained(tmp_path, pictures * scale, targets))
    (read,) = value["inputs"].values()
    assert read == pytest.approx([0.0, scale])
    assert value["targets"] == {"mse_loss": pytest.approx([-2.0, 3.0])}
    assert marks_of(value) == marks
    assert text.endswith("the target of mse_loss is between -2 and 3")


def test_targets_that_are_large_or_tiny_are_marked():
    assert marks_of({"inputs": {}, "targets": {"mse_loss": [-400.0, 2.0]}}) == ["targets-large"]
    assert marks_of({"inputs": {"x": [-1.0, 1.0]}, "targets": {"mse_loss": [0.0, 0.004]}}) == ["targets-tiny"]


def test_integers_are_no_such_fact_and_older_runs_do_not_tell(tmp_path):
    of_ids = [InputFact("ids", False, "torch.int64", (4, 8)), InputFact("x", False, "torch.float32", (4, 8))]
    older = [7, 0, 0, 0] * 2
    assert [value.digest for value in input_values(facts_text(of_ids), older)] == [7, 7]
    run = write_run(tmp_path, {(0, 0): {"input_facts": facts_text(of_ids), "input_values": older}})
    assert facts.ranges(run) is None
