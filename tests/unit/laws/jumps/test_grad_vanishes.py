"""grad-vanishes: a gradient that falls or is zero is found once, at its root; what is usual or meant is silent."""

import numpy as np
import pytest
from tests.unit.healthy_run import PARAMS, healthy_rows, write_run

from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.laws.jumps import grad_spike, grad_vanishes
from trueline.laws.jumps.run_series import ParamNorms, WholeRun
from trueline.schema.errors import CannotTell

NAMES = tuple(f"layers.{layer}.{name}" for layer in range(6) for name in ("weight", "bias"))
STEPS = 160
AT = 120


def param_norms(num_steps=STEPS, seed=3):
    """[T, 12] norms whose levels differ by a factor of a hundred."""
    noise_TP = np.random.default_rng(seed).standard_normal((num_steps, len(NAMES)))
    return np.logspace(-2, 0, len(NAMES)) * np.exp(0.2 * noise_TP)


def judge(norm_TP, check=grad_vanishes, **changes):
    steps = np.arange(len(norm_TP))
    params = ParamNorms(NAMES, ("",) * len(NAMES), steps, np.square(norm_TP))
    no_groups = np.zeros((len(steps), 0))
    facts = {
        "loss": no_groups.sum(1) + 1,
        "norm": np.sqrt(np.square(norm_TP).sum(axis=1)),
        "group_norm": no_groups,
        **changes,
    }
    return check.judge(WholeRun(steps=steps, ranks=(0, 1), **facts), AlarmBudget(), params)


def test_a_gradient_that_falls_is_found_once_at_the_module_where_backward_lost_it():
    norm_TP = param_norms()
    norm_TP[AT:, :6] /= 100
    (finding,) = judge(norm_TP)
    assert (finding.step_first, finding.severity) == (AT, "warning")
    assert finding.evidence["params"] == [NAMES[p] for p in (4, 5, 2, 3, 0, 1)]
    assert finding.sites[0] == f"{AT}.0/r0/grad/layers.2.weight#0:out0"
    assert 50 < finding.expected / finding.measured < 300
    assert finding.claim.endswith("(in layers.2.weight, layers.2.bias, layers.1.weight and 3 more).")
    assert judge(norm_TP, grad_spike) == []


@pytest.mark.parametrize("num_zeros", [7, STEPS - AT])
def test_an_exact_zero_is_found_once_after_a_few_steps(num_zeros):
    norm_TP = param_norms()
    norm_TP[AT : AT + num_zeros, :4] = 0
    (finding,) = judge(norm_TP)
    assert (finding.step_first, finding.step_last) == (AT, AT + num_zeros - 1)
    assert finding.evidence["params"] == [NAMES[p] for p in (2, 3, 0, 1)]
    assert finding.measured == 0
    assert finding.false_alarm_rate < 1e-2


def test_a_bias_whose_weight_has_a_gradient_cancels_and_is_not_lost():
    """A critic's loss is a difference of two means: what both are alike in has a gradient of zero."""
    norm_TP = param_norms()
    norm_TP[AT:, 3] = 0
    assert NAMES[3] == "layers.1.bias"
    assert judge(norm_TP) == []
    norm_TP[AT:, 2] = 0
    (finding,) = judge(norm_TP)
    assert finding.evidence["params"] == [NAMES[2], NAMES[3]]


def test_what_is_usual_or_meant_is_silent():
    healthy = param_norms(2000)
    assert judge(healthy) == judge(healthy, grad_spike) == []
    routed = param_norms()
    routed[::9, 3] = 0  # as an expert that now and then gets no token
    routed[AT:, 3] = 0
    assert judge(routed) == []
    briefly = param_norms()
    briefly[AT : AT + 2, 3] = 0
    assert judge(briefly) == []
    frozen = param_norms()
    frozen[AT:, 3] = np.nan
    assert judge(frozen) == []
    learned = param_norms()
    learned[AT:] = 0
    assert judge(learned, loss=np.where(np.arange(STEPS) < AT, 1.0, 0.0)) == []
    assert len(judge(learned)) == 1


@pytest.mark.parametrize(("small", "found"), [(1e-5, 0), (0.1, 1)])
def test_steps_with_next_to_no_loss_have_no_gradient_to_lose(small, found):
    norm_TP = param_norms()
    norm_TP[AT : AT + 2] *= 1e-5
    loss = -np.ones(STEPS)
    loss[AT : AT + 2] = small
    assert len(judge(norm_TP, loss=loss)) == found


def test_a_fall_after_a_rise_is_no_loss_of_gradient():
    norm_TP = param_norms(300)
    norm_TP[80:240, 3] *= 100
    assert judge(norm_TP) == []
    assert len(judge(norm_TP, grad_spike)) == 1


@pytest.mark.parametrize("nan_at", [None, 90])
def test_a_jump_of_one_small_parameter_is_found_once_also_after_a_nan(nan_at):
    norm_TP = param_norms()
    norm_TP[AT, 0] *= 100
    if nan_at is not None:
        norm_TP[nan_at] = np.nan
    (finding,) = judge(norm_TP, grad_spike)
    assert (finding.step_first, finding.step_last) == (AT, AT)
    assert finding.claim.startswith("The norm of the gradient of layers.0.weight jumped from 0.0")
    assert finding.sites == (f"{AT}.0/r0/grad/layers.0.weight#0:out0",)
    assert finding.unit.startswith("root mean square")
    assert judge(norm_TP) == []


def test_parameters_of_a_run_are_read_and_too_few_steps_cannot_be_told(tmp_path):
    rows = healthy_rows(2, 70)
    for (step, _), row in rows.items():
        row["param_grad_norms"][1:3] *= step < 60
    (finding,) = grad_vanishes.check(write_run(tmp_path / "zero", rows))
    assert (finding.step_first, finding.evidence["params"]) == (60, list(PARAMS[1:3]))
    with pytest.raises(CannotTell, match="it takes 48 steps"):
        grad_vanishes.check(write_run(tmp_path / "short", healthy_rows(2, 40)))
