"""``on_finding = "skip"``: updates that would do harm are left out, and nothing else changes."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn

import trueline
from trueline.schema.errors import PlanError
from trueline.schema.finding import PLAN_REFUSED, UPDATE_SKIPPED, WATCH_DEGRADED

PLAN = {"on_finding": "skip", "most_skips": 3}
STEPS, BAD = 70, 60


def batches(*, bad=BAD, how="nan", steps=STEPS):
    """Batches of which ``bad`` is not as the others, ``how`` says in what."""
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        x, y = torch.randn(8, 4, generator=generator), torch.randn(8, 1, generator=generator)
        if step == bad:
            x = x * float("nan") if how == "nan" else x
            y = y * 1e4 if how == "targets" else y
        yield x, y


def job():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def train(model, optimizer, data, *, clip=None, leave_out=()):
    for step, (x, y) in enumerate(data):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        if step not in leave_out:
            optimizer.step()
    return state(model, optimizer)


def state(model, optimizer):
    inner = [value for each in optimizer.state_dict()["state"].values() for value in each.values()]
    return [*map(torch.clone, model.parameters()), *map(torch.as_tensor, inner)]


def same(a, b):
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def watched(tmp_path, data, *, plan=PLAN, **more):
    model, optimizer = job()
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan=plan):
        left = train(model, optimizer, data, **more)
    return left, trueline.open_run(tmp_path / "run").live_findings


def codes(findings):
    return [finding.code for finding in findings]


@pytest.mark.parametrize("how", ["nan", "targets"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_an_update_that_would_do_harm_is_not_made_and_leaves_no_trace(tmp_path, how, clip):
    left, findings = watched(tmp_path, batches(how=how), clip=clip)
    twin = train(*job(), batches(how=how), clip=clip, leave_out=[BAD])
    assert same(left, twin)
    (skipped,) = [finding for finding in findings if finding.code == UPDATE_SKIPPED]
    assert (skipped.severity, skipped.step_first) == ("warning", BAD)
    words = {"nan": "the norm of the gradient was not finite", "targets": "the norm of the gradient jumped from "}
    assert words[how] in skipped.claim


def test_check_has_it_alone_and_facts_count_it(tmp_path):
    watched(tmp_path, batches(how="nan"))
    assert codes(trueline.check(tmp_path / "run").findings) == [UPDATE_SKIPPED]
    lines = [fact.line for fact in trueline.facts(tmp_path / "run").facts]
    assert f"1 update of {STEPS} left out, as the Plan asks" in lines


def test_a_healthy_training_is_bitwise_the_same_and_nothing_is_left_out(tmp_path):
    left, findings = watched(tmp_path, batches(bad=None))
    assert same(left, train(*job(), batches(bad=None)))
    assert not {UPDATE_SKIPPED, PLAN_REFUSED} & {*codes(findings)}


def test_unasked_nothing_of_it_exists(tmp_path):
    model, optimizer = job()
    with trueline.watch(model, optimizer, out=tmp_path / "run") as watch:
        assert watch._skipping is None
        assert same(train(model, optimizer, batches()), train(*job(), batches())) is False  # both are NaN
    assert all(param.isnan().any() for param in model.parameters())


def test_the_gradients_of_an_update_that_was_left_out_are_there_afterwards(tmp_path):
    model, optimizer = job()
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan=PLAN):
        train(model, optimizer, batches(steps=3, bad=2))
        assert all(param.grad is not None and param.grad.isnan().any() for param in model.parameters())


def test_no_more_than_the_plan_allows_are_left_out(tmp_path):
    data = itertools.chain.from_iterable(batches(steps=2, bad=1) for _ in range(3))
    left, findings = watched(tmp_path, data, plan=PLAN | {"most_skips": 2})
    assert codes(findings).count(UPDATE_SKIPPED) == 2
    assert "all 2 that `most_skips` allows were left out" in next(f.claim for f in findings if f.code == PLAN_REFUSED)
    assert any(value.isnan().any() for value in left)


def test_a_learning_rate_schedule_goes_on_and_warns_of_nothing(tmp_path, recwarn):
    model, optimizer = job()
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, total_iters=10)
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan=PLAN):
        for x, y in batches(steps=10, bad=0):
            optimizer.zero_grad()
            (model(x) - y).square().mean().backward()
            optimizer.step()
            schedule.step()
    assert schedule.get_last_lr() == [pytest.approx(5e-3)]
    assert not [warning for warning in recwarn if "lr_scheduler" in str(warning.message)]


def test_further_optimizers_of_the_step_leave_it_out_too(tmp_path):
    def halves():
        model, _ = job()
        return model, [torch.optim.AdamW(part.parameters(), lr=1e-2) for part in (model[0], model[2])]

    def run(model, optimizers, leave_out=()):
        for step, (x, y) in enumerate(batches(steps=6, bad=3)):
            model.zero_grad()
            (model(x) - y).square().mean().backward()
            for optimizer in optimizers:
                if step not in leave_out:
                    optimizer.step()
        return [value for optimizer in optimizers for value in state(model, optimizer)]

    model, optimizers = halves()
    with trueline.watch(model, optimizers, out=tmp_path / "run", plan=PLAN):
        left = run(model, optimizers)
    assert same(left, run(*halves(), leave_out=[3]))


def by_closure(model, optimizer, x, y):
    def closure():
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    optimizer.step(closure)


def by_scaler(model, optimizer, x, y):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer.zero_grad()
    scaler.scale((model(x) - y).square().mean()).backward()
    scaler.step(optimizer)
    scaler.update()


def in_backward(model, optimizer, x, y):
    handle = next(iter(model.parameters())).register_post_accumulate_grad_hook(lambda _: optimizer.step())
    (model(x) - y).square().mean().backward()
    handle.remove()


def of_copies(model, optimizer, x, y):
    (model(x) - y).square().mean().backward()
    masters = [copy.deepcopy(param) for param in model.parameters()]
    for master, param in zip(masters, model.parameters(), strict=True):
        master.grad = param.grad
    torch.optim.SGD(masters, lr=0.1).step()


class Decays(torch.optim.SGD):
    """Changes parameters that have no gradient."""

    @torch.no_grad()
    def step(self, closure=None):
        for param in self.param_groups[0]["params"]:
            param.mul_(0.9)


def decaying(model, optimizer, x, y):
    own = Decays(model.parameters(), lr=0.1)
    (model(x * float("nan")) - y).square().mean().backward()
    own.step()


@pytest.mark.parametrize(
    ("update", "says"),
    [
        (by_closure, "the optimizer computes gradients in a closure"),
        (by_scaler, "a GradScaler leaves out updates itself"),
        (in_backward, "updates are made within the backward pass"),
        (of_copies, "the optimizer updates copies of the parameters"),
        (decaying, "the optimizer changed parameters that had no gradient"),
    ],
)
def test_where_something_would_be_left_inconsistent_one_sentence_says_so_and_training_goes_on(tmp_path, update, says):
    model, optimizer = job()
    given = None if update in (of_copies, decaying) else optimizer
    with trueline.watch(model, given, out=tmp_path / "run", plan=PLAN) as watch:
        for x, y in batches(steps=4, bad=None):
            update(model, optimizer, x, y)
        assert not watch._skipping._is_on
    refused = [f.claim for f in trueline.open_run(tmp_path / "run").live_findings if f.code == PLAN_REFUSED]
    assert len(refused) == 1
    assert says in refused[0]


def test_a_failure_of_ours_ends_the_asking_and_not_the_training(tmp_path, monkeypatch):
    model, optimizer = job()
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan=PLAN) as watch:
        calls = []

        def fails(*args, **kwargs):
            calls.append(args)
            raise RuntimeError("planted")

        monkeypatch.setattr(watch._skipping._guard, "why_not", fails)
        left = train(model, optimizer, batches(bad=None))
    assert len(calls) == 1
    assert same(left, train(*job(), batches(bad=None)))
    assert WATCH_DEGRADED in codes(trueline.open_run(tmp_path / "run").live_findings)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({"on_finding": "skip"}, "set most_skips too"),
        ({"on_finding": "skip", "most_skips": 0}, "greater than or equal to 1"),
        ({"on_finding": "skip", "most_skips": 2, "local_updates": True}, "each rank updates by itself"),
    ],
)
def test_a_plan_that_cannot_be_followed_is_refused(tmp_path, plan, says):
    with pytest.raises(PlanError, match=says):
        trueline.watch(*job(), out=tmp_path / "run", plan=plan)
