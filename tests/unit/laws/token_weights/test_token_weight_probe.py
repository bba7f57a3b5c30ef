"""Token weights: those of the objective, whatever the recipe, or the reason why they are not known."""

import weakref

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import trueline
from trueline.laws.token_weights.columns import DOUBTS, NUM_FIELDS

COUNTS = (7, 12, 3)
"""Targets that count in each micro-batch of 12."""
TOTAL = sum(COUNTS)
STEPS = 2

cross_entropy = functional.cross_entropy


def head():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 5))


def micro_batches():
    draw = torch.Generator().manual_seed(1)
    for count in COUNTS:
        targets = torch.randint(5, (12,), generator=draw)
        targets[count:] = -100
        yield torch.randn(12, 6, generator=draw), targets


def trained(out, loss_of, *, scaler=None, after=lambda model: None, dtype=torch.float32, optimizer=torch.optim.SGD):
    """The parameters after two steps of three micro-batches; watched into ``out`` unless that is None."""
    model = head().to(dtype)
    updates = optimizer(model.parameters(), lr=0.1)
    watch = None if out is None else trueline.watch(model, updates, out=out, plan={"every": 1})
    for _ in range(STEPS):
        for x, targets in micro_batches():
            loss = loss_of(model, x.to(dtype), targets)
            (loss if scaler is None else scaler.scale(loss)).backward()
        after(model)
        if scaler is None:
            updates.step()
        else:
            scaler.step(updates)
            scaler.update()
        updates.zero_grad()
    if watch is not None:
        watch.close()
    return [param.detach().clone() for param in model.parameters()]


def rows(out):
    """[M, fields] of the first step."""
    return trueline.open_run(out).lists("token_weights")[0, 0].reshape(-1, NUM_FIELDS)


def by_total(model, x, targets):
    return cross_entropy(model(x), targets, reduction="sum") / TOTAL


def by_mean(model, x, targets):
    return cross_entropy(model(x), targets) / len(COUNTS)


def masked_by_hand(model, x, targets):
    seen = targets != -100
    return (cross_entropy(model(x), targets.clamp(min=0), reduction="none") * seen).sum() / seen.sum()


def over_positions(model, x, targets):
    return cross_entropy(model(x).view(3, 4, 5).transpose(1, 2), targets.view(3, 4), reduction="none").sum() / TOTAL


class _DDPSink(torch.autograd.Function):
    """In form and name that of DDP."""

    @staticmethod
    def forward(ctx, owner, *outputs):
        return tuple(each.clone() for each in outputs)

    @staticmethod
    def backward(ctx, *gradients):
        return None, *gradients


def through_ddp(model, x, targets):
    """As DDP with `find_unused_parameters` returns a loss beside logits."""
    logits = model(x)
    _, loss = _DDPSink.apply(None, logits, cross_entropy(logits, targets, reduction="sum"))
    return loss / TOTAL


@pytest.mark.parametrize("loss_of", [by_total, by_mean, masked_by_hand, over_positions, through_ddp])
def test_weights_are_those_that_the_gradients_of_the_logits_show(tmp_path, loss_of):
    """For a token of class y, dL/dlogit_y = w (p_y - 1)."""
    expected = []
    for x, targets in micro_batches():
        logits = head()(x).detach().requires_grad_()
        loss_of(lambda _, logits=logits: logits, x, targets).backward()
        kept = targets != -100
        chosen = logits.softmax(-1).detach()[kept].gather(1, targets[kept, None])
        weights = logits.grad[kept].gather(1, targets[kept, None]) / (chosen - 1)
        expected.append((int(kept.sum()), float(weights.min()), float(weights.max())))
    trained(tmp_path / "run", loss_of)
    measured = rows(tmp_path / "run")
    assert not measured[:, 0].any()
    np.testing.assert_allclose(measured[:, 1:4], expected, rtol=1e-5)  # the division amplifies the roundings of p
    assert (measured[:, 3] - measured[:, 2] <= measured[:, 2] * measured[:, 5]).all()


def smoothed(model, x, targets):
    return cross_entropy(model(x), targets, label_smoothing=0.1)


def with_penalty(model, x, targets):
    return cross_entropy(model(x), targets) + 1e-3 * model[0].weight.square().sum()


def two_heads(model, x, targets):
    return cross_entropy(model(x), targets) + 0.3 * cross_entropy(-model(x), targets)


def weighted_classes(model, x, targets):
    return cross_entropy(model(x), targets, weight=torch.arange(1.0, 6.0))


def perplexity(model, x, targets):
    return cross_entropy(model(x), targets).exp()


def by_hand(model, x, targets):
    return -model(x).log_softmax(-1).gather(1, targets.clamp(min=0)[:, None]).mean()


def recomputed(model, x, targets):
    return checkpoint(lambda z: cross_entropy(z, targets), model(x), use_reentrant=False)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("loss_of", "reason"),
    [
        (by_hand, "no cross-entropy"),
        (smoothed, "other terms"),
        (with_penalty, "other terms"),
        (two_heads, "several"),
        (weighted_classes, "classes have weights"),
        (perplexity, "no plain multiple"),
        (recomputed, "hooks keep"),
    ],
)
def test_what_is_no_plain_cross_entropy_has_a_reason_and_no_weights(tmp_path, loss_of, reason):
    trained(tmp_path / "run", loss_of)
    measured = rows(tmp_path / "run")
    assert all(reason in DOUBTS[int(number)] for number in measured[:, 0])
    assert np.isnan(measured[:, 1:]).all()


def test_a_loss_scale_is_taken_out_of_weights_and_gradients(tmp_path):
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    trained(tmp_path / "run", by_total, scaler=scaler)
    measured = rows(tmp_path / "run")
    assert measured[:, 4].tolist() == [1024.0] * 3
    np.testing.assert_allclose(measured[:, 2], 1 / TOTAL, rtol=1e-6)
    factors, _ = trueline.open_run(tmp_path / "run").pivot("grads_factor")
    np.testing.assert_allclose(factors[:, 0], 1.0, rtol=1e-6)


def test_a_scaler_that_is_off_scales_nothing(tmp_path):
    trained(tmp_path / "run", by_total, scaler=torch.amp.GradScaler("cpu", enabled=False))
    np.testing.assert_allclose(rows(tmp_path / "run")[:, 2], 1 / TOTAL, rtol=1e-6)


def quarter(model):
    for param in model.parameters():
        param.grad /= 4


def noisy(model):
    for param in model.parameters():
        param.grad += torch.randn_like(param.grad)


@pytest.mark.parametrize(("after", "factor"), [(quarter, 0.25), (noisy, None)])
def test_what_gradients_are_multiplied_by_after_backward(tmp_path, after, factor):
    trained(tmp_path / "run", by_mean, after=after)
    factors, measured = trueline.open_run(tmp_path / "run").pivot("grads_factor")
    assert measured[:, 0].tolist() == [factor is not None] * STEPS
    assert factor is None or factors[:, 0].tolist() == [factor] * STEPS


@pytest.mark.in_turn
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("loss_of", [by_total, by_mean, masked_by_hand, recomputed, two_heads])
def test_training_is_the_same_to_the_bit(tmp_path, loss_of, dtype):
    alone = trained(None, loss_of, dtype=dtype)
    watched = trained(tmp_path / "run", loss_of, dtype=dtype)
    assert all(torch.equal(one, other) for one, other in zip(alone, watched, strict=True))


def test_a_checkpointed_loss_is_not_computed_once_more(tmp_path):
    calls = []

    def counted(model, x, targets):
        def loss(z):
            calls.append(1)
            return cross_entropy(z, targets)

        return checkpoint(loss, model(x), use_reentrant=False)

    trained(None, counted)
    alone = len(calls)
    calls.clear()
    trained(tmp_path / "run", counted)
    assert len(calls) == alone


class Traced(torch.autograd.Function):
    """Nothing, in a node of the graph that says when it goes."""

    @staticmethod
    def forward(ctx, x, gone):
        weakref.finalize(ctx, gone.append, True)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def test_the_graph_of_a_loss_goes_with_it(tmp_path):
    """What is registered on the cross-entropy does not hold it."""
    model, gone = head(), []
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, updates, out=tmp_path / "run", plan={"every": 1})
    (x, targets), *_ = micro_batches()
    loss = cross_entropy(Traced.apply(model(x), gone), targets)
    loss.backward()
    del loss
    was_gone = list(gone)
    updates.step()
    watch.close()
    assert was_gone == [True]


def test_a_second_pass_through_one_graph_counts_the_first_weights_once(tmp_path):
    model = head()
    updates = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, updates, out=tmp_path / "run", plan={"every": 1})
    (x, targets), *_ = micro_batches()
    loss = cross_entropy(model(x), targets)
    loss.backward(retain_graph=True)
    (3 * loss).backward()
    updates.step()
    watch.close()
    np.testing.assert_allclose(rows(tmp_path / "run")[:, 2] * COUNTS[0], [1, 3], rtol=1e-6)
