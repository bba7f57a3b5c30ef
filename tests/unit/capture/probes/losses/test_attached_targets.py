"""loss-misapplied: a bootstrap target that gradients go into is told, others and equations are not warned of."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import trueline
from trueline.capture.probes.losses.attached_targets import mark
from trueline.capture.probes.losses.loss_inputs import row_of
from trueline.judge.check_run import check
from trueline.schema.columns.loss_inputs import (
    ADVANTAGE_ATTACHED,
    SOFT_TARGET_ATTACHED,
    TARGET_ATTACHED,
    VALUE_ATTACHED,
    LossInputs,
)

B, A, GAMMA = 8, 3, 0.9
draw = torch.Generator().manual_seed(0)
s, s2 = torch.randn(B, 4, generator=draw), torch.randn(B, 4, generator=draw)
r, go_on = torch.randn(B, generator=draw), (torch.rand(B, generator=draw) < 0.8).float()
action = torch.randint(A, (B, 1), generator=draw)
net, value = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, A)), nn.Linear(4, 1)
critics = nn.Linear(4, 2)
beside = nn.Linear(4, A)
calls = itertools.count()


def called(module, x):
    made = module(x)
    mark(made, next(calls))
    return made


def q():
    return called(net, s).gather(1, action)[:, 0]


def best():
    return called(net, s2).max(1).values


def v(x):
    return called(value, x)[:, 0]


def kinds(loss):
    return set(LossInputs.of(row_of([loss], None, None, torch.device("cpu")).tolist()).kinds)


def double():
    chosen = called(net, s2).argmax(1, keepdim=True)
    return r + GAMMA * called(net, s2).gather(1, chosen)[:, 0] * go_on


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (lambda: F.mse_loss(q(), r + GAMMA * best()), TARGET_ATTACHED),
        (lambda: F.mse_loss(r + GAMMA * best(), q()), TARGET_ATTACHED),
        (lambda: F.smooth_l1_loss(q(), r + GAMMA * best() * go_on), TARGET_ATTACHED),
        (lambda: F.huber_loss(q(), r + go_on * GAMMA * best()), TARGET_ATTACHED),
        (lambda: F.l1_loss(q(), best() * GAMMA * go_on + r), TARGET_ATTACHED),
        (lambda: ((q() - (r + GAMMA * best())) ** 2).mean(), TARGET_ATTACHED),
        (lambda: (r + GAMMA * best() - q()).pow(2).mean() * 0.5, TARGET_ATTACHED),
        (lambda: F.mse_loss(q()[:, None], (r + GAMMA * best())[:, None]), TARGET_ATTACHED),
        (lambda: F.mse_loss(q(), double()), TARGET_ATTACHED),
        (lambda: F.mse_loss(q(), r + GAMMA * called(net, s2).logsumexp(1)), TARGET_ATTACHED),
        (
            lambda: F.mse_loss(called(critics, s)[:, 0], r + GAMMA * called(critics, s2).min(1).values),
            TARGET_ATTACHED,
        ),
        (lambda: F.mse_loss(v(s), r + GAMMA * v(s2)), VALUE_ATTACHED),
        (lambda: (r + GAMMA * v(s2) * go_on - v(s)).square().mean(), VALUE_ATTACHED),
    ],
)
def test_an_attached_target_is_known_by_its_operations(loss, kind):
    assert kinds(loss()) == {kind}


def in_time(u, t):
    """The derivative of u to t."""
    return torch.autograd.grad(u.sum(), t, create_graph=True)[0][:, 0]


def equation():
    x = s.clone().requires_grad_()
    u = called(value, x)[:, 0]
    return F.mse_loss(in_time(u.tanh(), x), r + GAMMA * u)


def along_a_path():
    """An equation in differences that the outputs of one call obey."""
    u = v(s)
    return F.mse_loss(u[1:], r[1:] + GAMMA * u[:-1])


@pytest.mark.parametrize(
    "loss",
    [
        lambda: F.mse_loss(q(), (r + GAMMA * best()).detach()),
        lambda: F.mse_loss(q(), r + GAMMA * best().detach()),
        lambda: F.mse_loss(q(), r),
        lambda: F.mse_loss(q(), r + GAMMA * beside(s2).max(1).values),  # of another model: goes nowhere
        lambda: F.mse_loss(v(s), v(s2)),  # pairs that are to be alike
        lambda: F.mse_loss(v(s), GAMMA * v(s2)),
        lambda: F.mse_loss(v(s), r + v(s2)),
        lambda: F.mse_loss(r + 0.5 * v(s), r + 0.7 * v(s2)),  # a part of both that is kept, as of a consistency model
        lambda: (0.2 + 0.5 * called(net, s2).max(1).values - q()).relu().mean(),  # a margin
        lambda: F.mse_loss(r, s[:, 0] + 0.1 * v(s)),  # a step of an ordinary equation
        lambda: (q() + (r + GAMMA * best())).square().mean(),  # a sum that is squared
        equation,
        along_a_path,
    ],
)
def test_targets_that_are_detached_and_what_is_meant_are_left_alone(loss):
    assert kinds(loss()) == set()


def trained(out, *, attached):
    """The parameters after a few updates of a Q network; watched into ``out`` unless that is None."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, A))
    updates = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = None if out is None else trueline.watch(model, updates, out=out, plan={"every": 1})
    for _ in range(4):
        with torch.set_grad_enabled(attached):
            target = torch.randn(B) + GAMMA * model(torch.randn(B, 4)).max(1).values
        F.mse_loss(model(torch.randn(B, 4)).gather(1, action)[:, 0], target).backward()
        updates.step()
        updates.zero_grad()
    if watch is not None:
        watch.close()
    return [param.detach().clone() for param in model.parameters()]


@pytest.mark.parametrize(("attached", "found"), [(True, [("warning", TARGET_ATTACHED)]), (False, [])])
def test_a_network_of_values_is_told_and_trained_as_before(tmp_path, attached, found):
    alone, watched = trained(None, attached=attached), trained(tmp_path / "run", attached=attached)
    assert all(torch.equal(one, other) for one, other in zip(alone, watched, strict=True))
    report = check(trueline.open_run(tmp_path / "run"))
    said = [each for each in report.findings if each.code == "loss-misapplied"]
    assert [(each.severity, each.evidence["kind"]) for each in said] == found


def log_prob():
    return torch.distributions.Categorical(logits=net(s)).log_prob(action[:, 0])


def normal_log_prob():
    return torch.distributions.Normal(net(s)[:, 0], net(s)[:, 1].exp()).log_prob(r)


def advantage():
    return r - value(s)[:, 0]


def entropy(logits):
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()


def soft(student, teacher):
    return F.kl_div(student.log_softmax(-1), teacher.softmax(-1), reduction="batchmean")


@pytest.mark.parametrize(
    ("loss", "kind"),
    [
        (lambda: -(log_prob() * advantage()).mean() + 0.5 * advantage().square().mean(), ADVANTAGE_ATTACHED),
        (lambda: (advantage() * -net(s).log_softmax(-1).gather(1, action)[:, 0]).sum(), ADVANTAGE_ATTACHED),
        (lambda: -(normal_log_prob() * advantage()).mean(), ADVANTAGE_ATTACHED),
        (lambda: -(log_prob() * ((a := advantage()) - a.mean()) / (a.std() + 1e-8)).mean(), ADVANTAGE_ATTACHED),
        (lambda: -((log_prob() - r).exp() * advantage()).mean(), ADVANTAGE_ATTACHED),
        (lambda: soft(net(s), beside(s)), SOFT_TARGET_ATTACHED),
        (lambda: F.cross_entropy(net(s), beside(s).softmax(-1)), SOFT_TARGET_ATTACHED),
        (lambda: -((beside(s) / 2).softmax(-1) * (net(s) / 2).log_softmax(-1)).sum(), SOFT_TARGET_ATTACHED),
    ],
)
def test_factors_that_gradients_should_not_go_into(loss, kind):
    assert kinds(loss()) == {kind}


@pytest.mark.parametrize(
    "loss",
    [
        lambda: -(log_prob() * advantage().detach()).mean() + 0.5 * advantage().square().mean(),
        lambda: -((log_prob() - r).exp() * advantage().detach()).mean() - 0.01 * entropy(net(s)),
        lambda: entropy(net(s)),
        lambda: -(((logits := net(s)) / 2).softmax(-1) * (logits / 2).log_softmax(-1)).sum(),
        lambda: -((1 - (logits := net(s)).softmax(-1)) * logits.log_softmax(-1)).sum(),
        lambda: (net(s)[:, 0].exp() * advantage().square()).mean(),
        lambda: soft(net(s), beside(s).detach()),
        lambda: (nn.Parameter(torch.ones(())).exp() * advantage()).mean(),
        lambda: (net(s) * beside(s)).mean(),
    ],
)
def test_factors_that_are_meant_are_left_alone(loss):
    assert kinds(loss()) == set()
