"""weights-left-out, stale-weights: what the loss is computed from and nothing trains, or that was computed before."""

import contextlib
import gc
import json

import pytest
import torch
from tests.unit.asked import asked
from tests.unit.healthy_run import healthy_rows, write_run
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import trueline
from trueline.judge.facts.training_facts import read_facts
from trueline.laws.leaves import probe, stale_weights, weights_left_out
from trueline.laws.leaves.columns import LossLeaves, OutsideLeaf
from trueline.schema.errors import CannotTell

CODES = ("weights-left-out", "stale-weights")
WIDTH, STEPS = 6, 10


class Net(nn.Module):
    """A layer, then what ``middle`` does with its output, then another."""

    def __init__(self, middle=lambda x: x, holds=None, **attributes):
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)
        self.middle, self.holds = middle, holds
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x):
        return self.last(self.middle(self.first(x).relu()))


class Plain:
    """No module."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


def trained(out, model, *, more=(), loss_of=functional.cross_entropy, inputs=lambda x: x, steps=STEPS, plan=None):
    """The losses of some steps of ``model``, with ``more`` in its optimizer, watched into ``out`` unless it is None."""
    torch.manual_seed(1)
    updates = torch.optim.SGD([*model.parameters(), *more], lr=0.1)
    watch = None if out is None else trueline.watch(model, updates, out=out, plan={"every": 1, **(plan or {})})
    losses = []
    for _ in range(steps):
        x = torch.randn(8, WIDTH)
        loss = loss_of(model(inputs(x)), (x.sum(1) > 0).long())
        loss.backward()
        updates.step()
        updates.zero_grad()
        losses.append(loss.detach())
    if watch is not None:
        watch.close()
    return losses


def judged(out):
    findings, why = asked(out, *CODES)
    assert why == []
    return [(each.code, each.evidence.get("kind", ""), each.evidence["names"]) for each in findings]


def in_a_list():
    layers = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
    return Net(lambda x: layers[1](layers[0](x)), layers)


def in_a_dict():
    part = {"adapters": {"a": nn.Linear(WIDTH, WIDTH, bias=False)}}
    return Net(lambda x: part["adapters"]["a"](x), part)


def in_an_object():
    part = Plain(scale=nn.Parameter(torch.ones(WIDTH)))
    return Net(lambda x: x * part.scale, part)


def evaluating():
    part = [nn.Linear(WIDTH, WIDTH, bias=False).eval()]
    return Net(lambda x: part[0](x), part)


def plain_tensor():
    scale = torch.ones(WIDTH, requires_grad=True)
    return Net(lambda x: x * scale, scale)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("make", "kind", "names"),
    [
        (in_a_list, "attribute", ["holds.0.bias", "holds.0.weight", "holds.1.bias", "holds.1.weight"]),
        (in_a_dict, "attribute", ["holds.adapters.a.weight"]),
        (in_an_object, "attribute", ["holds.scale"]),
        (evaluating, "attribute-evaluates", ["holds.0.weight"]),
        (plain_tensor, "attribute-tensor", ["holds"]),
    ],
)
def test_what_the_model_holds_and_does_not_register_is_told(tmp_path, make, kind, names):
    trained(tmp_path / "run", make())
    assert judged(tmp_path / "run") == [("weights-left-out", kind, names)]


def test_a_module_beside_the_model_is_to_be_confirmed_while_it_is_in_training_mode(tmp_path):
    outside = nn.Linear(2, 2, bias=False)
    loss_of = lambda made, wanted: functional.cross_entropy(outside(made), wanted)  # noqa: E731
    trained(tmp_path / "run", Net(), loss_of=loss_of)
    assert judged(tmp_path / "run") == [("weights-left-out", "module", ["Linear.weight"])]
    trained(tmp_path / "held", Net(), loss_of=loss_of, more=outside.parameters())
    outside.eval()
    trained(tmp_path / "evaluates", Net(), loss_of=loss_of)
    assert judged(tmp_path / "held") == judged(tmp_path / "evaluates") == []


def test_a_parameter_of_nobody_is_told_and_one_that_moves_by_hand_is_not(tmp_path):
    owner = Plain(log_scale=nn.Parameter(torch.zeros(())))

    def loss_of(made, wanted):
        return functional.cross_entropy(made, wanted) * owner.log_scale.exp() + owner.log_scale

    trained(tmp_path / "run", Net(), loss_of=loss_of)
    assert judged(tmp_path / "run") == [("weights-left-out", "nobody", ["log_scale"])]

    def by_hand(made, wanted):
        if owner.log_scale.grad is not None:
            owner.log_scale.data -= 0.01 * owner.log_scale.grad
        return loss_of(made, wanted)

    trained(tmp_path / "by_hand", Net(), loss_of=by_hand)
    assert judged(tmp_path / "by_hand") == []


def test_a_layer_that_is_made_in_the_forward_pass_is_told(tmp_path):
    trained(tmp_path / "run", Net(lambda x: nn.Linear(WIDTH, WIDTH, bias=False)(x)))
    ((code, kind, names),) = judged(tmp_path / "run")
    assert (code, kind) == ("weights-left-out", "new")
    assert names == [f"one of shape [{WIDTH}, {WIDTH}]"]


def test_inputs_that_need_a_gradient_and_checkpoints_are_left_alone(tmp_path):
    fixed = torch.randn(8, WIDTH, requires_grad=True)
    part = nn.Linear(WIDTH, WIDTH)
    model = Net(lambda x: checkpoint(part, x, use_reentrant=True), part=part)
    trained(tmp_path / "run", model, inputs=lambda x: x.requires_grad_())
    trained(tmp_path / "fixed", Net(), inputs=lambda x: x + 0 * fixed)
    assert judged(tmp_path / "run") == judged(tmp_path / "fixed") == []


class KeepsItsCast(nn.Module):
    """A linear layer that computes with a cast of its weight, made once unless ``again``."""

    def __init__(self, *, again=False):
        super().__init__()
        self.weight, self.again, self.low = nn.Parameter(torch.eye(WIDTH)), again, None

    def forward(self, x):
        if self.low is None or self.again:
            self.low = self.weight.to(torch.bfloat16)
        return functional.linear(x.to(torch.bfloat16), self.low).float()


def test_a_cast_that_is_made_once_is_told_and_one_that_is_made_again_is_not(tmp_path):
    for again in (False, True):
        part = KeepsItsCast(again=again)
        trained(tmp_path / str(again), Net(part, part=part))
    assert judged(tmp_path / "False") == [("stale-weights", "", ["middle.weight"])]
    assert judged(tmp_path / "True") == []


@pytest.mark.parametrize("around", [True, False])
def test_an_autocast_around_the_loop_is_told(tmp_path, around):
    # A context that lowers nothing keeps the cache of those inside of it all the same.
    def under(made, wanted):
        return functional.cross_entropy(made.float(), wanted)

    model = Net()
    plain_forward = model.forward

    def forward(x):
        with torch.autocast("cpu", torch.bfloat16):
            return plain_forward(x)

    model.forward = forward
    with torch.autocast("cpu", torch.bfloat16, enabled=False) if around else contextlib.nullcontext():
        trained(tmp_path / "run", model, loss_of=under)
    names = ["first.weight", "first.bias", "last.weight", "last.bias"]
    assert judged(tmp_path / "run") == ([("stale-weights", "", names)] if around else [])


def test_a_weight_that_is_frozen_or_did_not_move_may_be_cast_once(tmp_path):
    part = KeepsItsCast()
    model = Net(part, part=part)
    params = [*model.first.parameters(), *model.last.parameters()]
    model.parameters = lambda recurse=True: iter(params)  # the optimizer is not given the cast one
    trained(tmp_path / "run", model)
    assert all(code != "stale-weights" for code, *_ in judged(tmp_path / "run"))


def test_watching_leaves_a_training_as_it_is(tmp_path):
    for make in (in_a_list, plain_tensor, lambda: Net(KeepsItsCast())):
        torch.manual_seed(3)
        plain = trained(None, make())
        torch.manual_seed(3)
        assert all(map(torch.equal, plain, trained(tmp_path / make.__name__.strip("<>"), make())))


def leaves(**changes):
    facts = {"of": 4, "outside": (), "num_outside": 0, "inputs": 0, "old": (), "last_step": 2}
    return LossLeaves(**(facts | {"complete": True, "sharded": False} | changes))


def run_of(path, looks, changes):
    rows = healthy_rows(2, 10)
    for (step, _), row in rows.items():
        if step in looks:
            row |= {"loss_leaves": looks[step].to_json(), "leaf_changes": changes.get(step, [])}
    return write_run(path, rows)


def test_what_an_optimizer_holds_or_what_has_changed_is_left_alone(tmp_path):
    lone = OutsideLeaf("scale", (2,), "nobody", True, True, "", again=True)
    held = OutsideLeaf("scale", (2,), "nobody", True, True, "SGD", again=True)
    for name, outside, change, num in (("a", lone, 0, 1), ("b", held, 0, 0), ("c", lone, 1, 0), ("d", lone, -1, 0)):
        run = run_of(tmp_path / name, {2: leaves(last_step=None), 8: leaves(outside=(outside,))}, {8: [change]})
        findings = weights_left_out.check(run)
        assert len(findings) == num
        assert all((each.ranks, each.severity) == ((0, 1), "warning") for each in findings)


def test_an_operation_is_stale_where_its_parameter_has_changed(tmp_path):
    for change in (0, 1):
        looks = {2: leaves(last_step=None), 8: leaves(old=("a.weight",))}
        findings = stale_weights.check(run_of(tmp_path / str(change), looks, {8: [change]}))
        assert [each.evidence["onset_interval"] for each in findings] == [[3, 8]][:change]


@pytest.mark.parametrize(
    ("looks", "why"),
    [
        ({}, "no graph"),
        ({2: leaves(last_step=None)}, "one step alone"),
        ({2: leaves(last_step=None, complete=False), 8: leaves(complete=False)}, "too large"),
    ],
)
def test_without_two_whole_graphs_it_cannot_tell(tmp_path, looks, why):
    for check in (stale_weights, weights_left_out):
        with pytest.raises(CannotTell, match=why):
            check.check(run_of(tmp_path / check.CODE, looks, {}))


def test_a_row_is_read_as_it_was_written():
    outside = OutsideLeaf("layers.0.weight", (2, 3), "attribute", True, True, "", again=None)
    row = leaves(outside=(outside,), old=("a",))
    assert LossLeaves.from_json(json.dumps(json.loads(row.to_json()))) == row


def test_facts_say_what_is_outside_of_the_model(tmp_path):
    held = OutsideLeaf("Head.weight", (2,), "module", True, True, "SGD", again=True)
    run = run_of(tmp_path / "run", {2: leaves(last_step=None), 8: leaves(outside=(held,))}, {8: [1]})
    (fact,) = [fact for fact in read_facts(run).facts if fact.name == "outside-model"]
    assert fact.value == {"outside": ["Head.weight"], "held": 1}


def test_many_tensors_of_nobody_are_counted_and_the_heap_is_gone_through_once_a_look(tmp_path, monkeypatch):
    scales = [nn.Parameter(torch.ones(1)) for _ in range(probe.MAX_OUTSIDE + 6)]
    calls = []
    referrers = gc.get_referrers
    monkeypatch.setattr(gc, "get_referrers", lambda *objects: calls.append(len(objects)) or referrers(*objects))
    trained(tmp_path / "run", Net(lambda x: x * torch.cat(scales).prod()), steps=4)
    ((_, text),) = trueline.open_run(tmp_path / "run").texts("loss_leaves").items()
    looked_at = LossLeaves.from_json(text)
    assert (looked_at.num_outside, looked_at.inputs) == (len(scales), 0)
    assert len(looked_at.outside) == probe.MAX_OUTSIDE
    assert calls.count(probe.MAX_OUTSIDE) == 1
    assert 1 not in calls
