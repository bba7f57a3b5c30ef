"""Clipping by a norm as it is watched: what people do is left alone, and a norm that is not the gradient's is found."""

import itertools
import math

import pytest
import torch
from gallery.problems import CausalLM
from gallery.sharding import sharded
from gallery.training import wrapped
from tests.unit.asked import asked
from tests.unit.trained_updates import mlp, trained
from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm  # by name, before anything is watched
from torch.utils.data import DataLoader

import trueline
from trueline.capture.probes.around_update.sampling import EARLY
from trueline.judge.series.clip_calls import clip_calls
from trueline.store.reader import Run

LAWS = ("clip-differs", "norm-misreported")
AT = 2
LATER = EARLY + 19
"""A step that is sampled, and at which the norm that is clipped by is not computed beside."""


def stepping(clip):
    """An update that clips first, as ``clip(params)``."""

    def step(optimizer):
        clip([param for group in optimizer.param_groups for param in group["params"]])
        optimizer.step()

    return step


def findings(out):
    """Those of the two laws; None where they could not judge."""
    findings, why = asked(out, *LAWS)
    return None if len(why) == len(LAWS) else findings


def in_two_parts(params):
    clip_grad_norm_(params[:3], 0.1)
    clip_grad_norm_(params[3:], 0.2)


def by_its_parts(params):
    torch.nn.utils.clip_grads_with_norm_(params, 0.1, torch.nn.utils.get_total_norm([param.grad for param in params]))


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "clip",
    [
        lambda params: clip_grad_norm_(params, 0.1),
        lambda params: clip_grad_norm_(params, float("inf")),
        lambda params: clip_grad_norm_(params, 0.1, norm_type=float("inf")),
        lambda params: [clip_grad_norm_(params, 0.1) for _ in range(2)],
        in_two_parts,
        by_its_parts,
    ],
    ids=["by the norm", "norm alone", "largest element", "twice", "in parts", "by its parts"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_clipping_that_is_right_is_left_alone(tmp_path, clip, dtype):
    trained(tmp_path / "run", step=stepping(clip), dtype=dtype, steps=6)
    assert findings(tmp_path / "run") == []


def test_watching_clips_bit_for_bit_alike(tmp_path):
    def clip(params):
        clip_grad_norm_(params, 0.1)

    watched, alone = (trained(out, step=stepping(clip), steps=6) for out in (tmp_path / "run", None))
    assert all(torch.equal(one, other) for one, other in zip(watched, alone, strict=True))
    assert len(Run(str(tmp_path / "run")).texts("clip_facts")) == 6


def test_norms_are_computed_at_fewer_steps_than_elements_are_looked_at(tmp_path):
    trained(tmp_path / "run", step=stepping(lambda params: clip_grad_norm_(params, 0.1)), steps=60)
    calls = clip_calls(Run(str(tmp_path / "run")))
    late = [call for call in calls if call.step >= EARLY]
    assert late
    assert [call.step for call in calls if math.isfinite(call.whole2)] == list(range(EARLY))
    assert findings(tmp_path / "run") == []


@pytest.mark.parametrize("factor", [0.5, 0.99, 1.5])
def test_a_norm_that_is_another_number(tmp_path, factor):
    def clip(params):
        total = get_total_norm([param.grad for param in params])
        clip_grads_with_norm_(params, 0.1, total * factor)

    trained(tmp_path / "run", step=stepping(clip), steps=6)
    # by the names of the script, which were bound before: only what torch looks up itself is seen
    assert findings(tmp_path / "run") is None

    def by_attribute(params):
        total = torch.nn.utils.get_total_norm([param.grad for param in params])
        torch.nn.utils.clip_grads_with_norm_(params, 0.1, total * factor)

    trained(tmp_path / "seen", step=stepping(by_attribute), steps=6)
    (finding,) = findings(tmp_path / "seen")
    assert (finding.code, finding.step_first, finding.severity) == ("norm-misreported", 0, "error")
    assert finding.measured == pytest.approx(factor, rel=1e-5)


@pytest.mark.parametrize("how", ["unscaled", "threshold scaled", "wrong"])
def test_clipping_with_a_loss_scale(tmp_path, how):
    scale = 2.0**12
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)

    def step(optimizer):
        if how == "unscaled":
            scaler.unscale_(optimizer)
        max_norm = 0.1 * scale if how == "threshold scaled" else 0.1
        clip_grad_norm_([param for group in optimizer.param_groups for param in group["params"]], max_norm)
        scaler.step(optimizer)
        scaler.update()

    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with trueline.watch(model, optimizer, out=tmp_path / "run"):
        for _ in range(LATER + 1):
            scaler.scale(model(torch.randn(8, 16)).square().mean()).backward()
            step(optimizer)
            optimizer.zero_grad()
    found = findings(tmp_path / "run")
    assert [(finding.code, finding.measured, finding.step_last) for finding in found] == (
        [("norm-misreported", scale, LATER)] if how == "wrong" else []
    )


def test_a_call_that_comes_before_the_backward_pass(tmp_path):
    def before(step, model, optimizer):
        clip_grad_norm_(model.parameters(), 0.1)

    trained(tmp_path / "run", before=before, steps=6)
    (finding,) = findings(tmp_path / "run")
    assert (finding.code, finding.evidence["kind"]) == ("clip-differs", "nothing")
    assert "found none of its parameters with a gradient" in finding.claim


def _clip(params, max_norm=0.1):
    clip_grad_norm_(params, max_norm)


def _multiply(params, by=2.0):
    for param in params:
        param.grad *= by


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("before", "between", "after", "kind"),
    [
        (None, _clip, None, None),
        (None, None, _clip, "late"),
        (None, None, lambda params: _clip(params, math.inf), None),
        (None, _clip, lambda params: _clip(params, 0.05), None),
        (_clip, _clip, None, "early"),
        (lambda params: (_clip(params), _multiply(params, 0.0)), _clip, None, None),
        (None, lambda params: (_clip(params), _multiply(params)), None, "multiplied"),
        (None, lambda params: (_clip(params), _multiply(params, 0.5)), None, None),
        (None, lambda params: (_clip(params, 1e9), _multiply(params)), None, None),
    ],
)
def test_clipping_is_at_its_place(tmp_path, before, between, after, kind):
    """Of two micro-batches: called between them, before the update, or after it."""
    torch.manual_seed(0)
    model = mlp()
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=1e-3)
    with trueline.watch(model, optimizer, out=tmp_path / "run", plan={"every": 1}):
        for _ in range(8):
            for micro in range(2):
                model(torch.randn(8, 16)).square().mean().backward()
                if micro == 0 and before is not None:
                    before(params)
            if between is not None:
                between(params)
            optimizer.step()
            if after is not None:
                after(params)
            optimizer.zero_grad()
    found = findings(tmp_path / "run") or []
    assert [(each.evidence["kind"], each.step_first, each.severity) for each in found] == (
        [] if kind is None else [(kind, 0, "warning")]
    )


def test_elements_that_are_left_out_are_named(tmp_path):
    calls = itertools.count()

    def clip(params):
        spared = params[0].grad.clone()
        clip_grad_norm_(params, 0.1)
        params[0].grad.copy_(spared)  # after the call: no fault of clipping

    trained(tmp_path / "after", step=stepping(clip), steps=6)
    assert findings(tmp_path / "after") == []

    plain = torch.nn.utils.clip_grad._clip_grads_with_norm_

    def leaving(params, *args):
        plain(params[1:] if next(calls) >= 3 else params, *args)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch.nn.utils.clip_grad, "_clip_grads_with_norm_", leaving)
        trained(tmp_path / "run", step=stepping(lambda params: clip_grad_norm_(params, 0.1)), steps=6)
    (finding,) = findings(tmp_path / "run")
    assert (finding.code, finding.step_first, finding.evidence["names"]) == ("clip-differs", 3, ["0.weight"])


@pytest.mark.in_turn
@pytest.mark.parametrize("how", ["alike", "threshold"])
@pytest.mark.parametrize("shards", [False, True], ids=["replicas", "shards"])
def test_ranks_that_clip_one_gradient_differently(two, tmp_path, how, shards):
    two.run(clipping_on, str(tmp_path / "run"), how, shards)
    found = [finding for finding in findings(tmp_path / "run") if finding.code == "clip-differs"]
    if how == "alike":
        assert found == []
        return
    (finding,) = found
    assert (finding.evidence["kind"], finding.step_first, finding.ranks) == ("ranks", AT, (0, 1))
    factors = finding.evidence["factors"]
    assert factors["1"] == pytest.approx(factors["0"] / 2)


def clipping_on(rank, world_size, out, how, shards):
    """Six steps whose gradients are clipped, from ``AT`` on at half the threshold on rank 1 where ``how`` says so."""
    problem = CausalLM()
    model = sharded(problem.model()) if shards else wrapped(problem.model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    batches = iter(DataLoader(problem.dataset(24, seed=rank), batch_size=4))
    with trueline.watch(model, optimizer, out=out, plan={"every": 1}):
        for step, batch in enumerate(batches):
            problem.loss(model, batch).backward()
            lower = how == "threshold" and rank == 1 and step >= AT
            clip_grad_norm_(model.parameters(), 0.05 if lower else 0.1)
            optimizer.step()
            optimizer.zero_grad()
