"""batches-dropped: batches that no backward pass comes to are counted; passes that are meant to have none are left."""

import pytest
import torch
from tests.unit.asked import asked
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trueline
from trueline.laws.data_split import batches_dropped


class Job:
    """A model, its optimizer, a loader of 60 batches, and another model with its own optimizer."""

    def __init__(self, out, *, opaque=False):
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        if opaque:
            self.model.register_forward_hook(lambda module, args, output: Opaque(output))
        self.critic = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        data = TensorDataset(torch.randn(240, 6), torch.randn(240, 1))
        self.loader = DataLoader(data, batch_size=4, shuffle=True)
        self.watch = out and trueline.watch(self.model, self.optimizer, out=out, plan={"every": 1})

    def loss(self, x, y):
        return (self.model(x) - y).square().mean()

    def update(self, loss):
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def batches(job):
    for _ in range(2):
        yield from enumerate(job.loader)


def collected_and_forgotten(job):
    for number, (x, y) in batches(job):
        loss = job.loss(x, y)
        if number % 3 == 2:
            job.update(loss)


def large_losses(job):
    for number, (x, y) in batches(job):
        loss = job.loss(x, y)
        if number % 10 != 4:
            job.update(loss)


def a_micro_batch_forgotten(job):
    for number, (x, y) in batches(job):
        loss = job.loss(x, y)
        if number % 4 != 1:
            loss.backward()
        if number % 4 == 3:
            job.optimizer.step()
            job.optimizer.zero_grad()


def returned_as_none(job):
    def training_step(x, y):
        loss = job.loss(x, y)
        return None if x[0, 0] > 1 else loss

    for _, (x, y) in batches(job):
        loss = training_step(x, y)
        if loss is not None:
            job.update(loss)


def run_of(folder, train):
    job = Job(folder, opaque=train is collected_unseen)
    train(job)
    job.watch.close()
    return asked(folder, batches_dropped.CODE)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "train",
    [collected_and_forgotten, large_losses, a_micro_batch_forgotten, returned_as_none],
    ids=lambda f: f.__name__,
)
def test_batches_that_are_passed_over_are_to_be_confirmed(tmp_path, train):
    (finding,), why = run_of(tmp_path / "run", train)
    assert (finding.severity, why) == ("confirm", [])
    assert (
        "batches had a forward pass in training mode and no backward pass: nothing is learned of them" in finding.claim
    )


def test_their_share_is_told(tmp_path):
    (finding,), _ = run_of(tmp_path / "run", collected_and_forgotten)
    # of 120 batches those of whole stretches within one epoch
    assert finding.evidence == {"kind": "dropped", "batches": 108, "dropped": 72}


def every_batch(job):
    for _, (x, y) in batches(job):
        job.update(job.loss(x, y))


def collected(job):
    losses = []
    for number, (x, y) in batches(job):
        losses.append(job.loss(x, y))
        if number % 3 == 2:
            job.update(sum(losses))
            losses = []


def two_views(job):
    for _, (x, y) in batches(job):
        target = job.model(x + 0.1).detach()
        job.update((job.model(x) - target).square().mean() + job.loss(x, y))


def a_generator(job):
    """Its critic is updated at each batch, and it at each third."""
    critics = torch.optim.SGD(job.critic.parameters(), lr=0.01)
    for number, (x, _) in batches(job):
        critics.zero_grad()
        job.critic(job.model(x).detach()).mean().backward()
        critics.step()
        if number % 3 == 2:
            job.update(-job.critic(job.model(x)).mean())


def evaluated(job):
    """In training mode, and with gradients enabled."""
    held_out = DataLoader(TensorDataset(torch.randn(80, 6), torch.randn(80, 1)), batch_size=4)
    for number, (x, y) in batches(job):
        job.update(job.loss(x, y))
        if number % 20 == 19:
            for pair in held_out:
                job.loss(*pair)


def scored(job):
    """All batches once before each epoch, as where hard ones are chosen."""
    for _ in range(2):
        for pair in job.loader:
            job.loss(*pair)
        for pair in job.loader:
            job.update(job.loss(*pair))


class Opaque:
    """What torch cannot see the tensors of."""

    __slots__ = ("logits",)

    def __init__(self, logits):
        self.logits = logits


def collected_unseen(job):
    losses = []
    for number, (x, y) in batches(job):
        losses.append((job.model(x).logits - y).square().mean())
        if number % 3 == 2:
            job.update(sum(losses))
            losses = []


def without_gradients(job):
    for number, (x, y) in batches(job):
        with torch.set_grad_enabled(number % 3 == 2):
            loss = job.loss(x, y)
        if number % 3 == 2:
            job.update(loss)


def rolled_out(job):
    for _, (x, y) in batches(job):
        state = x
        for _ in range(3):
            state = state + job.model(state).detach()
        job.update(job.loss(state, y))


HEALTHY = [
    every_batch,
    collected,
    two_views,
    a_generator,
    evaluated,
    scored,
    collected_unseen,
    without_gradients,
    rolled_out,
]


@pytest.mark.in_turn
@pytest.mark.parametrize("train", HEALTHY, ids=lambda f: f.__name__)
def test_passes_that_are_meant_to_have_none_are_silent(tmp_path, train):
    assert run_of(tmp_path / "run", train) == ([], [])


def test_losses_that_are_not_finite_are_said_by_another_law(tmp_path):
    def passed_over(job):
        for number, (x, y) in batches(job):
            loss = job.loss(x, y) * (float("nan") if number % 5 == 4 else 1.0)
            if torch.isfinite(loss):
                job.update(loss)

    job = Job(tmp_path / "run")
    passed_over(job)
    job.watch.close()
    findings, _ = asked(tmp_path / "run", batches_dropped.CODE, "loss-skipped")
    assert [finding.code for finding in findings] == ["loss-skipped"]


def test_without_a_loader_it_cannot_be_told(tmp_path):
    def by_hand(job):
        for _ in range(6):
            job.update(job.loss(torch.randn(4, 6), torch.randn(4, 1)))

    assert run_of(tmp_path / "run", by_hand) == ([], ["no DataLoader of torch was seen whose batches are trained on"])


def test_watching_leaves_a_training_as_it_is(tmp_path):
    values = []
    for out in (None, tmp_path / "run"):
        job = Job(out)
        collected_and_forgotten(job)
        values.append([*job.model.state_dict().values(), torch.get_rng_state()])
        if job.watch:
            job.watch.close()
    assert all(map(torch.equal, *values))
