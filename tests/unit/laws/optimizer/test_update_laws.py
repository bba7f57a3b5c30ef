"""The checks of updates: each finds its planted fault at its parameter and step, and leaves the healthy twin alone."""

import copy
import sys
from unittest.mock import patch

import pytest
import torch
from tests.unit.trained_updates import adamw, from_step, kernel, mlp, trained
from torch import nn
from torch.nn import functional

import trueline
from trueline.capture.probes.around_update.sampling import gap
from trueline.laws.optimizer.unheld_params import _owner_prefixes

AT = 6
"""The first update that is faulty."""
LONG = 24
"""Steps of which the last are not sampled."""


def findings(folder):
    """The findings on updates by code, but for information."""
    report = trueline.check(folder)
    assert report.findings == tuple(f for f in report.findings if f.code in report.checks_run)
    return {finding.code: finding for finding in report.findings if finding.is_grave}


def faulty(tmp_path, change):
    with kernel(from_step(AT * 6, change)):  # of each of the 6 parameters in turn
        trained(tmp_path / "run", one_by_one)
    return findings(tmp_path / "run")


def one_by_one(model):
    """A group for each parameter, so that the kernel is called for one at a time."""
    return torch.optim.AdamW([{"params": [param]} for param in model.parameters()], lr=1e-3, foreach=False)


def test_a_healthy_optimizer_is_left_alone(tmp_path):
    trained(tmp_path / "run", steps=LONG)
    report = trueline.check(tmp_path / "run")
    assert report.findings == ()
    (question,) = [question for question in report.judged.questions if question.question == "updates"]
    assert question.state == "judged"
    left_out = {"average-differs", "batch-norm-differs", "clip-differs", "master-working-mismatch", "norm-misreported"}
    assert left_out | {"recompute-differs", "schedule-differs"} <= {entry.check for entry in question.checks_not_run}
    assert {entry.reason for entry in question.checks_not_run} == {"by-design"}


def test_another_rate_in_the_kernel_than_is_declared(tmp_path):
    by_code = faulty(tmp_path, lambda original, *args, lr, **kwargs: original(*args, lr=1.25 * lr, **kwargs))
    assert list(by_code) == ["update-magnitude"]
    finding = by_code["update-magnitude"]
    assert (finding.severity, finding.step_first, finding.false_alarm_rate) == ("error", AT, 0.0)
    assert finding.evidence["factor"] == pytest.approx(1.25, rel=1e-3)
    assert "by 1.25 times what its settings declare" in finding.claim
    assert set(finding.evidence["names"]) == {name for name, _ in mlp().named_parameters()}


def test_a_moment_that_stays(tmp_path):
    def stays(original, params, grads, exp_avgs, *args, **kwargs):
        before = exp_avgs[0].clone()
        original(params, grads, exp_avgs, *args, **kwargs)
        if params[0].shape == (4, 32):
            exp_avgs[0].copy_(before)

    by_code = faulty(tmp_path, stays)
    finding = by_code["optimizer-state-stale"]
    assert (finding.step_first, finding.evidence["names"]) == (AT, ["3.weight"])
    assert finding.claim.startswith("exp_avg of 3.weight")
    assert finding.claim.endswith("did not change, although its rule changes it.")
    assert finding.sites == (f"{AT}.0/r0/opt/3.weight#0:exp_avg",)


def test_a_count_that_goes_up_by_two(tmp_path):
    def twice(original, params, grads, a, b, c, steps, *args, **kwargs):
        original(params, grads, a, b, c, steps, *args, **kwargs)
        for count in steps:
            count += 1

    finding = faulty(tmp_path, twice)["optimizer-state-stale"]
    assert (finding.measured, finding.expected, finding.step_first) == (2.0, 1.0, AT)


def _all_older(step, model, optimizer, states=[]):  # noqa: B006
    """A checkpoint of weights and states is loaded."""
    if step == 0:
        states.clear()
    if step == 3:
        states[:] = [copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())]
    if step == AT:
        model.load_state_dict(states[0])
        optimizer.load_state_dict(states[1])


def _cleared(step, model, optimizer):
    if step == AT:
        optimizer.state.clear()


def _filled(step, model, optimizer):
    if step == AT:
        for state in optimizer.state.values():
            state[next(name for name in state if name != "step")].normal_()


def _scaled(step, model, optimizer):
    if step == AT:
        for state in optimizer.state.values():
            state["momentum_buffer"].mul_(0.3)


def _sgd(model):
    return torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("make", "before", "kind"),
    [
        (adamw, _cleared, "older"),
        (_sgd, _cleared, "gone"),
        (adamw, _filled, "replaced"),
        (_sgd, _filled, "replaced"),
        (_sgd, _scaled, None),
        (adamw, _all_older, None),
    ],
)
def test_states_that_are_lost_between_updates(tmp_path, make, before, kind):
    trained(tmp_path / "run", make, steps=12, before=before)
    by_code = findings(tmp_path / "run")
    assert list(by_code) == ([] if kind is None else ["optimizer-state-stale"])
    if kind is not None:
        finding = by_code["optimizer-state-stale"]
        assert (finding.severity, finding.step_first, finding.step_last) == ("warning", AT, AT)
        assert (finding.evidence["kind"], finding.evidence["lost"]) == ("between-updates", kind)


@pytest.mark.parametrize(("at", "severity"), [((4, 8), "warning"), ((4,), "info")])
def test_an_optimizer_that_is_made_anew(tmp_path, at, severity):
    torch.manual_seed(0)
    model = mlp()
    with trueline.watch(model, out=tmp_path / "run", plan={"every": 1}):
        for step in range(12):
            if step in (0, *at):
                optimizer = adamw(model)
            model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    (finding,) = trueline.check(tmp_path / "run").findings
    assert (finding.code, finding.severity, finding.step_first) == ("optimizer-state-stale", severity, 4)
    assert finding.claim.endswith("a new AdamW was made.")


def test_optimizers_that_are_made_anew_between_samples(tmp_path):
    """At steps between which nobody sees whether weights were loaded, too."""
    torch.manual_seed(0)
    model = mlp()
    with trueline.watch(model, out=tmp_path / "run"):
        for step in range(60):
            if step in (0, 20, 40):
                optimizer = adamw(model)
            model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    lost = [f for f in trueline.check(tmp_path / "run").findings if f.code == "optimizer-state-stale"]
    assert [finding.severity for finding in lost] == ["confirm"]


def test_two_optimizers_of_one_model_that_take_turns(tmp_path):
    torch.manual_seed(0)
    model = mlp()
    optimizers = [adamw(model), adamw(model)]
    with trueline.watch(model, out=tmp_path / "run", plan={"every": 1}):
        for step in range(12):
            model(torch.randn(8, 16)).square().mean().backward()
            optimizers[step % 3 == 2].step()
            model.zero_grad()
    assert trueline.check(tmp_path / "run").findings == ()


def test_a_parameter_that_the_kernel_leaves(tmp_path):
    def leaves(original, params, *args, **kwargs):
        before = params[0].detach().clone()
        original(params, *args, **kwargs)
        if params[0].shape == (32, 16):
            params[0].copy_(before)

    by_code = faulty(tmp_path, leaves)
    assert list(by_code) == ["param-frozen"]
    assert (by_code["param-frozen"].step_first, by_code["param-frozen"].evidence["names"]) == (AT, ["0.weight"])


def test_fused_sgd_of_bfloat16_on_the_cpu_leaves_whole_simd_blocks(tmp_path):
    """pytorch#191763, which torch 2.13.0 has."""
    make = {"lr": 0.01, "momentum": 0.9, "fused": True}
    trained(tmp_path / "run", lambda model: torch.optim.SGD(model.parameters(), **make), dtype=torch.bfloat16)
    finding = findings(tmp_path / "run")["param-frozen"]
    assert finding.step_first == 0
    make["fused"] = False
    trained(tmp_path / "twin", lambda model: torch.optim.SGD(model.parameters(), **make), dtype=torch.bfloat16)
    assert findings(tmp_path / "twin") == {}


@pytest.mark.parametrize(
    "codes",
    [[], ["optimizer-state-stale"], ["optimizer-state-stale", "update-magnitude"]],
    ids=["healthy", "momentum", "both"],
)
def test_a_fused_update_that_the_scaler_has_called_off(tmp_path, codes):
    """On CUDA fused SGD of some versions advances momentum then."""
    sgd = sys.modules["torch.optim.sgd"]
    plain = sgd.sgd

    def advancing(params, grads, buffers, *args, found_inf=None, **settings):
        plain(params, grads, buffers, *args, found_inf=found_inf, **settings)
        if found_inf is not None and found_inf.item():
            for param, buffer in zip(params, buffers, strict=True):
                if "optimizer-state-stale" in codes:
                    buffer.mul_(0.9)
                if "update-magnitude" in codes:
                    param.sub_(0.01 * buffer)

    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    with (
        patch.object(sgd, "sgd", advancing),
        trueline.watch(model, optimizer, out=tmp_path / "run", plan={"every": 1}),
    ):
        for step in range(12):
            loss = model(torch.randn(8, 16)).square().mean() * (torch.inf if step == AT else 1)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    by_code = findings(tmp_path / "run")
    assert sorted(set(by_code) - {"worker-nonfinite"}) == codes
    for code in codes:
        assert (by_code[code].step_first, by_code[code].step_last, by_code[code].evidence["called_off"]) == (
            AT,
            AT,
            True,
        )
        assert "the gradient scaler had called" in by_code[code].claim


def test_an_optimizer_of_another_copy_of_the_model(tmp_path):
    trained(tmp_path / "run", lambda model: adamw(copy.deepcopy(model)))
    by_code = findings(tmp_path / "run")
    assert list(by_code) == ["optimizer-detached"]
    assert by_code["optimizer-detached"].expected == 6.0


def test_an_optimizer_that_holds_what_is_frozen_holds_something(tmp_path):
    def make(model):
        model[3].requires_grad_(False)
        return adamw(model[3])

    trained(tmp_path / "run", make)
    finding = findings(tmp_path / "run")["optimizer-detached"]
    assert finding.severity == "error"
    assert finding.evidence["kind"] == "frozen"
    assert "AdamW holds of the model what is frozen alone (3.weight and 3.bias), and not 0.weight" in finding.claim
    assert trueline.diagnose(tmp_path / "run").verdicts[0].cause == "optimizer-lacks-parameters"


def test_an_optimizer_of_a_part_of_the_model_is_an_information(tmp_path):
    trained(tmp_path / "run", lambda model: adamw(model[3]))
    (finding,) = trueline.check(tmp_path / "run").findings
    assert (finding.code, finding.severity) == ("param-frozen", "confirm")
    assert finding.evidence["names"] == ["0.weight", "0.bias", "1.weight", "1.bias"]


@pytest.mark.parametrize(("left_out", "decay"), [(["1.weight"], 0.0), (["1.weight", "1.bias"], 0.1)])
def test_a_part_that_may_be_left_out_on_purpose_is_an_information(tmp_path, left_out, decay):
    """Groups of one weight decay, and a module of which nothing is held, may be meant."""
    trained(tmp_path / "run", _by_name(left_out, decay))
    (finding,) = trueline.check(tmp_path / "run").findings
    assert (finding.code, finding.severity, finding.evidence["names"]) == ("param-frozen", "confirm", left_out)


def _without_head(model):
    return adamw(model[:3])


def _by_name(left_out, decay=0.1):
    """Groups of weights and biases, without what ``left_out`` names."""

    def make(model):
        by_end = {
            end: [p for n, p in model.named_parameters() if n.endswith(end) and n not in left_out] for end in ENDS
        }
        return adamw(
            [{"params": by_end["weight"], "weight_decay": decay}, {"params": by_end["bias"], "weight_decay": 0.0}]
        )

    return make


ENDS = ("weight", "bias")


def _unfreeze(step, model, optimizer):
    model[0].requires_grad_(step >= AT)


def _replace(step, model, optimizer):
    if step == AT:
        model[1] = torch.nn.LayerNorm(32)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("make", "before", "kind", "names", "step_first"),
    [
        (_without_head, None, "last", ["3.weight", "3.bias"], 0),
        (lambda model: adamw(model[1:]), _unfreeze, "unfrozen", ["0.weight", "0.bias"], AT),
        (adamw, _replace, "replaced", ["1.weight", "1.bias"], AT),
        (_by_name(["1.weight"]), None, "ungrouped", ["1.weight"], 0),
    ],
)
def test_what_was_to_train_and_no_optimizer_holds(tmp_path, make, before, kind, names, step_first):
    trained(tmp_path / "run", make, steps=12, before=before)
    by_code = findings(tmp_path / "run")
    assert list(by_code) == ["optimizer-detached"]
    finding = by_code["optimizer-detached"]
    assert (finding.severity, finding.evidence, finding.step_first) == (
        "warning",
        {"kind": kind, "names": names},
        step_first,
    )


SECOND = 20
"""The step from which a second part is trained, behind those that are all sampled."""


def _insert(step, model, optimizer):
    if step == SECOND:
        model[2] = nn.Sequential(nn.ReLU(), nn.Linear(32, 32))


def _take_turns(step, model, optimizer):
    """The first layer is trained, then the last one alone, as two adapters are."""
    if step == SECOND:
        model[0].requires_grad_(False)
        model[3].requires_grad_(True)


def _first_alone():
    model = mlp().requires_grad_(False)
    model[0].requires_grad_(True)
    return model


def _of_the_first(model):
    return adamw(model[0])


@pytest.mark.parametrize(
    ("make", "before", "kind", "names", "severity"),
    [
        (adamw, _insert, "added", ["2.1.weight", "2.1.bias"], "warning"),
        (_of_the_first, _take_turns, "unfrozen", ["3.weight", "3.bias"], "warning"),
    ],
)
def test_a_second_part_that_is_trained_by_nobody(tmp_path, make, before, kind, names, severity):
    model = mlp if make is adamw else _first_alone
    trained(tmp_path / "run", make, steps=SECOND + 28, before=before, model=model)
    finding = findings(tmp_path / "run")["optimizer-detached"]
    assert (finding.severity, finding.evidence["kind"], finding.evidence["names"]) == (severity, kind, names)
    assert finding.step_first in (SECOND, SECOND + 1)


@pytest.mark.parametrize("change", [_insert, _take_turns])
def test_a_second_part_that_the_optimizer_is_given_is_healthy(tmp_path, change):
    def before(step, model, optimizer):
        change(step, model, optimizer)
        if step == SECOND:
            optimizer.add_param_group({"params": list(model[2 if change is _insert else 3].parameters())})

    make, model = (adamw, mlp) if change is _insert else (_of_the_first, _first_alone)
    trained(tmp_path / "run", make, steps=SECOND + 28, before=before, model=model)
    assert "optimizer-detached" not in findings(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("weight", ("",)),
        ("wte.weight", ("wte.",)),
        ("model.wte.weight", ("model.wte.",)),
        ("bert.embeddings.word.weight", ("bert.embeddings.word.", "bert.embeddings.")),
    ],
)
def test_modules_around_a_parameter_but_for_most_of_the_model(name, begins):
    assert _owner_prefixes(name) == begins


def _added(step, model, optimizer):
    _unfreeze(step, model, optimizer)
    if step == AT:
        optimizer.add_param_group({"params": list(model[0].parameters())})


def test_what_is_unfrozen_and_added_to_the_optimizer_is_healthy(tmp_path):
    trained(tmp_path / "run", lambda model: adamw(model[1:]), steps=12, before=_added)
    assert trueline.check(tmp_path / "run").findings == ()


@pytest.mark.parametrize("average", [False, True])
def test_decay_by_hand_of_what_is_frozen(tmp_path, average):
    """An average of weights moves what is frozen, too, and is healthy."""

    def change(step, model, optimizer):
        model[0].requires_grad_(False)
        with torch.no_grad():
            for param in model[0].parameters():
                param *= 1 - 1e-3
                if average:
                    param += 1e-3 * torch.randn_like(param)

    trained(tmp_path / "run", lambda model: adamw(model[1:]), steps=12, before=change)
    by_code = findings(tmp_path / "run")
    assert list(by_code) == ([] if average else ["param-moves-without-gradient"])
    if not average:
        finding = by_code["param-moves-without-gradient"]
        assert (finding.severity, finding.evidence["names"]) == ("warning", ["0.bias", "0.weight"])
        assert finding.measured == pytest.approx(1 - 1e-3, rel=1e-6)


@pytest.mark.in_turn
@pytest.mark.parametrize("order", ["of the model", "reversed"])
@pytest.mark.parametrize("late", [False, True])
def test_copies_in_float32_that_the_model_does_not_have(tmp_path, late, order):
    """Copies in another order than the model's are not taken for those of other parameters."""
    masters = []

    def square():
        return torch.nn.Sequential(*(torch.nn.Linear(16, 16) for _ in range(4)))

    def of_masters(model):
        masters[:] = [param.detach().float().requires_grad_() for param in model.parameters()]
        params = masters if order == "of the model" else [master for i in (6, 4, 2, 0) for master in masters[i : i + 2]]
        for param, master in zip(model.parameters(), masters, strict=True):
            param.register_post_accumulate_grad_hook(lambda weight, to=master: setattr(to, "grad", weight.grad.float()))
        return torch.optim.AdamW(params, lr=1e-2)

    def write_back(step, model, optimizer):
        for number, (param, master) in enumerate(zip(model.parameters(), masters, strict=True)):
            if not (late and step >= AT and number == 2):
                param.data.copy_(master)

    trained(tmp_path / "run", of_masters, dtype=torch.bfloat16, model=square, before=write_back)
    by_code = findings(tmp_path / "run")
    assert "update-magnitude" in trueline.check(tmp_path / "run").checks_run
    if late and order == "of the model":
        assert list(by_code) == ["master-working-mismatch"]
        finding = by_code["master-working-mismatch"]
        assert AT <= finding.step_first <= AT + 3
        assert finding.evidence["names"] == ["1.weight"]
    else:
        assert by_code == {}


def test_weights_that_are_loaded_after_the_copies_were_made_are_undone(tmp_path):
    masters = []

    def of_masters(model):
        masters[:] = [param.detach().float().requires_grad_() for param in model.parameters()]
        for param, master in zip(model.parameters(), masters, strict=True):
            param.register_post_accumulate_grad_hook(lambda weight, to=master: setattr(to, "grad", weight.grad.float()))
        return torch.optim.AdamW(masters, lr=1e-2)

    def load_or_write_back(step, model, optimizer):
        for param, master in zip(model.parameters(), masters, strict=True):
            param.data.copy_(torch.randn_like(param) if step == 0 else master)

    trained(tmp_path / "run", of_masters, dtype=torch.bfloat16, before=load_or_write_back)
    finding = findings(tmp_path / "run")["master-working-mismatch"]
    assert (finding.evidence["kind"], finding.step_first, finding.step_last) == ("undone", 0, 0)
    assert finding.claim.startswith("The first update, at step 0, undoes what was put into ")
    facts = {fact.name: fact.value for fact in trueline.facts(tmp_path / "run").facts}
    assert facts["master-copies"] == {"parameters": len(masters), "dtypes": ["bfloat16"]}


def freeze(step, model, optimizer):
    if step == AT:
        model[0].weight.requires_grad_(False)


@pytest.mark.parametrize("set_to_none", [False, True])
def test_a_frozen_parameter_whose_gradient_stays_as_zeros_is_moved(tmp_path, set_to_none):
    trained(tmp_path / "run", before=freeze, none=set_to_none)
    by_code = findings(tmp_path / "run")
    if set_to_none:
        assert by_code == {}
    else:
        assert list(by_code) == ["param-moves-without-gradient"]
        finding = by_code["param-moves-without-gradient"]
        assert (finding.step_first, finding.evidence["names"]) == (AT, ["0.weight"])


@pytest.mark.parametrize("lr", [1e-5, 1e-2])
def test_bfloat16_loses_small_updates(tmp_path, lr):
    trained(tmp_path / "run", lambda model: adamw(model, lr=lr), dtype=torch.bfloat16)
    by_code = findings(tmp_path / "run")
    assert list(by_code) == (["update-lost"] if lr < 1e-3 else [])
    infos = [finding for finding in trueline.check(tmp_path / "run").findings if finding.severity == "info"]
    assert [finding.code for finding in infos] == ["update-lost"], "second moments that cannot decay"


class OwnRuleAdamW(torch.optim.AdamW):
    """A subclass with a rule of its own, and settings that say otherwise."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for param in group["params"]:
                param.sub_(0.5 * param.grad)


def test_an_optimizer_with_a_rule_of_its_own_cannot_be_judged(tmp_path):
    trained(tmp_path / "run", lambda model: OwnRuleAdamW(model.parameters()))
    report = trueline.check(tmp_path / "run")
    assert report.findings == ()
    reasons = {entry.check: entry for entry in report.checks_not_run}
    assert reasons["update-magnitude"].reason == "undecidable"
    assert f"how {__name__}.OwnRuleAdamW updates is not known" in reasons["update-magnitude"].why


class Lookahead(torch.optim.Optimizer):
    """Moves back by half of every third update of the optimizer inside."""

    def __init__(self, optimizer):
        super().__init__(optimizer.param_groups, {})
        self.optim, self.count = optimizer, 0

    @torch.no_grad()
    def step(self, closure=None):
        params = [param for group in self.param_groups for param in group["params"]]
        before = [param.clone() for param in params]
        self.optim.step()
        self.count += 1
        if self.count % 3 == 0:
            for param, old in zip(params, before, strict=True):
                param.lerp_(old, 0.5)


def test_what_wraps_an_optimizer_is_looked_inside_of(tmp_path):
    trained(tmp_path / "run", lambda model: Lookahead(adamw(model)))
    report = trueline.check(tmp_path / "run")
    assert report.findings == ()
    assert "update-magnitude" in report.checks_run


def test_a_device_that_flushes_subnormal_numbers_is_healthy(tmp_path):
    """Gradients of 1e-21, whose squares are below the normal numbers of float32."""

    def shrink(step, model, optimizer):
        if step == 0:
            for param in model.parameters():
                param.register_hook(lambda gradient: gradient * 1e-20)

    plain = torch.set_flush_denormal(True)
    try:
        trained(tmp_path / "run", lambda model: adamw(model, eps=1e-15), before=shrink)
    finally:
        torch.set_flush_denormal(False)
    assert plain, "this processor can"
    assert findings(tmp_path / "run") == {}


def test_steps_that_are_sampled_grow_rare(tmp_path):
    trained(tmp_path / "run", steps=60)
    run = trueline.open_run(tmp_path / "run")
    sampled = run.steps[run.measured("update_values")[:, 0]].tolist()
    assert sampled == [*range(16), 35, 55]
    assert LONG > 16
    assert [gap(age) for age in (0, 999, 2_500, 1_000_000)] == [20, 20, 50, 100]


class Pair(nn.Module):
    """A linear layer and two low-rank factors beside it; ``first`` says how the first begins."""

    def __init__(self, first):
        super().__init__()
        self.base, self.a, self.b = nn.Linear(16, 4), nn.Parameter(first(2, 16)), nn.Parameter(torch.zeros(4, 2))

    def forward(self, x):
        return self.base(x) + x @ self.a.T @ self.b.T


class Experts(nn.Module):
    """Two experts of which every row goes to the first."""

    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(16, 4) for _ in range(2))

    def forward(self, x):
        return torch.cat([self.experts[0](x), self.experts[1](x[:0])])


class Rounded(nn.Linear):
    """Weights that are rounded, and no gradient passed straight through."""

    def forward(self, x):
        return functional.linear(x, torch.round(self.weight * 8) / 8, self.bias)


class CutOff(nn.Module):
    """Two layers, the first of which runs without gradients."""

    def __init__(self, width):
        super().__init__()
        self.first, self.last = nn.Linear(16, width), nn.Linear(width, 4)

    def forward(self, x):
        with torch.no_grad():
            x = self.first(x)
        return self.last(x)


class Differences(nn.Module):
    """What one layer makes of two inputs, apart: its bias has no part in it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 4)

    def forward(self, x):
        return self.layer(x) - self.layer(x.flip(0))


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("model", "names", "kind", "severity"),
    [
        (Differences, ["layer.bias"], "zero-gradient", "info"),
        (lambda: Pair(torch.zeros), ["a", "b"], "zero-gradient", "warning"),
        (Experts, ["experts.1.weight", "experts.1.bias"], "zero-gradient", "info"),
        (lambda: nn.Sequential(Rounded(16, 16), nn.Linear(16, 4)), ["0.weight"], "zero-gradient", "warning"),
        (lambda: CutOff(8), ["first.weight", "first.bias"], "no-gradient", "warning"),
        (
            lambda: nn.Sequential(CutOff(2), nn.ReLU(), nn.Linear(4, 32)),
            ["0.first.weight", "0.first.bias"],
            "no-gradient",
            "info",
        ),
    ],
    ids=[
        "a bias that cancels",
        "two zero factors",
        "an expert never chosen",
        "weights rounded",
        "most of it cut off",
        "a small part cut off",
    ],
)
def test_what_nothing_trains_is_named(tmp_path, model, names, kind, severity):
    trained(tmp_path / "run", model=model, steps=LONG)
    (finding,) = trueline.check(tmp_path / "run").findings
    assert (finding.code, finding.severity, finding.evidence["kind"]) == ("param-frozen", severity, kind)
    assert finding.evidence["names"] == names
    assert f"at all {LONG} measured steps: nothing trains {'it' if len(names) == 1 else 'them'}" in finding.claim


def test_what_begins_to_learn_one_layer_after_the_other_is_healthy(tmp_path):
    trained(tmp_path / "run", model=lambda: Pair(torch.ones), steps=LONG)
    assert trueline.check(tmp_path / "run").findings == ()
