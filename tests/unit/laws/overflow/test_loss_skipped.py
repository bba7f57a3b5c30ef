"""loss-skipped: losses that are not finite and that no backward pass is called on."""

import pytest
import torch
from tests.unit.healthy_run import healthy_rows, write_run
from torch import nn

import trueline
from trueline.laws.overflow.loss_skipped import check
from trueline.schema.errors import CannotTell

BAD = (3, 4, 9)
"""Batches with a label that is missing."""


def batches(bad=BAD, num=16):
    draw = torch.Generator().manual_seed(1)
    for number in range(num):
        x, y = torch.randn(8, 6, generator=draw), torch.randn(8, 1, generator=draw)
        if number in bad:
            y[2] = float("nan")
        yield x, y


class Job:
    """A model, its optimizer and a Watch of every step."""

    def __init__(self, out):
        torch.manual_seed(3)
        self.out = out
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        self.updates = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.watch = trueline.watch(self.model, self.updates, out=out, plan={"every": 1})

    def update(self, loss):
        loss.backward()
        self.updates.step()
        self.updates.zero_grad()

    def end(self):
        self.watch.close()
        return check(trueline.open_run(self.out))


def passed_over(job, bad=BAD):
    for x, y in batches(bad):
        loss = (job.model(x) - y).square().mean()
        if torch.isnan(loss):
            continue
        job.update(loss)


def by_a_function(job):
    def loss_of(x, y):
        return (job.model(x) - y).square().mean()

    for x, y in batches():
        total = loss_of(x, y)
        if torch.isfinite(total):
            job.update(total)
        else:
            job.updates.zero_grad()


@pytest.mark.parametrize("loop", [passed_over, by_a_function])
def test_batches_that_are_passed_over_are_counted(tmp_path, loop):
    job = Job(tmp_path / "run")
    loop(job)
    (finding,) = job.end()
    assert (finding.severity, finding.measured) == ("confirm", 3.0)
    assert finding.claim.startswith("3 of ")
    assert " batches gave a loss that is not finite, and no backward pass was called on it" in finding.claim


def two_passes_a_loss(job):
    for x, y in batches(()):
        first = job.model(x)
        loss = (first - job.model(x + 0.1)).square().mean() + (first - y).square().mean()
        job.update(loss)


def a_pass_for_the_log(job):
    for x, y in batches(()):
        loss = (job.model(x) - y).square().mean()
        job.update(loss)
        seen = (job.model(x) - y).abs().mean()
        assert torch.isfinite(seen)


def a_bound_that_is_infinite(job):
    best = torch.tensor(float("inf"))
    for x, y in batches(()):
        job.model(x)
        loss = (job.model(x) - y).square().mean()
        job.update(loss)
        best = torch.minimum(best, loss.detach())


def evaluated_without_gradient(job):
    for number, (x, y) in enumerate(batches()):
        if number in BAD:
            with torch.no_grad():
                assert torch.isnan((job.model(x) - y).square().mean())
            continue
        job.update((job.model(x) - y).square().mean())


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "loop", [two_passes_a_loss, a_pass_for_the_log, a_bound_that_is_infinite, evaluated_without_gradient]
)
def test_passes_without_backward_whose_losses_are_finite_are_left_alone(tmp_path, loop):
    job = Job(tmp_path / "run")
    loop(job)
    assert job.end() == []


def test_a_loss_that_stays_in_its_variable_is_counted_once(tmp_path):
    job = Job(tmp_path / "run")
    for number, (x, y) in enumerate(batches((3,))):
        loss = (job.model(x) - y).square().mean()
        if number == 3:
            for _ in range(4):
                job.model(x)
            continue
        job.update(loss)
    (finding,) = job.end()
    assert finding.measured == 1.0


def test_a_training_that_is_not_finite_itself_is_told_by_its_loss(tmp_path):
    rows = healthy_rows(1, 6)
    for (step, _), row in rows.items():
        row["skipped_losses"] = [4, 2, 1]
        row["loss"] = float("nan") if step >= 2 else 1.0
    (finding,) = check(write_run(tmp_path / "later", rows))
    assert finding.measured == 2.0
    for row in rows.values():
        row["loss"] = float("nan")
    assert check(write_run(tmp_path / "all", rows)) == []


def test_cannot_tell_without_a_loss(tmp_path):
    rows = healthy_rows(1, 3)
    for row in rows.values():
        row["loss"] = None
    with pytest.raises(CannotTell, match="no loss was measured"):
        check(write_run(tmp_path / "run", rows))


def test_watching_changes_nothing(tmp_path):
    job = Job(tmp_path / "run")
    passed_over(job)
    watched = [param.detach().clone() for param in job.model.parameters()]
    job.end()
    bare = object.__new__(Job)
    torch.manual_seed(3)
    bare.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    bare.updates = torch.optim.SGD(bare.model.parameters(), lr=0.1)
    passed_over(bare)
    assert all(param.equal(other) for param, other in zip(bare.model.parameters(), watched, strict=True))
