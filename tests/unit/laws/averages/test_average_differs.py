"""Averages of the weights: what is no average of them is found, and what people do is left alone."""

import copy
import gc
import math

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn, get_swa_multi_avg_fn

import trueline
from trueline.capture.model.weight_copies import weight_copies
from trueline.laws.averages import probe as averages
from trueline.laws.averages.average_differs import check
from trueline.schema.errors import CannotTell, CaptureError
from trueline.store.reader import Run

STEPS = 12
DECAY = 0.9


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 3))


def follow(average, model, decay=DECAY):
    with torch.no_grad():
        for e, p in zip(average.parameters(), model.parameters(), strict=True):
            e.data.mul_(decay).add_(p.data, alpha=1 - decay)
        for e, p in zip(average.buffers(), model.buffers(), strict=True):
            e.copy_(p)


def trained(folder, average, update, *, model=None, declare=(), params=None, lr=0.1, steps=STEPS):
    """The state that training leaves in the model and its average, which ``update(step, average, model)`` follows."""
    model = net() if model is None else model
    average = average(model)
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(params(model, average) if params else model.parameters(), lr=lr, momentum=0.9)
    declared = declare(average, model) if callable(declare) else declare
    if not declared:
        gc.collect()  # an average that nobody declares is not told from models of other tests that are garbage
    watch = None if folder is None else trueline.watch(model, optimizer, out=folder, averages=declared)
    for step in range(steps):
        x = torch.randn(16, 6, dtype=model[0].weight.dtype)
        (model(x) - x[:, :3]).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        update(step, average, model)
    if watch is not None:
        watch.close()
    copies = [average] if isinstance(average, nn.Module) else []
    return {
        f"{at} {name}": tensor
        for at, module in enumerate([model, *copies])
        for name, tensor in module.state_dict().items()
    }


def findings(folder):
    return [(finding.severity, finding.evidence["kind"]) for finding in check(Run(str(folder)))]


def every_step(step, average, model):
    follow(average, model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_teacher_that_is_declared_is_left_alone(tmp_path, dtype):
    def update(step, average, model):
        follow(average, model, 1 - (1 - 0.8) * (math.cos(math.pi * step / STEPS) + 1) / 2)

    trained(tmp_path / "run", copy.deepcopy, update, model=net().to(dtype), declare=lambda average, model: [average])
    assert findings(tmp_path / "run") == []


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"use_buffers": True},
        {"multi_avg_fn": get_swa_multi_avg_fn()},
        {"multi_avg_fn": get_ema_multi_avg_fn(0.99), "use_buffers": True},
        {"avg_fn": get_ema_avg_fn(0.99)},
    ],
)
def test_an_averaged_model_is_seen_and_left_alone(tmp_path, settings):
    def update(step, average, model):
        average.update_parameters(model)

    trained(tmp_path / "run", lambda model: AveragedModel(model, **settings), update)
    assert findings(tmp_path / "run") == []


def test_training_and_the_average_are_the_same_when_watched(tmp_path):
    def declared(average, model):
        return [(average, DECAY)]

    watched = trained(tmp_path / "run", copy.deepcopy, every_step, declare=declared)
    alone = trained(None, copy.deepcopy, every_step)
    assert all(torch.equal(watched[name], alone[name]) for name in alone)


def stale(step, average, model, copies={}):  # noqa: B006
    follow(average, copies.setdefault(id(average), copy.deepcopy(model)))


def swapped(step, average, model):
    follow(average, model, 1 - DECAY)


def twice(step, average, model):
    every_step(step, average, model)
    every_step(step, average, model)


def another_decay(step, average, model):
    follow(average, model, 0.95)


def without_the_head(step, average, model):
    follow(average[:3], model[:3])


def without_buffers(step, average, model):
    with torch.no_grad():
        torch._foreach_lerp_([*average.parameters()], [*model.parameters()], 1 - DECAY)


def partly_copied(step, average, model):
    every_step(step, average, model)
    average[3].load_state_dict(model[3].state_dict())


def never(step, average, model):
    pass


def warming_up(step, average, model):
    follow(average, model, min(DECAY, (1 + step) / (10 + step)))


def alone(average, model):
    return [average]


def with_decay(average, model):
    return [(average, model, DECAY)]


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("update", "declare", "expected"),
    [
        (stale, alone, ("error", "rule")),
        (swapped, with_decay, ("error", "swapped")),
        (twice, with_decay, ("error", "often")),
        (another_decay, with_decay, ("error", "decay")),
        (without_the_head, alone, ("warning", "left-out")),
        (never, with_decay, ("warning", "still")),
        (never, alone, ("info", "still")),
        (swapped, alone, ("info", "fast")),
        (warming_up, with_decay, ("info", "rising")),
        (without_buffers, with_decay, ("info", "buffers")),
        (partly_copied, alone, ("info", "copied")),
    ],
)
def test_how_an_average_differs_is_said(tmp_path, update, declare, expected):
    steps = 2 * STEPS if expected[1] == "fast" else STEPS  # which is said after 16
    trained(tmp_path / "run", copy.deepcopy, update, declare=declare, steps=steps)
    assert findings(tmp_path / "run") == [expected]


def test_an_average_that_rounding_holds_for_now_is_left_alone(tmp_path):
    """As at the beginning of a warm-up of the learning rate."""

    def update(step, average, model):
        with torch.no_grad():
            torch._foreach_lerp_([*average.parameters()], [*model.parameters()], 1e-4)

    model = net()
    with torch.no_grad():
        torch._foreach_add_([*model.parameters()], 1.0)
    declared = {"declare": lambda average, model: [(average, 0.9999)], "lr": 1e-8}
    trained(tmp_path / "run", copy.deepcopy, update, model=model, **declared)
    assert findings(tmp_path / "run") == []


def asked_in(mode, update):
    """An ``update`` of a teacher in ``mode``, which is asked of a batch after it."""

    def updated(step, average, model):
        update(step, average, model)
        average[1].momentum = 0.0 if mode == "training, kept" else 0.1
        with torch.no_grad():
            average.train(mode != "evaluation")(torch.randn(16, 6))

    return updated


@pytest.mark.parametrize("declare", [alone, ()])
def test_a_teacher_with_statistics_of_its_own_in_evaluation_mode_is_to_be_confirmed(tmp_path, declare):
    trained(tmp_path / "run", copy.deepcopy, asked_in("evaluation", without_buffers), declare=declare)
    (finding,) = check(Run(str(tmp_path / "run")))
    assert (finding.severity, finding.evidence["kind"]) == ("confirm", "buffers-read")
    assert "is called in evaluation mode with buffers that do not follow the model's" in finding.claim
    assert finding.claim.endswith(": 1.running_mean and 1.running_var.")


def only_before_it_is_asked(step, average, model):
    without_buffers(step, average, model)
    if step % 4 == 3:
        follow(average, model, 0.0)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("update", "kinds"),
    [
        (asked_in("evaluation", lambda step, average, model: follow(average, model)), []),
        (asked_in("training", without_buffers), []),
        (asked_in("training, kept", without_buffers), [("info", "buffers")]),
        (without_buffers, [("info", "buffers")]),
        (asked_in("evaluation", only_before_it_is_asked), []),
    ],
)
def test_a_teacher_whose_statistics_follow_or_are_not_read_is_not_asked_about(tmp_path, update, kinds):
    trained(tmp_path / "run", copy.deepcopy, update, declare=alone)
    assert findings(tmp_path / "run") == kinds


def test_copies_now_and_then_leave_no_buffers_out(tmp_path, monkeypatch):
    monkeypatch.setattr(averages, "NUM_SLICES", 3)

    def update(step, average, model):
        if step % 5 == 4:
            follow(average, model, 0.0)

    trained(tmp_path / "run", copy.deepcopy, update, declare=alone)
    assert findings(tmp_path / "run") == []


def test_what_follows_compiled_updates_is_judged_as_any(tmp_path):
    """Torch calls its hooks beside what it compiles of an update."""
    model = nn.Linear(6, 3)
    average, optimizer = copy.deepcopy(model), torch.optim.SGD(model.parameters(), lr=0.1)
    update = torch.compile(optimizer.step, backend="eager")
    with trueline.watch(model, optimizer, out=tmp_path / "run", averages=[(average, DECAY)]):
        for _ in range(6):
            model(torch.randn(16, 6)).square().mean().backward()
            update()
            optimizer.zero_grad()
            follow(average, model)
    assert findings(tmp_path / "run") == []


def test_an_average_that_the_optimizer_trains(tmp_path):
    def also_trains(step, average, model):
        with torch.enable_grad():
            average(torch.ones(2, 6)).square().mean().backward()
        every_step(step, average, model)

    all_params = lambda model, average: [*model.parameters(), *average.parameters()]  # noqa: E731
    trained(tmp_path / "run", copy.deepcopy, also_trains, declare=alone, params=all_params)
    assert findings(tmp_path / "run") == [("error", "trained")]


def test_an_average_that_is_the_model(tmp_path):
    trained(tmp_path / "run", lambda model: nn.Sequential(*model), every_step, declare=alone)
    assert findings(tmp_path / "run") == [("error", "same")]


def test_an_average_in_bfloat16_loses_what_it_is_to_follow(tmp_path):
    def update(step, average, model):
        follow(average, model, 0.999)

    trained(tmp_path / "run", lambda model: net().bfloat16(), update, declare=lambda average, _: [(average, 0.999)])
    assert findings(tmp_path / "run") == [("warning", "lost")]


@pytest.mark.parametrize("container", ["list", "mapping"])
def test_averages_that_are_no_modules(tmp_path, container):
    """They may be other tensors each time."""

    def average(model):
        copies = {name: param.detach().clone() for name, param in model.named_parameters()}
        return copies if container == "mapping" else [*copies.values()]

    def update(step, average, model):
        for key, param in zip(
            average if container == "mapping" else range(len(average)), model.parameters(), strict=True
        ):
            average[key] = DECAY * average[key] + (1 - DECAY) * (param.detach() if step != 3 else 2 * param.detach())

    trained(tmp_path / "run", average, update, declare=lambda average, _: [average])
    (finding,) = check(Run(str(tmp_path / "run")))
    assert (finding.severity, finding.step_first, finding.step_last) == ("error", 3, 3)


@pytest.mark.parametrize("wrong", [3, ["teacher"], [(net(), "0.9")], [(net(), 1.5)], [[1.0]]])
def test_what_is_no_average_is_refused(tmp_path, wrong):
    with pytest.raises(CaptureError, match="averages"):
        trueline.watch(net(), out=tmp_path / "run", averages=wrong)
    assert not (tmp_path / "run").exists()


def test_an_average_that_nobody_declared_is_judged_by_what_it_does(tmp_path):
    class OwnNet(nn.Sequential):
        """Of this test alone: models of other tests may be there still."""

    def coarse(_):
        return OwnNet(*net(seed=7)).bfloat16().requires_grad_(False)

    def update(step, average, model):
        follow(average, model, 0.999)

    trained(tmp_path / "run", coarse, update, model=OwnNet(*net()))
    assert findings(tmp_path / "run") == [("warning", "lost")]


def towards_zero(step, average, model):
    with torch.no_grad():
        for parameter in average.parameters():
            parameter *= 0.9


def now_and_then(step, average, model):
    if step % 16 == 15:
        average.load_state_dict(model.state_dict())


@pytest.mark.parametrize("update", [lambda *_: None, towards_zero, now_and_then])
def test_a_copy_of_the_model_that_is_no_average_is_left_alone(tmp_path, update):
    class OwnNet(nn.Sequential):
        """Of this test alone: models of other tests may be there still."""

    trained(tmp_path / "run", copy.deepcopy, update, model=OwnNet(*net()))
    with pytest.raises(CannotTell, match="no average of the weights was seen"):
        findings(tmp_path / "run")


def test_only_copies_that_nothing_trains_are_looked_at():
    class OwnNet(nn.Sequential):
        """Of this test alone: models of other tests may be there still."""

    def own_net():
        return OwnNet(*net())

    model, unlike = own_net(), OwnNet(nn.Linear(6, 24), nn.BatchNorm1d(24))
    copied, declared, trains, torchs = copy.deepcopy(model), copy.deepcopy(model), copy.deepcopy(model), own_net()
    trains[0].weight.grad = torch.zeros(24, 6)
    averaged = AveragedModel(torchs)

    def first_weights(copies):
        """Without those of containers that other tests may have left."""
        return {id(copy.pairs[0].average()) for copy in copies if not copy.is_torchs and copy.container is None}

    assert first_weights(weight_copies(model, [declared])) == {id(copied[0].weight), id(torchs[0].weight)}
    assert id(averaged.module[0].weight) not in first_weights(weight_copies(torchs))
    assert first_weights(weight_copies(unlike)) == set()
