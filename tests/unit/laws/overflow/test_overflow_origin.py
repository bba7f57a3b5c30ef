"""overflow-origin: the first call, weight or input that is not finite, in steps that were really recorded."""

import math
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import trueline
from trueline.laws.overflow import overflow_origin
from trueline.schema.errors import CannotTell
from trueline.schema.finding import Finding
from trueline.store.reader import Run

INF = math.inf


class Attention(nn.Module):
    """Attention by hand, as models write it, with what can be planted in it."""

    def __init__(self, *, mask=None, hidden=lambda x: x):
        super().__init__()
        self.embed, self.up, self.head = nn.Embedding(10, 8), nn.Linear(8, 8), nn.Linear(8, 10)
        self.mask = mask or (lambda scores: scores.masked_fill(torch.ones(4, 4).triu(1).bool(), -INF))
        self.hidden = hidden

    def forward(self, ids):
        x = self.embed(ids)
        x = x + torch.softmax(self.mask(x @ x.transpose(1, 2)), -1) @ x
        return self.head(x + self.hidden(torch.relu(self.up(x))))


def recorded(path: Path, model: nn.Module, *, steps=3, before=lambda step: None, loss_of=None, **plan) -> Run:
    """Steps of SGD on random tokens, recorded."""
    torch.manual_seed(0)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    watch = trueline.watch(model, optimizer, out=str(path / "run"), plan={"preset": "mix", **plan})
    for step in range(steps):
        before(step)
        ids = torch.randint(0, 10, (2, 4))
        with watch.step(ids):
            loss = F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()) if loss_of is None else loss_of(model, ids)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    watch.close()
    return Run(path / "run")


def only(run: Run) -> Finding:
    (finding,) = overflow_origin.check(run)
    return finding


def overflow(x):
    """Finite in, infinity out."""
    return x * 1e20 * 1e20


def at_step(step, change):
    return lambda now: change() if now == step else None


def test_a_healthy_model_with_a_mask_of_infinities_is_left_alone(tmp_path):
    run = recorded(tmp_path, Attention())
    assert (run.records(columns=["neg_inf"])["neg_inf"].to_numpy() > 0).any()
    assert overflow_origin.check(run) == []


MASKS = {
    "added": lambda scores: scores + torch.full((4, 4), -INF).triu(1),
    "multiplied by a constant": lambda scores: (
        scores + torch.zeros(4, 4).masked_fill(torch.ones(4, 4).triu(1) > 0, -INF)
    ),
    "where": lambda scores: torch.where(torch.ones(4, 4).tril().bool(), scores, float("-inf")),
    "where with a tensor": lambda scores: torch.where(torch.ones(4, 4).tril().bool(), scores, torch.tensor(-INF)),
    "set by index": lambda scores: _set(scores.clone(), torch.ones(4, 4).triu(1).bool().expand(2, 4, 4)),
    "in place": lambda scores: scores.clone().masked_fill_(torch.ones(4, 4).triu(1).bool(), -INF),
    "from outside": lambda scores, mask=torch.full((4, 4), -INF).triu(1): scores + mask,
    "logarithm": lambda scores: scores + torch.ones(4, 4).tril().log(),
    "in half": lambda scores: scores + torch.full((4, 4), torch.finfo(torch.float32).min).triu(1).half(),
}


def _set(scores, mask):
    scores[mask] = -INF
    return scores


@pytest.mark.in_turn
@pytest.mark.parametrize("name", MASKS)
def test_masks_however_they_are_made_are_left_alone(tmp_path, name):
    run = recorded(tmp_path, Attention(mask=MASKS[name]), steps=1)
    assert (run.records(columns=["neg_inf"])["neg_inf"].to_numpy() > 0).any()
    assert overflow_origin.check(run) == []


@pytest.mark.parametrize("preset", ["ops", "mix"])
def test_a_call_that_overflows_is_named_with_its_line_and_not_the_mask_before_it(tmp_path, preset):
    model = Attention(hidden=overflow)
    finding = only(recorded(tmp_path, model, preset=preset))

    assert (finding.severity, finding.ranks, finding.step_first) == ("error", (0,), 0)
    assert finding.false_alarm_rate == 0.0
    assert finding.sites[0] == "0.0/r0/fwd/Attention.mul#1:out0"
    assert finding.evidence["grade"] == "critical"
    assert finding.evidence["stack"][0].endswith("overflow")
    assert "test_overflow_origin.py:" in finding.claim
    assert "from finite inputs" in finding.claim
    assert finding.evidence["path"][-1].startswith("0.0/r0/fwd/cross_entropy#0")
    (inputs,) = finding.evidence["inputs"]
    assert 1e18 < inputs["largest_finite"] < 1e22


def test_the_counts_are_those_of_the_tensor(tmp_path):
    counts = []

    def hidden(x):
        output = overflow(x)
        counts.append(int(torch.isinf(output).sum()))
        return output

    finding = only(recorded(tmp_path, Attention(hidden=hidden), steps=1))
    assert finding.measured == counts[0]
    assert finding.evidence["counts"] == {"nan": 0, "pos_inf": counts[0], "neg_inf": 0}


@pytest.mark.in_turn
@pytest.mark.parametrize("preset", ["modules", "ops", "mix"])
@pytest.mark.parametrize("value", [INF, -INF, math.nan])
def test_a_weight_is_named_since_the_step_in_which_it_is_not_finite(tmp_path, value, preset):
    model = Attention()

    def flip():
        model.up.weight.data[1, 2] = value

    finding = only(recorded(tmp_path, model, before=at_step(1, flip), preset=preset))
    assert finding.sites[0] == "1.0/r0/param/up.weight#0:value"
    assert (finding.severity, finding.measured, finding.step_first) == ("error", 1.0, 1)
    assert finding.evidence["last_finite_step"] == 0
    assert any("/fwd/up" in site for site in finding.sites)


def test_a_weight_that_nothing_uses_is_named_too(tmp_path):
    model = Attention()
    model.spare = nn.Linear(2, 2)
    model.spare.weight.data[0, 0] = math.nan
    assert only(recorded(tmp_path, model, steps=1)).sites[0] == "0.0/r0/param/spare.weight#0:value"


class Scaled(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.register_buffer("scale", scale)
        self.linear = nn.Linear(4, 1)

    def forward(self, x):
        return self.linear(x * self.scale)


@pytest.mark.parametrize("value", [INF, -INF, math.nan])
def test_a_buffer_or_an_input_is_named_where_it_is_first_used(tmp_path, value):
    scale = torch.ones(4)
    scale[2] = value
    loss_of = lambda model, ids: model(ids.float()).square().mean()  # noqa: E731
    finding = only(recorded(tmp_path, Scaled(scale), steps=1, loss_of=loss_of))
    assert finding.sites[0].startswith("0.0/r0/fwd/Scaled.mul#0:")
    assert finding.evidence["grade"] == "critical"

    (tmp_path / "b").mkdir()
    finding = only(
        recorded(tmp_path / "b", Scaled(torch.ones(4)), steps=1, loss_of=lambda model, ids: model(scale).sum())
    )
    assert finding.sites[0] == "0.0/r0/fwd/Scaled#0:in0"


def test_a_value_that_the_script_spoils_before_the_model_is_named_there(tmp_path):
    spoiled = lambda model, ids: model(ids.float().index_fill(1, torch.tensor([2]), INF)).square().mean()  # noqa: E731
    finding = only(recorded(tmp_path, Scaled(torch.ones(4)), steps=1, loss_of=spoiled))
    assert finding.sites[0] == "0.0/r0/fwd/index_fill#0:out0"


def test_a_row_that_is_masked_throughout_is_the_softmax_that_makes_it_nan(tmp_path):
    all_masked = lambda scores: scores.masked_fill(torch.ones(4, 4).triu(0).bool(), -INF)  # noqa: E731
    finding = only(recorded(tmp_path, Attention(mask=all_masked), steps=1))
    assert finding.sites[0] == "0.0/r0/fwd/Attention.softmax#0:out0"
    assert finding.evidence["mask"] == "0.0/r0/fwd/Attention.masked_fill#0:out0"
    assert "Look at the mask" in finding.next[0]


def test_padding_that_is_nan_and_dropped_again_is_left_alone(tmp_path):
    def loss_of(model, ids):
        logits = model(ids)
        padded = torch.cat([logits.detach(), torch.full_like(logits, math.nan)])
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten()) + 0 * padded.nan_to_num().sum()

    assert overflow_origin.check(recorded(tmp_path, Attention(), loss_of=loss_of)) == []


def test_a_gradient_that_overflows_names_the_backward_of_its_call(tmp_path):
    # The square root at zero: the value is finite, its derivative is not.
    def loss_of(model, ids):
        return model(ids).square().mean() + (model.up.weight * 0).sum().sqrt()

    finding = only(recorded(tmp_path, Attention(), steps=1, loss_of=loss_of))
    assert finding.sites[0] == "0.0/r0/bwd/sqrt#0:in0"
    assert finding.evidence["origin"] == "backward"
    assert finding.evidence["reached"] == "gradient"
    assert finding.claim.startswith(
        "The backward of sqrt#0 passed on 1 +inf of 1 element for in0 of sqrt#0 from a finite"
    )


def test_where_does_not_stop_the_gradient_of_the_branch_it_drops(tmp_path):
    # torch.where(x > 0, x.sqrt(), 0): the forward pass is finite, 0 * inf is not (pytorch/pytorch#9190).
    def hidden(x):
        return torch.where(x > 0, x.sqrt(), torch.zeros(()))

    finding = only(recorded(tmp_path, Attention(hidden=hidden), steps=1))
    assert finding.evidence["origin"] == "backward"
    assert "Attention.sqrt#0" in finding.claim


def test_a_step_without_gradients_is_judged_by_its_last_output(tmp_path):
    finding = only(recorded(tmp_path, Attention(hidden=overflow), steps=1, phases=["fwd"]))
    assert finding.sites[0] == "0.0/r0/fwd/Attention.mul#1:out0"
    assert finding.evidence["reached"] == "output"


def test_a_mask_in_a_step_without_gradients_is_left_alone(tmp_path):
    assert overflow_origin.check(recorded(tmp_path, Attention(), phases=["fwd"])) == []


@pytest.mark.parametrize("names", [["head*"], ["head", "cross_entropy"]])
def test_names_that_are_too_few_give_a_lower_grade(tmp_path, names):
    finding = only(recorded(tmp_path, Attention(hidden=overflow), steps=1, names=names))
    assert (finding.severity, finding.evidence["grade"]) == ("warning", "high")
    assert finding.sites[0] == "0.0/r0/fwd/head#0:in0"


def test_modules_alone_name_the_module(tmp_path):
    class Overflows(nn.Module):
        def forward(self, x):
            return overflow(x)

    finding = only(recorded(tmp_path, Attention(hidden=Overflows()), steps=1, preset="modules"))
    assert finding.sites[0] == "0.0/r0/fwd/hidden#0:out0"
    assert finding.evidence["grade"] == "critical"


def test_micro_batches_name_the_first_that_is_not_finite(tmp_path):
    model = Attention()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch = trueline.watch(model, optimizer, out=str(tmp_path / "run"), plan={"preset": "mix"})
    with watch.step():
        for micro in range(3):
            model.hidden = overflow if micro == 1 else lambda x: x
            model(torch.randint(0, 10, (2, 4))).mean().backward()
        optimizer.step()
    watch.close()
    assert only(Run(tmp_path / "run")).sites[0].startswith("0.1/r0/fwd/Attention.mul#1")


@pytest.mark.parametrize("depth", ["stats", "fingerprint"])
def test_views_by_attribute_do_not_hide_where_it_began(tmp_path, depth):
    hidden = lambda x: overflow(x).mT.contiguous().mT.contiguous()  # noqa: E731
    finding = only(recorded(tmp_path, Attention(hidden=hidden), steps=1, depth=depth))
    assert finding.sites[0] == "0.0/r0/fwd/Attention.mul#1:out0"
    assert finding.evidence["reached"] == "loss"


def test_what_an_optimizer_divides_by_zero_is_named(tmp_path):
    model = Attention()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, eps=0.0)
    watch = trueline.watch(model, optimizer, out=str(tmp_path / "run"), plan={"preset": "mix"})
    with watch.step():
        (model(torch.randint(0, 5, (2, 4))).mean()).backward()  # embeddings of 5-9 have a gradient of zero
        optimizer.step()
    watch.close()
    finding = only(Run(tmp_path / "run"))
    assert finding.sites[0].startswith("0.0/r0/opt/Adam.addcdiv_#0:out0")
    assert finding.evidence["reached"] == "parameter"


def test_a_gradient_scaler_that_lowers_its_scale_is_no_fault(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = trueline.watch(model, optimizer, out=str(tmp_path / "run"), plan={"preset": "mix"})
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**30)
    skipped = 0
    for _ in range(20):
        with watch.step(), torch.autocast("cpu", dtype=torch.float16):
            loss = model(torch.randn(4, 8)).float().square().mean()
            before = scaler.get_scale()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            skipped += scaler.get_scale() < before
            optimizer.zero_grad()
    watch.close()
    assert skipped
    assert {finding.severity for finding in overflow_origin.check(Run(tmp_path / "run"))} == {"info"}


@pytest.mark.parametrize(("num_steps", "severity"), [(16, "info"), (17, "error")])
def test_a_gradient_scaler_may_halve_all_that_it_starts_with_and_no_more(tmp_path, num_steps, severity):
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = trueline.watch(model, optimizer, out=str(tmp_path / "run"), plan={"preset": "mix", "every": 1})
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**60)
    for _ in range(num_steps):
        with watch.step(), torch.autocast("cpu", dtype=torch.float16):
            scaler.scale(model(torch.randn(4, 8)).float().square().mean()).backward()
            for param in model.parameters():
                param.grad.zero_()
            optimizer.step()
            optimizer.zero_grad()
    watch.close()
    assert only(Run(tmp_path / "run")).severity == severity


def test_without_records_it_cannot_tell_and_says_what_to_do(tmp_path):
    with pytest.raises(CannotTell, match="no step was recorded, as `--plan mix` does"):
        overflow_origin.check(recorded(tmp_path, Attention(), steps=1, preset="workers"))


def test_records_without_statistics_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="no statistics"):
        overflow_origin.check(recorded(tmp_path, Attention(hidden=overflow), steps=1, depth="structure"))


def test_large_finite_values_are_left_alone(tmp_path):
    hidden = lambda x: x * 1e18  # noqa: E731
    assert overflow_origin.check(recorded(tmp_path, Attention(hidden=hidden), steps=1)) == []


def test_gradients_that_overflow_when_micro_batches_are_added_are_told_from_backward(tmp_path):
    model = nn.Linear(4, 1, bias=False).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch = trueline.watch(model, optimizer, out=str(tmp_path / "run"), plan={"preset": "mix"})
    with watch.step():
        for _ in range(2):  # 200 * 200 twice, and 65,504 is the largest
            (model(torch.full((1, 4), 200.0).half()) * 200).sum().backward()
        optimizer.step()
    watch.close()
    finding = only(Run(tmp_path / "run"))
    assert finding.sites[0] == "0.1/r0/grad/weight#0:grad"
    assert finding.evidence["origin"] == "reduced"


def test_a_label_that_is_masked_is_the_loss_that_takes_it(tmp_path):
    def loss_of(model, ids):
        masked = model(ids).masked_fill(torch.arange(10) < 5, -INF)
        return F.cross_entropy(masked.flatten(0, 1), torch.arange(8))

    finding = only(recorded(tmp_path, Attention(), steps=1, loss_of=loss_of))
    assert finding.sites[0] == "0.0/r0/fwd/cross_entropy#0:out0"
    assert finding.evidence["mask"] == "0.0/r0/fwd/masked_fill#0:out0"


def test_experts_that_are_not_chosen_are_no_finding(tmp_path):
    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.router, self.experts = nn.Linear(8, 4), nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

        def forward(self, x):
            scores = self.router(x)
            chosen = torch.full_like(scores, -INF).scatter(-1, scores.topk(2, -1).indices, 0.0)
            weights = torch.softmax(scores + chosen, -1)
            return sum(weights[..., i : i + 1] * expert(x) for i, expert in enumerate(self.experts))

    assert overflow_origin.check(recorded(tmp_path, Attention(hidden=Experts()))) == []


def test_infinities_that_are_dropped_forward_still_spoil_the_gradient(tmp_path):
    def loss_of(model, ids):
        logits = model(ids)
        return (logits.sum(-1) / torch.zeros(4)).nan_to_num(0, 0, 0).sum() + logits.mean()

    finding = only(recorded(tmp_path, Attention(), steps=1, loss_of=loss_of))
    assert finding.sites[0] == "0.0/r0/fwd/div#0:out0"
    assert finding.evidence["reached"] == "gradient"


class MasksItsGradient(torch.autograd.Function):
    """Attention kernels in Python mask again in backward."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.softmax(torch.zeros(8).masked_fill(torch.arange(8) > 3, -INF), -1)


def test_outputs_that_are_nan_are_left_alone_where_the_loss_and_gradients_do_not_see_them(tmp_path):
    class Padded(Attention):
        def forward(self, ids):
            logits = super().forward(ids)
            zero = logits.detach() * 0
            return logits, zero / zero

    loss_of = lambda model, ids: model(ids)[0].square().mean()  # noqa: E731
    run = recorded(tmp_path, Padded(hidden=MasksItsGradient.apply), loss_of=loss_of)
    assert (run.records(names=["Padded"], columns=["nan"])["nan"].to_numpy() > 0).any()
    assert (run.records(phases=["bwd"], columns=["neg_inf"])["neg_inf"].to_numpy() > 0).any()
    assert overflow_origin.check(run) == []


def test_a_mask_from_outside_that_leaves_nothing_is_the_softmax_too(tmp_path):
    mask = torch.full((4, 4), -INF).triu(0)
    finding = only(recorded(tmp_path, Attention(mask=lambda scores: scores + mask), steps=1))
    assert finding.sites[0] == "0.0/r0/fwd/Attention.softmax#0:out0"
    assert finding.evidence["mask"].startswith("0.0/r0/fwd/Attention.add#0:in")


def test_a_value_that_is_set_by_index_names_the_setting(tmp_path):
    def hidden(x):
        bias = torch.zeros(8, dtype=torch.float16)
        bias[2] = 1e5  # 65,504 is the largest
        return x + bias

    finding = only(recorded(tmp_path, Attention(hidden=hidden), steps=1))
    assert finding.claim.startswith("Call Attention.setitem#0 returned 1 +inf of 8 elements from finite inputs")
    assert finding.evidence["stack"][0].endswith("hidden")


def test_calls_that_hand_a_gradient_on_are_not_blamed_for_it(tmp_path):
    def loss_of(model, ids):
        zero = (model.up.weight * 0).sum()
        return model(ids).square().mean() + (zero + zero.sqrt()).view(1).sum()

    finding = only(recorded(tmp_path, Attention(), steps=1, loss_of=loss_of))
    assert finding.claim.startswith("The backward of sqrt#0 passed on 1 +inf of 1 element")


def test_a_weight_under_two_names_is_named_by_the_first(tmp_path):
    model = Attention()
    model.tied = nn.Linear(8, 8)
    model.tied.weight = model.up.weight
    model.up = nn.Identity()  # nothing calls the first owner
    model.first = nn.ParameterDict({"weight": model.tied.weight})
    model._modules = {name: model._modules[name] for name in ("embed", "up", "first", "tied", "head")}
    model.hidden = model.tied
    model.tied.weight.data[0, 0] = INF
    finding = only(recorded(tmp_path, model, steps=1))
    assert finding.sites[:2] == ("0.0/r0/param/first.weight#0:value", "0.0/r0/fwd/tied.linear#0:out0")


def test_a_module_is_not_blamed_for_what_one_inside_it_returned(tmp_path):
    class Overflows(nn.Module):
        def forward(self, x):
            return overflow(x)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Overflows()

        def forward(self, x):
            return self.inner(x) * 0.5

    model = nn.Sequential(nn.Embedding(10, 8), Block())
    loss_of = lambda model, ids: model(ids).square().mean()  # noqa: E731
    finding = only(recorded(tmp_path, model, steps=1, loss_of=loss_of, preset="modules", phases=["fwd"]))
    assert finding.sites[0] == "0.0/r0/fwd/1.inner#0:out0"


def test_modules_alone_without_gradients_follow_what_lies_between_them(tmp_path):
    class Overflows(nn.Module):
        def forward(self, x):
            return overflow(x)

    finding = only(recorded(tmp_path, Attention(hidden=Overflows()), steps=1, preset="modules", phases=["fwd"]))
    assert finding.sites[0] == "0.0/r0/fwd/hidden#0:out0"
    assert finding.evidence["reached"] == "output"


@pytest.mark.parametrize("overflows", [False, True])
def test_memory_that_a_call_is_to_write_into_is_no_origin(tmp_path, overflows):
    def hidden(x):
        parts = [torch.zeros(4) / torch.zeros(4) for _ in range(2)]  # as memory may hold before it is written
        with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(tuple(parts)):  # as FSDP2 does
            torch.split_with_sizes_copy(torch.ones(8), [4, 4], out=parts)
        y = x * torch.cat(parts)
        return overflow(y) if overflows else y

    run = recorded(tmp_path, Attention(hidden=hidden), steps=1)
    sites = [finding.sites[0] for finding in overflow_origin.check(run)]
    assert sites == (["0.0/r0/fwd/Attention.mul#2:out0"] if overflows else [])


def _of(call):
    """The hidden values through ``call``, kept finite in what they are added to."""
    return lambda x: x + call(x)


ADVICE = {
    "log": (lambda x: torch.log(x * 0), ["log is -inf at 0", "in0 (from 0 to 0)", "down to 1.4e-45"]),
    "sqrt": (lambda x: torch.sqrt(x - 9), ["sqrt is NaN below 0", "in0 (from -9"]),
    "rsqrt": (lambda x: torch.rsqrt(x * 0), ["rsqrt is infinite at 0", "in0 (from 0 to 0)"]),
    "div": (
        lambda x: x / (x * 0),
        ["Division by zero at test_overflow_origin.py:", "the divisor (second argument) is 0."],
    ),
    "div by a number": (
        lambda x: (x + 1) / 0,
        ["Division by zero at test_over", "the divisor (second argument) is 0."],
    ),
    "div by some zeros": (lambda x: (x + 1) / F.relu(x.sign()), ["(second argument) (from 0 to 1) is 0 in places."]),
    "div by little": (lambda x: (x + 1) / (x * 0 + 1e-45), ["too small: look at the divisor, in1 (from 1.4"]),
    "reciprocal": (lambda x: torch.reciprocal(x * 0), ["Division by zero at test_overflow", "the divisor is 0."]),
    "exp": (lambda x: torch.exp(x + 90), ["exp overflows float32 above 88.72", "in0 (from 90 to "]),
    "pow": (lambda x: torch.pow(x - 9, 0.5), ["negative base", "in0 (from -9", "its argument 0.5"]),
    "norm": (
        lambda x: torch.linalg.vector_norm(x + 1e30, dim=-1, keepdim=True),
        ["above 1.845e+19", "in0 (from 1e+30"],
    ),
    "acos": (lambda x: torch.acos(x + 2), ["acos is defined from -1 to 1", "in0 (from 2"]),
    "logsumexp": (lambda x: torch.logsumexp(x[..., :0], -1, keepdim=True), ["logsumexp of a row", "no element"]),
    "var": (lambda x: x[..., :1].var(-1, keepdim=True), ["number of elements less 1"]),
    "softmax": (lambda x: torch.softmax(x.masked_fill(x < 99, -INF), -1), ["all of it masked", "mask"]),
}


@pytest.mark.in_turn
@pytest.mark.parametrize("name", ADVICE)
def test_advice_follows_the_operation_and_prints_the_argument(tmp_path, name):
    call, words = ADVICE[name]
    advice = only(recorded(tmp_path, Attention(hidden=_of(call)), steps=1)).next[0]
    assert [word for word in words if word not in advice] == []


def test_labels_that_are_all_ignored_are_named(tmp_path):
    def loss_of(model, ids):
        return F.cross_entropy(model(ids).flatten(0, 1), torch.full((8,), -100))

    advice = only(recorded(tmp_path, Attention(), steps=1, loss_of=loss_of)).next[0]
    assert "every label is ignored" in advice
    assert "in1 (from -100 to -100)" in advice


BACKWARD_ADVICE = {
    "sqrt": (lambda x: torch.sqrt(x * 0), "where it is 0"),
    "acos": (lambda x: torch.acos(x * 0 + 1), "at -1 and 1"),
}


@pytest.mark.parametrize("name", BACKWARD_ADVICE)
def test_advice_on_gradients_follows_the_operation(tmp_path, name):
    call, words = BACKWARD_ADVICE[name]
    advice = only(recorded(tmp_path, Attention(hidden=_of(call)), steps=1)).next[0]
    assert words in advice
