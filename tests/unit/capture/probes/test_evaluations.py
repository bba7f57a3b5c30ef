"""Where a step evaluates several times one evaluation's loss is recorded, against the loss computed apart."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import mse_loss

import trueline

STEPS = 4


class AtOthers(torch.optim.SGD):
    """Evaluates its closure three times, at parameters that it changes behind autograd's back."""

    def step(self, closure):
        before = [param.data.clone() for param in self.param_groups[0]["params"]]
        for _ in range(3):
            loss = closure()
            for param in self.param_groups[0]["params"]:
                param.data += 0.1 * param.grad
        for param, old in zip(self.param_groups[0]["params"], before, strict=True):
            param.data = old
        super().step()
        return loss


class Called:
    """A closure that is an object."""

    def __init__(self, closure):
        self.closure = closure

    def __call__(self):
        return self.closure()


def data(step, micro):
    generator = torch.Generator().manual_seed(100 * step + micro)
    return torch.randn(4, 3, generator=generator), torch.randn(4, 2, generator=generator)


def made():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def loss_of(model, step, micro, micros):
    x, y = data(step, micro)
    return mse_loss(model(x), y) / micros


def truth(model, step, micros):
    """float: the loss of the step at these parameters, by a copy that nobody watches."""
    copy = made()
    copy.load_state_dict(model.state_dict())
    with torch.no_grad():
        return sum(float(loss_of(copy, step, micro, micros)) for micro in range(micros))


OPTIMIZERS = {
    "lbfgs": functools.partial(torch.optim.LBFGS, lr=0.5, max_iter=5),
    "line search": functools.partial(torch.optim.LBFGS, line_search_fn="strong_wolfe", max_iter=4),
    "own": functools.partial(AtOthers, lr=0.1),
    "sgd": functools.partial(torch.optim.SGD, lr=0.1),
}


def evaluate(model, optimizer, step, micros, seen):
    optimizer.zero_grad()
    total = 0.0
    for micro in range(micros):
        loss = loss_of(model, step, micro, micros)
        loss.backward()
        total += loss.detach()
        seen.append(micro)
    return total


def assert_recorded(path, truths, micros):
    run = trueline.open_run(path)
    assert [finding.claim for finding in run.live_findings] == []
    np.testing.assert_allclose(run.pivot("loss")[0][:, 0], truths, rtol=1e-6)  # float32 losses, added up in float64
    assert run.pivot("num_micro")[0][:, 0].tolist() == [micros] * len(truths)


@pytest.mark.in_turn
@pytest.mark.parametrize("micros", [1, 3])
@pytest.mark.parametrize(
    ("name", "is_object"), [*((name, False) for name in OPTIMIZERS), ("lbfgs", True), ("line search", True)]
)
def test_a_closure_has_the_loss_of_its_first_call(tmp_path, name, micros, is_object):
    model = made()
    optimizer = OPTIMIZERS[name](model.parameters())
    truths, seen = [], []
    with trueline.watch(model, optimizer, out=tmp_path / "run"):
        for step in range(STEPS):
            truths.append(truth(model, step, micros))
            closure = functools.partial(evaluate, model, optimizer, step, micros, seen)
            optimizer.step(Called(closure) if is_object else closure)
    assert (len(seen) > 2 * STEPS * micros) == (name != "sgd"), "evaluated several times"
    assert_recorded(tmp_path / "run", truths, micros)


def test_watching_that_begins_in_a_closure_has_one_evaluation_from_the_first_step_on(tmp_path):
    model = made()
    optimizer = OPTIMIZERS["lbfgs"](model.parameters())
    watches, truths = [], []

    def closure(step):
        if not watches:
            watches.append(trueline.watch(model, optimizer, out=tmp_path / "run"))
        return evaluate(model, optimizer, step, 1, [])

    for step in range(STEPS):
        truths.append(truth(model, step, 1))
        optimizer.step(functools.partial(closure, step))
    watches[0].close()
    assert_recorded(tmp_path / "run", truths, 1)


def test_micro_batches_before_the_closure_add_up_with_its_first_call(tmp_path):
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    truths = []
    with trueline.watch(model, optimizer, out=tmp_path / "run"):
        for step in range(STEPS):
            truths.append(truth(model, step, 3))
            optimizer.zero_grad()
            for micro in range(2):
                loss_of(model, step, micro, 3).backward()

            def closure(step=step):
                loss = loss_of(model, step, 2, 3)
                loss.backward()
                return loss

            optimizer.step(closure)
    assert_recorded(tmp_path / "run", truths, 3)


@pytest.mark.parametrize("has_closure", [False, True])
def test_of_two_looks_that_counts_whose_gradients_are_descended(tmp_path, has_closure):
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    truths = []
    with trueline.watch(model, optimizer, out=tmp_path / "run"):
        for step in range(STEPS):
            evaluate(model, optimizer, step, 1, [])
            with torch.no_grad():
                for param in model.parameters():
                    param += 0.05 * param.grad
            truths.append(truth(model, step, 1))
            again = functools.partial(evaluate, model, optimizer, step, 1, [])
            if has_closure:
                optimizer.step(again)
            else:
                again()
                optimizer.step()
    assert_recorded(tmp_path / "run", truths, 1)


@pytest.mark.parametrize("given", [False, True])
def test_weights_are_equal_with_and_without_watching(tmp_path, given):
    weights = []
    for is_watched in (False, True):
        model = made()
        optimizer = OPTIMIZERS["line search"](model.parameters())
        watch = trueline.watch(model, optimizer, out=tmp_path / "run") if is_watched else None
        truths = []
        for step in range(STEPS):
            truths.append(truth(model, step, 1))

            def closure(step=step, optimizer=optimizer, model=model, watch=watch):
                loss = evaluate(model, optimizer, step, 1, [])
                if watch is not None and given:
                    watch.loss(loss, tokens=4)
                return loss

            optimizer.step(closure)
        weights.append([param.detach().clone() for param in model.parameters()])
        if watch is not None:
            watch.close()
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))
    assert_recorded(tmp_path / "run", truths, 1)


@pytest.mark.parametrize("since", [0, 3])
def test_a_model_that_evaluates_from_the_first_step_on_is_noted_and_one_that_comes_to_be_left_to_checks(
    tmp_path, since
):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=tmp_path):
        for step in range(6):
            model.train(step < since)
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    run = trueline.open_run(tmp_path)
    assert any("trains in evaluation mode" in note for note in run.manifest.notes) == (since == 0)
    assert run.pivot("evaluates")[0].ravel().tolist() == [float(step >= since) for step in range(6)]
