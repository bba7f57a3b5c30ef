"""one-for-all-samples: what is drawn once for a batch; what follows the step, the shape or the data."""

import numpy as np
import pytest
import torch
from tests.unit.healthy_run import write_run

from trueline.laws.inputs import one_for_all_samples
from trueline.laws.inputs.probe import _merge_passes, _numbers
from trueline.schema.columns.input_values import NOISE, ROWS_ALIKE, InputFact, facts_text
from trueline.schema.errors import CannotTell

ROWS = 4
X = InputFact("x", False, "torch.float32", (ROWS, 8))
T = InputFact("t", False, "torch.float32", (ROWS,))
DRAWS = np.random.default_rng(0).random(64)


def single(number):
    return [1, int(np.float64(number).view(np.int64)), ROWS_ALIKE]


def drawn(step):
    return [step, *single(DRAWS[step])]


def samples(step):
    return [1000 + step, 0, 0, 0]


def found_in(tmp_path, *tensors, steps=10):
    """Of a job that reads ``tensors``: facts with the four numbers of each step."""
    rows = {}
    for step in range(steps):
        facts = [fact(step) if callable(fact) else fact for fact, _ in tensors]
        values = [number for _, of in tensors for number in of(step)]
        rows[step, 0] = {"input_facts": facts_text(facts), "input_values": values}
    return one_for_all_samples.check(write_run(tmp_path, rows))


@pytest.mark.parametrize(
    ("fact", "of"),
    [
        (T, drawn),
        (InputFact("timestep", False, "torch.int64", (ROWS, 1)), drawn),
        (InputFact("sigma", False, "torch.float32", ()), lambda step: [step, *single(DRAWS[step])[:2], 0]),
        (T, lambda step: [step, 0, 0, ROWS_ALIKE]),  # another one in each micro-batch
        (InputFact("z", False, "torch.float32", (ROWS, 512)), lambda step: [step, 0, 0, ROWS_ALIKE + NOISE]),
        (InputFact("drop_mask", False, "torch.bool", (ROWS, 8)), lambda step: [step, 0, 0, ROWS_ALIKE]),
    ],
)
def test_one_draw_for_the_batch_is_found(tmp_path, fact, of):
    (finding,) = found_in(tmp_path, (X, samples), (fact, of))
    assert (finding.severity, finding.evidence["kind"]) == ("confirm", fact.name)
    assert finding.claim == (
        f"`{fact.name}` is the same for all samples of a batch at each of 10 steps that were looked at, and another "
        "from step to step, while `x` differs between samples."
    )


@pytest.mark.parametrize(
    ("fact", "of"),
    [
        (T, samples),
        (T, lambda step: [step, *single(step / 10)]),  # follows the step
        (T, lambda step: [step, *single((step % 8) / 8)]),
        (T, lambda step: [7, *single(0.5)]),
        (T, lambda step: [step % 2, *single(step % 2)]),  # two tasks in turn
        (InputFact("lengths", False, "torch.int64", (ROWS,)), drawn),
        (InputFact("position_ids", False, "torch.int64", (ROWS, 1)), drawn),
        (InputFact("temperature", False, "torch.float32", (1,)), drawn),
        (InputFact("attention_mask", False, "torch.bool", (ROWS, 8)), lambda step: [step, 0, 0, ROWS_ALIKE]),
        (InputFact("prompt", False, "torch.int64", (ROWS, 8)), lambda step: [step, 0, 0, ROWS_ALIKE]),
        (InputFact("mse_loss", True, "torch.float32", (ROWS,)), drawn),
        (lambda step: InputFact("t", False, "torch.int64", (ROWS, 1 + step % 5)), drawn),  # follows the shape
    ],
)
def test_what_may_be_one_is_silent(tmp_path, fact, of):
    assert found_in(tmp_path, (X, samples), (fact, of)) == []


def test_samples_that_are_one_themselves_are_left_alone(tmp_path):
    assert found_in(tmp_path, (X, lambda step: [step, 0, 0, ROWS_ALIKE]), (T, drawn)) == []


def test_seven_steps_tell_nothing(tmp_path):
    with pytest.raises(CannotTell, match="fewer than 8 steps"):
        found_in(tmp_path, (X, samples), (T, drawn), steps=7)


@pytest.mark.parametrize(
    ("x", "kinds"),
    [
        (torch.full((3,), 0.5), ROWS_ALIKE),
        (torch.rand(1, 5).expand(3, 5), ROWS_ALIKE),
        (torch.rand(3, 5), 0),
        (torch.rand(1, 5), 0),
        (torch.tensor(0.5), 0),
        (torch.randn(1, 512, generator=torch.Generator().manual_seed(0)).expand(2, 512), ROWS_ALIKE + NOISE),
        (torch.tensor([True, True, False]), 0),
    ],
)
def test_the_rows_of_a_tensor_are_compared(x, kinds):
    assert int(_numbers(x)[3]) == kinds


def test_of_several_passes_each_must_have_rows_alike():
    alike, other, own = (_numbers(x) for x in (torch.full((3,), 0.5), torch.full((3,), 0.25), torch.rand(3)))
    assert _merge_passes(torch.stack([alike, other]))[1:] == [0, int(other[2]), ROWS_ALIKE, int(alike[4])]
    assert _merge_passes(torch.stack([alike, own]))[3] == 0
