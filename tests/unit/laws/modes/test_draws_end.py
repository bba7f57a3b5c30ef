"""draws-end: dropout that is gone after an evaluation is said; what never draws, goes on or is scheduled is not."""

import pytest
import torch
from tests.unit.asked import asked
from tests.unit.healthy_run import healthy_rows, write_run
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import trueline
from trueline.laws.modes import draws_end
from trueline.schema.columns.evaluations import UntrainedPass, evaluations_text

STEPS, EVERY = 40, 10


class Overwrites(nn.Module):
    """Sets its own probability to 0 in evaluation mode."""

    def __init__(self, p=0.2):
        super().__init__()
        self.dropout_p = p

    def forward(self, x):
        if not self.training:
            self.dropout_p = 0.0
        return F.dropout(x, self.dropout_p)


class Noise(nn.Module):
    """Random numbers that are no dropout, by a flag of its own which an evaluation turns off."""

    def __init__(self):
        super().__init__()
        self.on = True

    def forward(self, x):
        if not self.training:
            self.on = False
        return x + 0.1 * torch.randn_like(x) if self.on else x


def model_of(part):
    return nn.Sequential(nn.Linear(4, 8), part, nn.Linear(8, 1))


def evaluate(model, x):
    model.eval()
    with torch.no_grad():
        model(x)
    model.train()


def trained(folder, model, *, at=evaluate, before=lambda model, step: None):
    torch.manual_seed(0)
    data = DataLoader(TensorDataset(torch.randn(80, 4)), batch_size=8, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = None if folder is None else trueline.watch(model, optimizer, out=folder, plan={"every": 1})
    step = 0
    while step < STEPS:
        for (x,) in data:
            before(model, step)
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % EVERY == 0:
                at(model, x)
    if watch is not None:
        watch.close()
    return [param.detach().clone() for param in model.parameters()]


def said(folder, model, **settings):
    trained(folder, model, **settings)
    findings, why = asked(folder, draws_end.CODE)
    return why or findings


def only_some_train_again(model, x):
    model.eval()
    with torch.no_grad():
        model(x)
    model[0].train()


@pytest.mark.parametrize(
    ("part", "at", "end"),
    [
        (Overwrites, evaluate, "no part has a dropout above 0 any more, before it was up to 0.2"),
        (Noise, evaluate, "dropout, or what else drew, is gone in training"),
        (lambda: nn.Dropout(0.1), only_some_train_again, "3 modules more than before stay in evaluation mode"),
    ],
)
def test_draws_that_end_with_an_evaluation_are_to_be_confirmed(tmp_path, part, at, end):
    (finding,) = said(tmp_path / "run", model_of(part()), at=at)
    assert (finding.severity, finding.step_first) == ("confirm", 10)
    assert finding.claim == (
        "Forward passes drew random numbers up to step 9 and none from step 10 on (rank 0, to step 39), after an "
        f"evaluation: {end}."
    )


def never(model, x):
    """No evaluation."""


def draws_beside(model, x):
    evaluate(model, x)
    torch.randn(3)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("part", "settings"),
    [
        (lambda: nn.Dropout(0.1), {}),
        (nn.ReLU, {}),
        (nn.ReLU, {"at": draws_beside}),
        (lambda: nn.Sequential(nn.Dropout(0.1), Overwrites()), {}),  # another part draws on
        (lambda: nn.Dropout(0.1), {"at": lambda model, x: model.eval()}),  # evaluation-mode says so
        (lambda: nn.Dropout(0.0), {"before": lambda model, step: step == 12 and model[1].__setattr__("p", 0.1)}),
        (lambda: nn.Dropout(0.1), {"before": lambda model, step: step == 15 and model[1].__setattr__("p", 0.0)}),
        (lambda: nn.Dropout(0.1), {"before": lambda model, step: step == 4 and model[1].__setattr__("p", 0.0)}),
        (Noise, {"before": lambda model, step: model[1].__setattr__("on", step % 3 == 0)}),
    ],
)
def test_healthy_trainings_are_silent(tmp_path, part, settings):
    findings = said(tmp_path / "run", model_of(part()), **settings)
    assert findings == []


def test_without_an_evaluation_it_cannot_be_told(tmp_path):
    assert said(tmp_path / "run", model_of(nn.Dropout(0.1)), at=never) == [
        "no forward pass in evaluation mode was seen"
    ]


def run_of(path, *, host, device, num_micro=1, evaluated=20, steps=40):
    """Two ranks whose steps draw from these generators, by step."""
    rows = healthy_rows(2, steps)
    for (step, rank), row in rows.items():
        drawn = [(step + 1) * host(step), (step + 1) * device(step), 0, 0]
        row |= {"rng_drawn": drawn, "eval_modules": 0, "evaluates": 0, "num_micro": num_micro}
        if step == evaluated and rank == 0:
            row |= {"evaluations": evaluations_text([UntrainedPass(step, training=False)])}
    write_run(path, rows)
    return path


def until(last):
    return lambda step: step < last


@pytest.mark.parametrize(
    ("settings", "ranks"),
    [
        ({"host": until(0), "device": until(20)}, (0,)),
        ({"host": until(99), "device": until(20), "num_micro": 4}, (0,)),
        ({"host": until(20), "device": until(99)}, None),  # dropout goes on
        ({"host": until(20), "device": until(0), "num_micro": 4}, None),  # loaders draw between micro-batches
        ({"host": until(20), "device": until(0)}, (0,)),
        ({"host": until(0), "device": until(7), "evaluated": 7}, None),  # too few to know
        ({"host": until(0), "device": until(33), "evaluated": 33}, None),
    ],
)
def test_draws_of_the_device_count_before_those_of_the_host(tmp_path, settings, ranks):
    findings, why = asked(run_of(tmp_path / "run", **settings), draws_end.CODE)
    assert ([finding.ranks for finding in findings], why) == ([] if ranks is None else [ranks], [])
