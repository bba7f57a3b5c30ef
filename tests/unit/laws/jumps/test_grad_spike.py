"""grad-spike: the group and the parameter whose gradient jumps; scales that double, and asked-for jumps, are silent."""

import math

import numpy as np
import pytest
from tests.unit.healthy_run import GROUPS, PARAMS, write_run

from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.laws.jumps import grad_spike
from trueline.laws.jumps.run_series import WholeRun
from trueline.schema.errors import CannotTell
from trueline.schema.text.words import listed

NAMES = tuple(name for name, _ in GROUPS)
NUM_STEPS = 160


def group_norms(*, at=120, group=None, fold=20.0, num_steps=NUM_STEPS, seed=5):
    """[T, 3] norms of embed, blocks.0 and head, the first of which is the smallest."""
    rng = np.random.default_rng(seed)
    norm_TG = np.array([0.1, 1.0, 2.0]) * np.exp(0.1 * rng.standard_normal((num_steps, 3)))
    if group is not None:
        norm_TG[at, group] *= fold
    return norm_TG


def series(norm_TG, **changes):
    norm_T = np.sqrt(np.square(norm_TG).sum(axis=1))
    facts = {"group_names": NAMES, "group_norm": norm_TG, **changes}
    return WholeRun(steps=np.arange(len(norm_T)), ranks=(0, 1), loss=np.ones(len(norm_T)), norm=norm_T, **facts)


def judge(whole):
    return grad_spike.judge(whole, AlarmBudget())


def rows(norm_TG, *, params=None, reduced=True):
    """Two workers with the same norms; ``params`` [T, 4] of embed, blocks.0.weight, blocks.0.bias and head."""
    norm_T = np.sqrt(np.square(norm_TG).sum(axis=1))
    prefix = ("reduced_norm", "group_reduced_norms") if reduced else ("grad_norm", "group_grad_norms")
    rows_by_key = {}
    for step, norm in enumerate(norm_T.tolist()):
        for rank in range(2):
            row = {prefix[0]: norm, prefix[1]: norm_TG[step].tolist(), "grad_norm": norm, "lr": [1e-3]}
            rows_by_key[step, rank] = row | ({} if params is None else {"param_grad_norms": params[step].tolist()})
    return rows_by_key


def param_norms(norm_TG):
    """[T, 4]: the bias of blocks.0 has a tenth of the weight's."""
    weight_T = norm_TG[:, 1] / math.sqrt(1.01)
    return np.stack([norm_TG[:, 0], weight_T, weight_T / 10, norm_TG[:, 2]], axis=1)


@pytest.mark.parametrize(
    ("group", "jumped"), [(0, ("embed",)), (1, ("blocks.0.weight", "blocks.0.bias")), (2, ("head",))]
)
@pytest.mark.parametrize("reduced", [True, False])
def test_the_group_and_the_parameters_that_jump_are_named_from_a_run(tmp_path, group, jumped, reduced):
    norm_TG = group_norms(group=group)
    run = write_run(tmp_path, rows(norm_TG, params=param_norms(norm_TG), reduced=reduced))
    (finding,) = grad_spike.check(run)
    assert (finding.code, finding.severity, finding.step_first, finding.step_last) == (
        "grad-spike",
        "warning",
        120,
        120,
    )
    assert finding.sites == tuple(f"120.0/r0/grad/{param}#0:out0" for param in jumped)
    assert finding.evidence["groups"] == [NAMES[group]]
    assert finding.evidence["params"] == [*jumped]
    assert finding.measured == pytest.approx(norm_TG[120, group])
    assert finding.expected == pytest.approx(np.exp(np.median(np.log(norm_TG[104:120, group]))))
    assert finding.claim.startswith(f"The norm of the gradient of {NAMES[group]} jumped from ")
    assert finding.claim.endswith(f" times its usual spread, for that step alone (in {listed(jumped)}).")
    assert finding.unit.startswith("L2 norm of the mean" if reduced else "root mean square")
    assert finding.false_alarm_rate < 1e-3


def test_a_parameter_that_was_the_smaller_one_of_its_group_is_named_where_it_holds_the_jump(tmp_path):
    norm_TG = group_norms()
    params = param_norms(norm_TG)
    params[120, 2] *= 1000
    norm_TG[120, 1] = math.hypot(params[120, 1], params[120, 2])
    (finding,) = grad_spike.check(write_run(tmp_path, rows(norm_TG, params=params)))
    assert finding.evidence["params"] == [PARAMS[2]]


def test_a_jump_of_all_groups_is_one_finding():
    norm_TG = group_norms()
    norm_TG[120] *= 20
    (finding,) = judge(series(norm_TG))
    assert sorted(finding.evidence["groups"]) == sorted(NAMES)


def test_jumps_of_two_groups_at_two_times_are_two_findings():
    norm_TG = group_norms(num_steps=300, group=0)
    norm_TG[200, 2] *= 20
    assert [finding.evidence["groups"] for finding in judge(series(norm_TG))] == [["embed"], ["head"]]


def test_without_groups_the_whole_gradient_is_told_of():
    norm_TG = group_norms(group=2)
    (finding,) = judge(series(norm_TG, group_names=(), group_norm=np.zeros((NUM_STEPS, 0))))
    assert finding.claim.startswith("The norm of the gradient jumped from 2.")
    assert finding.sites == ("120.0/r0/grad/all#0:out0",)


def test_a_group_that_hides_in_the_whole_is_found_by_its_own_norm():
    norm_TG = group_norms(group=0, fold=10.0)
    whole = series(norm_TG)
    assert whole.norm[120] < 1.3 * np.median(whole.norm)
    (finding,) = judge(whole)
    assert finding.evidence["groups"] == ["embed"]


def test_healthy_norms_and_a_scale_that_doubles_are_silent():
    assert judge(series(group_norms(num_steps=2000))) == []
    quiet = 1e-3 * np.random.default_rng(0).standard_normal((NUM_STEPS, 3))
    doubles = np.exp(quiet) * np.where(np.arange(NUM_STEPS) >= 120, 2.0, 1.0)[:, None]
    assert judge(series(doubles)) == []
    assert len(judge(series(np.square(doubles)))) == 1


def test_a_jump_with_the_learning_rate_is_silent():
    norm_TG = group_norms()
    norm_TG[120:] *= 20
    assert judge(series(norm_TG, starts=(120,))) == []


def test_norms_that_are_not_finite_are_left_to_others():
    norm_TG = group_norms()
    norm_TG[120] = math.inf
    assert judge(series(norm_TG)) == []


def test_no_norm_and_too_few_steps_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="a gradient norm above zero"):
        grad_spike.check(write_run(tmp_path, {(0, 0): {"loss": 1.0}}))
    with pytest.raises(CannotTell, match="it takes 48 steps"):
        judge(series(group_norms()[:40]))
