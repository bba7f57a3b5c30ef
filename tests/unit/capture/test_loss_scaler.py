"""What a gradient scaler does is followed: a scale that is of no use is found, and one that adapts is left alone."""

import math

import pytest
import torch
from tests.unit.asked import asked
from tests.unit.trained_updates import mlp

import trueline


def trained(out, scaler, *, overflows, steps=24, first=0, resume=False, every_step=lambda scaler: scaler, **settings):
    """The scaler after steps from ``first`` on, of which those for which ``overflows`` have no finite gradient."""
    torch.manual_seed(0)
    model = mlp()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **settings)
    with trueline.watch(model, optimizer, out=out, resume=resume, step=first if resume else None):
        for step in range(first, first + steps):
            scaler = every_step(scaler)
            optimizer.zero_grad()
            loss = model(torch.randn(8, 16)).square().mean() * (math.inf if overflows(step) else 1.0)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return scaler


def scaler(scale=1024.0, **settings):
    return torch.amp.GradScaler("cpu", init_scale=scale, **settings)


def found(out):
    """The kinds of the findings of ``loss-scale-wrong``, and the findings."""
    return {each.evidence["kind"]: each for each in asked(out, "loss-scale-wrong")[0]}


def test_updates_that_are_left_out_to_the_end(tmp_path):
    trained(tmp_path / "run", scaler(), overflows=lambda step: step >= 8)
    (finding,) = found(tmp_path / "run").values()
    assert (finding.evidence["kind"], finding.severity, finding.step_first) == ("left-out", "error", 7)
    assert (finding.measured, finding.claim.endswith("its scale fell from 1024 to 0.015625.")) == (16.0, True)


def test_a_scaler_that_is_made_anew_in_each_step_never_adapts(tmp_path):
    trained(tmp_path / "run", scaler(), overflows=lambda step: step >= 18, every_step=lambda _: scaler())
    assert found(tmp_path / "run")["left-out"].claim.endswith("its scale fell from 1024 to 512.")


def test_a_scale_that_falls_below_one(tmp_path):
    """At the sixth update that is made, after three that are left out."""
    trained(tmp_path / "run", scaler(4.0), overflows=lambda step: step % 3 == 1)
    (finding,) = found(tmp_path / "run").values()
    assert (finding.evidence["kind"], finding.severity, finding.step_first) == ("collapsed", "warning", 5)


def test_a_scaler_that_is_not_restored(tmp_path):
    out, healthy = tmp_path / "run", lambda step: False
    trained(out, scaler(growth_interval=5), overflows=healthy)
    trained(out, scaler(growth_interval=5), overflows=healthy, first=24, resume=True)
    (finding,) = found(out).values()
    assert (finding.evidence["kind"], finding.severity, finding.step_first) == ("began-anew", "warning", 24)
    assert (finding.measured, finding.expected) == (1024.0, 2.0**14)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("scale", "settings", "overflows"),
    [
        (2.0**30, {}, lambda step: step < 6),  # starts too high
        (2.0, {"growth_interval": 4}, lambda step: step % 7 == 3),  # grows, and overflows now and then
        (1024.0, {}, lambda step: step >= 21),  # the last ones, while it still adapts
        (0.5, {}, lambda step: False),  # as it was asked for
        (1024.0, {"enabled": False}, lambda step: False),
    ],
)
def test_scalers_that_adapt_are_left_alone(tmp_path, scale, settings, overflows):
    trained(tmp_path / "run", scaler(scale, **settings), overflows=overflows)
    assert found(tmp_path / "run") == {}


@pytest.mark.parametrize("num_left_out", [0, 1, 2])
def test_a_scaler_that_is_restored_is_left_alone(tmp_path, num_left_out):
    """Also where updates were left out just before the checkpoint, and one brings the scale of the first one back."""
    out, settings, end = tmp_path / "run", {"growth_interval": 23}, 24 + num_left_out
    before = trained(out, scaler(**settings), overflows=lambda step: step >= 24, steps=end)
    again = scaler(**settings)
    again.load_state_dict(before.state_dict())
    trained(out, again, overflows=lambda step: False, first=24, resume=True)
    assert again.get_scale() == 2.0 ** (12 - num_left_out)
    assert found(out) == {}


def test_a_run_without_any_update_says_why(tmp_path, caplog):
    trained(tmp_path / "run", scaler(), overflows=lambda step: True, steps=4)
    assert "no optimizer step seen: a GradScaler left out all 4 updates" in caplog.text


@pytest.mark.parametrize("scales", [True, False])
def test_a_fused_optimizer_that_leaves_updates_out_is_no_fault_and_one_that_makes_them_is(tmp_path, scales):
    trained(tmp_path / "run", scaler(enabled=scales), overflows=lambda step: step in (3, 4), steps=8, fused=True)
    found = {each.code: each.severity for each in trueline.check(tmp_path / "run").findings}
    assert found["worker-nonfinite"] == ("info" if scales else "error")
    told, measured = trueline.open_run(tmp_path / "run").pivot("update_left_out")
    assert told[measured].tolist() == ([0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0] if scales else [])
