"""What a job holds beside its model that is like the weights: found, told as facts, and asked about."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import trueline
from trueline.capture.model.weight_copies import weight_copies
from trueline.laws.averages import average_in_model, average_restarts, average_updates
from trueline.laws.averages.facts import copies_beside
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

STEPS = 14
DECAY = 0.9


@pytest.fixture
def net():
    """Makes models of a class of this test alone: models of other tests may be there still."""

    class OwnNet(nn.Sequential):
        pass

    return lambda: OwnNet(nn.Linear(6, 23), nn.ReLU(), nn.Linear(23, 3))


class Shadow:
    """An average in a list, as diffusers and torch_ema have it."""

    def __init__(self, model, kind=list):
        values = {name: param.detach().clone() for name, param in model.named_parameters()}
        self.shadow = values if kind is dict else [*values.values()]

    @torch.no_grad()
    def update(self, model, decay=DECAY):
        for key, param in zip(self.keys(), model.parameters(), strict=True):
            self.shadow[key] = decay * self.shadow[key] + (1 - decay) * param

    def keys(self):
        return list(self.shadow) if isinstance(self.shadow, dict) else range(len(self.shadow))

    @torch.no_grad()
    def copy_to(self, model):
        for key, param in zip(self.keys(), model.parameters(), strict=True):
            param.data.copy_(self.shadow[key])


def nothing(step):
    pass


def train(folder, model, after_update=nothing, *, micro=1, after_micro=nothing, first=0, steps=STEPS):
    torch.manual_seed(1 + first)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    watch = trueline.watch(model, optimizer, out=folder, step=first or None, resume=first > 0)
    for step in range(first, first + steps):
        for number in range(micro):
            x = torch.randn(16, 6)
            (model(x) - x[:, :3]).square().mean().backward()
            if number < micro - 1:
                after_micro(step)
        optimizer.step()
        optimizer.zero_grad()
        after_update(step)
    watch.close()
    return Run(str(folder))


def makers(net):
    return {
        "list": lambda model: Shadow(model),
        "dict": lambda model: Shadow(model, dict),
        "AveragedModel": lambda model: AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(DECAY)),
    }


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["list", "dict", "AveragedModel"])
@pytest.mark.parametrize("faulty", [True, False])
def test_an_average_that_is_updated_at_each_micro_batch(tmp_path, net, kind, faulty):
    model = net()
    average = makers(net)[kind](model)
    update = average.update_parameters if kind == "AveragedModel" else average.update
    by_micro = (lambda step: update(model)) if faulty else nothing
    run = train(tmp_path / "run", model, lambda step: update(model), micro=3, after_micro=by_micro)
    findings = average_updates.check(run)
    assert [(finding.severity, finding.measured) for finding in findings] == ([("confirm", 3.0)] if faulty else [])
    text, (numbers,) = copies_beside(run)
    name = "AveragedModel" if kind == "AveragedModel" else "Shadow.shadow"
    assert text.startswith(f"1 average of the weights ({name}): 4 of 4 parameters, moves ")
    assert numbers["updates"] == (3 if faulty else 1)
    assert numbers["share"] == pytest.approx(1 - DECAY ** (3 if faulty else 1), rel=1e-3)


@pytest.mark.parametrize("loads", ["weights", "both", "the average twice"])
def test_an_average_that_begins_again_at_a_restart(tmp_path, net, loads):
    def first_start():
        model = net()
        average = Shadow(model)
        train(tmp_path / "run", model, lambda step: average.update(model))
        return model.state_dict(), [tensor.clone() for tensor in average.shadow]

    weights, shadow = first_start()
    again = net()
    again.load_state_dict(weights)
    if loads == "the average twice":  # to go on from it
        with torch.no_grad():
            for param, value in zip(again.parameters(), shadow, strict=True):
                param.copy_(value)
    later = Shadow(again)
    if loads == "both":
        later.shadow = shadow
    del weights, shadow
    run = train(tmp_path / "run", again, lambda step: later.update(again), first=STEPS)
    findings = average_restarts.check(run)
    assert [finding.step_first for finding in findings] == ([STEPS] if loads == "weights" else [])


def test_weights_that_are_set_to_the_average_and_not_put_back(tmp_path, net):
    model = net()
    average = Shadow(model)

    def after(step):
        average.update(model)
        if step in (5, 9):
            average.copy_to(model)

    (finding,) = average_in_model.check(train(tmp_path / "run", model, after))
    assert (finding.severity, finding.evidence["steps"]) == ("confirm", [5, 9])


def test_weights_that_are_put_back_and_weights_that_are_loaded_are_left_alone(tmp_path, net):
    model = net()
    average = Shadow(model)

    def after(step):
        average.update(model)
        if step == 5:  # for an evaluation
            weights = copy.deepcopy(model.state_dict())
            average.copy_to(model)
            model.load_state_dict(weights)
        if step == 9:  # another model altogether, at which the average begins again
            model.load_state_dict(net().state_dict())
            average.shadow = [param.detach().clone() for param in model.parameters()]

    run = train(tmp_path / "run", model, after)
    assert average_in_model.check(run) == []


def test_a_target_network_and_a_reference_are_no_averages(tmp_path, net):
    model = net()
    target, reference = copy.deepcopy(model), copy.deepcopy(model)

    def after(step):
        if step % 4 == 3:
            target.load_state_dict(model.state_dict())

    run = train(tmp_path / "run", model, after)
    text, numbers = copies_beside(run)
    assert "4 of 4 parameters, set to them 3 times in 13 updates that were seen" in text
    assert "4 of 4 parameters, as the weights were at step 0" in text
    assert sorted(row["is"] for row in numbers) == ["set", "untouched"]
    for check in (average_in_model.check, average_updates.check):
        with pytest.raises(CannotTell, match="no average of the weights"):
            check(run)
    del reference


def test_a_part_of_the_model_that_follows_another_part(tmp_path, net):
    class Pair(nn.Module):
        """The query and the key encoder of MoCo."""

        def __init__(self):
            super().__init__()
            self.query = net()
            self.key = copy.deepcopy(self.query).requires_grad_(False)

        def forward(self, x):
            return self.query(x) + self.key(x)

    model = Pair()

    @torch.no_grad()
    def follow(step):
        for e, p in zip(model.key.parameters(), model.query.parameters(), strict=True):
            e.data.lerp_(p.data, 1 - DECAY)

    text, _ = copies_beside(train(tmp_path / "run", model, follow))
    assert text == "1 average of the weights (Pair.key): 4 of 4 parameters, moves 10 % an update, once for each update"


def test_watching_moves_no_copy_and_keeps_none_alive(tmp_path, net):
    def trained(folder):
        torch.manual_seed(0)
        model = net()
        average = Shadow(model)
        update = lambda step: average.update(model)  # noqa: E731
        if folder is None:
            torch.manual_seed(1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            for step in range(STEPS):
                x = torch.randn(16, 6)
                (model(x) - x[:, :3]).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                update(step)
        else:
            train(folder, model, update)
        return [*model.parameters(), *average.shadow]

    assert all(torch.equal(x, y) for x, y in zip(trained(tmp_path / "run"), trained(None), strict=True))


def test_what_the_job_lets_go_of_is_let_go_of(net):
    class Values(list):
        """A list with weak references."""

    model = net()
    values = Values(param.detach().clone() for param in model.parameters())
    (found,) = weight_copies(model)
    gone = weakref.ref(values)
    assert found.is_alive
    del values
    gc.collect()
    assert not found.is_alive
    assert gone() is None


def test_what_is_trained_and_what_is_not_like_the_model_is_no_copy(net):
    model, twin, larger = net(), net(), nn.Sequential(*net(), nn.Linear(3, 3))
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    state, lists = model.state_dict(), [list(model.parameters()), [param.detach()[:1] for param in model.parameters()]]
    assert weight_copies(model) == []
    del larger, optimizer, state, lists


def test_no_code_of_the_users_containers_runs(net):
    class Lazy(dict):
        """As transformers has them: asked for its length it loads everything."""

        def __len__(self):
            raise AssertionError("asked")

        __iter__ = __getitem__ = keys = values = items = __len__

    class LazyList(list):
        def __len__(self):
            raise AssertionError("asked")

        __iter__ = __getitem__ = __len__

    model = net()
    copies = {name: param.detach().clone() for name, param in model.named_parameters()}
    held = [Lazy(), LazyList(), Lazy(copies), LazyList(copies.values())]
    assert [copy.pairs[0].average() is copies["0.weight"] for copy in weight_copies(model)] == [True] * 3
    del held


@pytest.mark.parametrize("first", [True, False])
def test_lazy_modules_that_have_no_shapes_yet_are_passed_over(first):
    class Lazy(nn.Sequential):
        pass

    def make():
        return Lazy(nn.LazyLinear(23), nn.ReLU(), nn.LazyLinear(3))

    model, uncalled = make(), make()
    model(torch.randn(16, 6))
    held = [*uncalled.parameters()] if first else dict(uncalled.named_parameters())
    copies = [param.detach().clone() for param in model.parameters()]
    assert [copy.pairs[0].average() is copies[0] for copy in weight_copies(model)] == [True]
    del held


def test_what_is_replaced_between_sampled_steps_is_let_go_of(tmp_path, net):
    class Values(list):
        """A list with weak references."""

    model, refs, alive = net(), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    average = Values(param.detach().clone() for param in model.parameters())
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan={"every": 8}):
        for _ in range(30):
            loss = model(torch.randn(16, 6)).square().mean()
            alive.append(sum(ref() is not None for ref in refs))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            refs.append(weakref.ref(average))
            average = Values(param.detach().clone() for param in model.parameters())
    assert max(alive) == 0


def test_a_model_with_no_truth_can_be_declared(tmp_path):
    class Bare(nn.Linear):
        def __bool__(self):
            raise AssertionError("asked")

    model = Bare(6, 3)
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with trueline.watch(model, optimizer, out=tmp_path / "run", averages=[(average, model, DECAY)]):
        for _ in range(4):
            model(torch.randn(16, 6)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert Run(tmp_path / "run").lists("average_values")


def test_parameters_that_an_average_leaves_as_they_are_are_counted(tmp_path, net):
    model = net()
    average = Shadow(model)

    @torch.no_grad()
    def follow(step):
        average.shadow[0] = DECAY * average.shadow[0] + (1 - DECAY) * model[0].weight

    text, _ = copies_beside(train(tmp_path / "run", model, follow))
    assert text.startswith(
        "1 average of the weights (Shadow.shadow): 4 of 4 parameters, 3 of which stay as they are, moves"
    )
