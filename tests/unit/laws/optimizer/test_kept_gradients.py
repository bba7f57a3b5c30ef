"""What is left of gradients between an update and the next backward pass: a fault is found, what people do is not."""

import pytest
import torch
from tests.synthetic_runs import write_run
from tests.unit.asked import asked
from tests.unit.trained_updates import mlp
from torch import nn
from torch.utils.data import DataLoader

import trueline
from trueline.laws.accumulation import grad_accumulates

AT = 4
"""The first step that begins with gradients of another."""


def watched(out, loop, *, model=mlp, make=torch.optim.AdamW, steps=8, watch_optimizer=True):
    """The findings of ``grad-accumulates`` after ``loop(step, model, optimizer)``; None where it did not run."""
    torch.manual_seed(0)
    made = model()
    optimizer = make(made.parameters(), lr=1e-3)
    with trueline.watch(made, optimizer if watch_optimizer else None, out=out, plan={"every": 1}):
        for step in range(steps):
            loop(step, made, optimizer)
    findings, why = asked(out, "grad-accumulates")
    return None if why else findings


def loss_of(model):
    return model(torch.randn(8, 16)).square().mean()


@pytest.mark.parametrize("none", [True, False])
def test_a_step_that_begins_with_used_gradients(tmp_path, none):
    def forgetful(step, model, optimizer):
        if step < AT:
            optimizer.zero_grad(set_to_none=none)
        loss_of(model).backward()
        optimizer.step()

    (finding,) = watched(tmp_path / "run", forgetful)
    assert (finding.step_first, finding.step_last, finding.severity) == (AT, 7, "error")
    assert set(finding.evidence["names"]) == {name for name, _ in mlp().named_parameters()}


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("spared", "steps"),
    [(range(21, 45, 2), list(range(21, 45, 2))), (range(26, 45, 5), [26, 31, 36, 41]), ((29,), [29])],
)
@pytest.mark.parametrize("none", [True, False])
def test_gradients_that_are_not_cleared_now_and_then_between_samples(tmp_path, none, spared, steps):
    def forgetful(step, model, optimizer):
        if step not in spared:
            optimizer.zero_grad(set_to_none=none)
        loss_of(model).backward()
        optimizer.step()

    (finding,) = watched(tmp_path / "run", forgetful, steps=45)
    looked = trueline.open_run(tmp_path / "run").lists("kept_gradients")
    assert [step for (step, _), kept in sorted(looked.items()) if len(kept)] == steps
    assert (finding.step_first, finding.step_last, finding.severity) == (steps[0], steps[-1], "error")


def test_gradients_that_are_cleared_behind_the_back_of_torch_are_looked_at_three_times_between_samples(tmp_path):
    def unseen(step, model, optimizer):
        for param in model.parameters():
            if param.grad is not None:
                param.grad.data.zero_()
        loss_of(model).backward()
        optimizer.step()

    assert watched(tmp_path / "run", unseen, steps=60) == []


def test_a_part_that_is_not_cleared_is_named(tmp_path):
    def partly(step, model, optimizer):
        loss_of(model).backward()
        optimizer.step()
        model[3].zero_grad()
        if step < AT - 1:
            optimizer.zero_grad()

    (finding,) = watched(tmp_path / "run", partly)
    assert finding.step_first == AT
    assert set(finding.evidence["names"]) == {"0.weight", "0.bias", "1.weight", "1.bias"}


def after_forward(step, model, optimizer):
    """Cleared between loss and backward, by hand."""
    loss = loss_of(model)
    for param in model.parameters():
        if param.grad is not None:
            param.grad.data.zero_()
    loss.backward()
    optimizer.step()


def accumulating(step, model, optimizer):
    """Three backward passes an update."""
    for _ in range(3):
        (loss_of(model) / 3).backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=step % 2 == 0)


def scaled(step, model, optimizer):
    """A scaler that skips every other update."""
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer.zero_grad()
    loss = loss_of(model)
    scaler.scale(loss * float("inf") if step % 2 else loss).backward()
    scaler.step(optimizer)
    scaler.update()


def sharpness_aware(step, model, optimizer):
    """Two backward passes, the first for a perturbation."""
    loss_of(model).backward()
    moved = [(param, 0.01 * param.grad) for param in model.parameters()]
    with torch.no_grad():
        for param, by in moved:
            param.add_(by)
    model.zero_grad()
    loss_of(model).backward()
    with torch.no_grad():
        for param, by in moved:
            param.sub_(by)
    optimizer.step()
    model.zero_grad()


def adversarial(step, model, optimizer):
    """The generator's backward pass leaves gradients in the critic, which are cleared before its own."""
    generator = nn.Linear(16, 16)
    model(generator(torch.randn(8, 16))).mean().backward()
    optimizer.zero_grad()
    (loss_of(model) - model(generator(torch.randn(8, 16)).detach()).mean()).backward()
    optimizer.step()


def as_momentum(step, model, optimizer):
    """A running gradient on purpose: what is kept is damped."""
    for param in model.parameters():
        if param.grad is not None:
            param.grad.mul_(0.9)
    loss_of(model).backward()
    optimizer.step()


def by_hand(step, model, optimizer):
    """Gradients that are computed elsewhere and copied in, while another model calls backward."""
    nn.Linear(4, 4)(torch.randn(2, 4)).sum().backward()
    grads = torch.autograd.grad(loss_of(model), list(model.parameters()))
    for param, grad in zip(model.parameters(), grads, strict=True):
        if param.grad is None:
            param.grad = grad
        else:
            param.grad.copy_(grad)
    optimizer.step()


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "loop", [after_forward, accumulating, scaled, sharpness_aware, adversarial, as_momentum, by_hand]
)
def test_what_people_do_is_left_alone(tmp_path, loop):
    assert watched(tmp_path / "run", loop) == []


def test_a_critic_that_is_cleared_before_its_own_pass(tmp_path):
    """In turns with the generator below it, which leaves gradients there."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Linear(16, 1))
    optimizers = [torch.optim.Adam(part.parameters(), lr=1e-3) for part in model]
    with trueline.watch(model, out=tmp_path / "run", plan={"every": 1}):
        for step in range(12):
            optimizers[step % 2].zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizers[step % 2].step()
    assert "grad-accumulates" not in {finding.code for finding in trueline.check(tmp_path / "run").findings}


def test_a_closure_that_clears_is_left_alone_and_one_that_does_not_is_found(tmp_path):
    def closing(clears):
        def loop(step, model, optimizer):
            def closure():
                if clears:
                    optimizer.zero_grad()
                loss = loss_of(model)
                loss.backward()
                return loss

            optimizer.step(closure)

        return loop

    def lbfgs(params, lr):
        return torch.optim.LBFGS(params, lr=lr, max_iter=3)

    assert watched(tmp_path / "healthy", closing(True), make=lbfgs) == []
    (finding,) = watched(tmp_path / "faulty", closing(False), make=torch.optim.SGD)
    assert finding.step_first == 1


def test_an_optimizer_that_updates_less_often_keeps_its_own(tmp_path):
    heads = []

    def seldom(step, model, optimizer):
        if not heads:
            heads.append(torch.optim.SGD(model[3].parameters(), lr=0.01))
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 4 == 3:
            heads[0].step()
            heads[0].zero_grad()

    def of_body(params, lr):
        return torch.optim.SGD(list(params)[:4], lr=lr)

    assert watched(tmp_path / "run", seldom, make=of_body, watch_optimizer=False) == []


def between(change, *, num_micro=3):
    """Several backward passes an update, and ``change(model, micro, step)`` between them."""

    def loop(step, model, optimizer):
        for micro in range(num_micro):
            (loss_of(model) / num_micro).backward()
            if micro < num_micro - 1:
                change(model, micro, step)
        optimizer.step()
        optimizer.zero_grad()

    return loop


def each_gradient(change):
    """``change`` of every gradient."""
    return lambda model, micro, step: [change(param.grad) for param in model.parameters()]


def first_passes_data(model, micro, step):
    """The first layer alone, after the first pass, in a way that no version of a tensor counts."""
    if micro == 0:
        model[0].weight.grad.data *= 0.5


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("change", "severity", "says"),
    [
        (each_gradient(lambda grad: grad.div_(3)), "warning", "multiplied by 0.3333 between backward passes of"),
        (each_gradient(lambda grad: grad.clamp_(-1e-5, 1e-5)), "warning", "made smaller"),
        (first_passes_data, "warning", "gradient of 0.weight was multiplied by 0.5 between backward passes 1 and 2"),
        (lambda model, micro, step: model[3].zero_grad(set_to_none=False), "warning", "set to zero"),
        (each_gradient(lambda grad: grad.add_(torch.randn_like(grad))), "confirm", "changed"),
    ],
)
def test_gradients_that_change_between_passes(tmp_path, change, severity, says):
    (finding,) = watched(tmp_path / "run", between(change))
    assert (finding.severity, finding.evidence["kind"], finding.step_first) == (severity, "between-passes", 0)
    assert says in finding.claim


def test_a_changed_gradient_has_the_name_that_its_own_rank_gives_its_place(tmp_path):
    def halved(step, rank, row):
        row["changed_between"] = [2.0, float(rank), 0.0, 0.5, 1.0]

    stages = [["embed.weight", "layer.weight"], ["norm.weight", "head.weight"]]
    env = {"param_shapes": [[8, 16]] * 2, "param_dtypes": ["torch.float32"] * 2, "requires_grad": [True] * 2}
    write_run(tmp_path / "run", num_ranks=2, change=halved, env=lambda rank: {**env, "params": stages[rank]})
    (finding,) = grad_accumulates.check(trueline.open_run(tmp_path / "run"))
    assert finding.evidence["names"] == ["embed.weight", "head.weight"]


def masked(step, model, optimizer):
    """Rows that are kept from training, after every pass."""
    for _ in range(3):
        (loss_of(model) / 3).backward()
        model[0].weight.grad[:8] = 0.0
    optimizer.step()
    optimizer.zero_grad()


def once(model, micro, step):
    """In one step of all, as from a debugger."""
    if step == 5:
        model[0].weight.grad.mul_(2)


def put_back(step, model, optimizer):
    """Adversarial training: the gradient of an attack is thrown away, and the first one put back."""
    loss_of(model).backward()
    kept = [param.grad.clone() for param in model.parameters()]
    optimizer.zero_grad(set_to_none=False)
    loss_of(model).backward()
    for param, grad in zip(model.parameters(), kept, strict=True):
        param.grad = grad
    loss_of(model).backward()
    optimizer.step()
    optimizer.zero_grad()


def per_micro_batch(step, model, optimizer):
    """Each micro-batch is clipped by itself, and the sum kept elsewhere, as in private training."""
    sums = [torch.zeros_like(param) for param in model.parameters()]
    for _ in range(3):
        loss_of(model).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        for total, param in zip(sums, model.parameters(), strict=True):
            total += param.grad
        optimizer.zero_grad()
    for total, param in zip(sums, model.parameters(), strict=True):
        param.grad = total
    optimizer.step()
    optimizer.zero_grad()


def surgery(step, model, optimizer):
    """Of two losses the part of one gradient that is against the other is taken out."""
    loss_of(model).backward()
    first = [param.grad.clone() for param in model.parameters()]
    optimizer.zero_grad(set_to_none=False)
    loss_of(model).backward()
    for param, grad in zip(model.parameters(), first, strict=True):
        param.grad += grad - grad * ((grad * param.grad).sum() < 0)
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.in_turn
@pytest.mark.parametrize("loop", [masked, between(once), put_back, per_micro_batch, surgery])
def test_changes_between_passes_that_are_meant(tmp_path, loop):
    assert watched(tmp_path / "run", loop) == []


def through_epochs(out, *, clears=False, carries=False, every=1):
    """The findings after four epochs of eight batches, three micro-batches an update; ``clears`` at the end of an
    epoch, ``carries`` on counting, or has an extra backward pass at ``every`` other step than the first of an epoch.
    """
    torch.manual_seed(0)
    model, loader = mlp(), DataLoader(torch.randn(32, 16), batch_size=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    count = updates = 0
    with trueline.watch(model, optimizer, out=out):
        for _ in range(4):
            for micro, batch in enumerate(loader):
                (model(batch).square().mean() / 3).backward()
                count += 1
                if (count if carries else micro + 1) % 3 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
                    updates += 1
                    if updates % every:
                        loss_of(model).backward()
            if clears:
                optimizer.zero_grad()
    return asked(out, "grad-accumulates")[0]


def test_micro_batches_that_are_left_over_at_the_end_of_an_epoch(tmp_path):
    (finding,) = through_epochs(tmp_path / "run")
    assert finding.claim.startswith("Steps 2, 4 and 6, where epochs begin, use the gradients of 5 micro-batches")
    assert (finding.evidence["kind"], finding.measured, finding.expected) == ("left-over", 5.0, 3.0)


@pytest.mark.parametrize("healthy", [{"clears": True}, {"carries": True}, {"clears": True, "every": 3}])
def test_epochs_that_end_as_they_should(tmp_path, healthy):
    assert through_epochs(tmp_path / "run", **healthy) == []
