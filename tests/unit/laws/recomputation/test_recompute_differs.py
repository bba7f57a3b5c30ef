"""recompute-differs: what a checkpoint computes again otherwise is found at its place, and what it repeats is not."""

import functools

import pytest
import torch
from tests.unit.healthy_run import write_run
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

import trueline
from trueline.laws.recomputation import recompute_differs
from trueline.laws.recomputation.columns import Apart, Recomputed
from trueline.schema.errors import CannotTell

WIDTH = 32


class Block(nn.Module):
    """``fault``: what it does otherwise at every second call."""

    def __init__(self):
        super().__init__()
        self.up, self.drop, self.down = nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH)
        self.calls, self.fault = 0, ""

    def forward(self, x):
        self.calls += 1
        if self.fault == "counter" and self.calls % 2 == 0:
            x = self.up(x) * 2
        elif self.fault == "format":
            with torch.autocast("cpu", torch.bfloat16, enabled=self.calls % 2 == 1):
                x = self.up(x)
        else:
            x = self.up(x)
        return self.down(functional.gelu(self.drop(x)).float())


class Net(nn.Module):
    def __init__(self, wrap, *, shared=False):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(1 if shared else 2))
        self.wrap = wrap

    def forward(self, x):
        for number in range(2):
            x = self.wrap(self.blocks[number % len(self.blocks)], x)
        return x


def plain(block, x):
    return block(x)


def wrap_of(**settings):
    return lambda block, x: checkpoint(block, x, **settings)


REENTRANT, OTHER = wrap_of(use_reentrant=True), wrap_of(use_reentrant=False)


def nested(block, x):
    return checkpoint(functools.partial(OTHER, block), x, use_reentrant=False)


def saving_products(block, x):
    """Selective checkpointing, which caches what operators return and must not see ours."""
    contexts = functools.partial(
        create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default, torch.ops.aten.clone.default]
    )
    return checkpoint(block, x, use_reentrant=False, context_fn=contexts)


def loss_of(model, x):
    return model(x).float().square().mean()


def train(out, model, *, loss=loss_of, steps=3, between=lambda model: None, watched=True):
    torch.manual_seed(0)
    for param in model.parameters():
        nn.init.normal_(param, std=0.2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = trueline.watch(model, optimizer, out=str(out)) if watched else None
    for _ in range(steps):
        x = torch.randn(8, WIDTH, requires_grad=True)
        value = loss(model, x)
        between(model)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
    if watch is not None:
        watch.close()
    return [param.detach().clone() for param in model.parameters()]


def found(out):
    return recompute_differs.check(trueline.open_run(str(out)))


@pytest.mark.parametrize("reentrant", [True, False])
def test_other_dropout_masks_are_found_at_the_dropout_of_each_block(tmp_path, reentrant):
    train(tmp_path / "run", Net(wrap_of(use_reentrant=reentrant, preserve_rng_state=False)))
    (finding,) = found(tmp_path / "run")
    assert "the output of blocks.0.drop and blocks.1.drop has other zeros although the input is equal" in finding.claim
    assert (finding.evidence["kind"], finding.severity) == ("masks", "error")
    assert (finding.step_first, finding.step_last, finding.ranks) == (0, 2, (0,))
    assert finding.sites[0] == "0.0/r0/fwd/blocks.0.drop#0:out0"


def scaled(model):
    model.blocks[1].down.weight.data.mul_(1.001)


@pytest.mark.parametrize(
    ("fault", "between", "kind", "names"),
    [
        ("counter", None, "values", ["blocks.1.drop"]),
        ("format", None, "format", ["blocks.1.up"]),
        ("", scaled, "values", ["blocks.1.down"]),
    ],
)
def test_state_that_changes_is_found_where_it_is_read(tmp_path, fault, between, kind, names):
    model = Net(REENTRANT)
    model.blocks[1].fault = fault
    train(tmp_path / "run", model, between=between or (lambda model: None))
    (finding,) = found(tmp_path / "run")
    assert (finding.evidence["kind"], finding.evidence["names"]) == (kind, names)


def accumulated(model, x):
    """Both graphs live until backward, which goes through them in the other order."""
    return loss_of(model, x) + loss_of(model, x.detach().roll(1, 1).requires_grad_())


def a_pass_before(model, x):
    """Blocks run before the first forward pass of the model, unseen, and are computed again after it."""
    before = model.wrap(model.blocks[0], x)
    loss_of(model, x).backward(retain_graph=True)
    return before.square().mean()


def looked_at(model, x):
    with torch.no_grad():
        model(x + 1)
    return loss_of(model, x)


@pytest.mark.in_turn
@pytest.mark.parametrize("loss", [loss_of, accumulated, a_pass_before, looked_at])
@pytest.mark.parametrize(
    ("wrap", "shared"),
    [(REENTRANT, False), (OTHER, True), (nested, False), (saving_products, True)],
)
def test_recomputation_that_repeats_the_forward_pass_is_left_alone(tmp_path, loss, wrap, shared):
    watched = train(tmp_path / "run", Net(wrap, shared=shared), loss=loss, steps=2)
    assert found(tmp_path / "run") == []
    alone = train(None, Net(wrap, shared=shared), loss=loss, steps=2, watched=False)
    assert all(map(torch.equal, watched, alone))


@pytest.mark.parametrize("wrap", [plain, wrap_of(use_reentrant=False)])
def test_nothing_that_was_computed_again_cannot_tell(tmp_path, wrap):
    model = Net(wrap)
    model.train(wrap is plain)
    train(tmp_path / "run", model)
    with pytest.raises(CannotTell, match="no module ran again in a backward pass"):
        found(tmp_path / "run")


def test_random_numbers_before_any_module_cannot_tell(tmp_path):
    again = wrap_of(use_reentrant=False, preserve_rng_state=False)
    train(tmp_path / "run", Net(lambda block, x: again(lambda y: block(functional.dropout(y)), x)))
    with pytest.raises(CannotTell, match="begins with random numbers"):
        found(tmp_path / "run")


def test_a_backward_pass_that_comes_a_step_late_is_left_alone(tmp_path):
    """The one batch is equal to that of the step before, whose masks are others."""
    torch.manual_seed(0)
    model, late, x = Net(OTHER), [], torch.randn(8, WIDTH)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with trueline.watch(model, optimizer, out=str(tmp_path / "run")):
        for _ in range(10):
            late.append(loss_of(model, x))
            if len(late) > 1:
                late.pop(0).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert trueline.open_run(str(tmp_path / "run")).texts("recomputed")
    assert found(tmp_path / "run") == []


def test_one_fault_is_one_finding_whichever_modules_were_sampled(tmp_path):
    masks = Apart("b.drop", True, "b.drop", False, "float32", "float32", (64,), (64,), 0.4, 9, 64)
    later = Apart("c.norm", False, "c.out", True, "float32", "float32", (64,), (64,), 0.6, 0, 64)
    rows = {
        (step, 0): {"recomputed": Recomputed(8, 6, 0, 0, (difference,)).to_json()}
        for step, difference in enumerate([later, masks])
    }
    (finding,) = recompute_differs.check(write_run(tmp_path, rows))
    assert (finding.step_first, finding.step_last, finding.evidence["names"]) == (0, 1, ["b.drop"])
    assert (finding.measured, len(finding.evidence["places"])) == (0.4, 2)


def test_a_shared_block_with_other_masks_is_found(tmp_path):
    train(tmp_path / "run", Net(wrap_of(use_reentrant=False, preserve_rng_state=False), shared=True))
    (finding,) = found(tmp_path / "run")
    assert finding.evidence["names"] == ["blocks.0.drop"]


def by_hook(layer):
    return nn.utils.spectral_norm(layer)


@pytest.mark.parametrize("normed", [by_hook, functools.partial(parametrizations.spectral_norm, n_power_iterations=1)])
@pytest.mark.parametrize("fault", ["", "counter"])
def test_a_power_iteration_is_a_warning_apart_from_all_else(tmp_path, normed, fault):
    model = Net(OTHER)
    model.blocks[0].up = normed(model.blocks[0].up)
    model.blocks[1].fault = fault
    train(tmp_path / "run", model)
    *errors, warning = found(tmp_path / "run")
    expected = [("error", ["blocks.1.drop"])] * bool(fault)
    assert [(error.severity, error.evidence["names"]) for error in errors] == expected
    assert (warning.severity, warning.evidence["kind"]) == ("warning", "iteration")
    assert all(name.startswith("blocks.0.up") for name in warning.evidence["names"])
    assert "although the input is equal: spectral_norm makes a step of its power iteration" in warning.claim


def test_a_power_iteration_in_evaluation_mode_is_left_alone(tmp_path):
    model = Net(OTHER)
    model.blocks[0].up = by_hook(model.blocks[0].up).eval()
    train(tmp_path / "run", model)
    assert found(tmp_path / "run") == []


@pytest.mark.parametrize(("iterating", "severity"), [("b.up", "warning"), ("c.up", "error")])
def test_a_power_iteration_that_was_not_sampled_explains_what_comes_after_it(tmp_path, iterating, severity):
    difference = Apart("b.down", False, "b", False, "float32", "float32", (64,), (64,), 0.1, 0, 64)
    row = {"recomputed": Recomputed(8, 6, 0, 0, (difference,), (iterating,)).to_json()}
    (finding,) = recompute_differs.check(write_run(tmp_path, {(0, 0): row}))
    assert finding.severity == severity
