"""gradient-not-reduced: gradients that went past the reduction, as a whole, by group or by parameter."""

import numpy as np
import pytest
from tests.unit.healthy_run import GROUPS, PARAMS, healthy_rows, rank_env, write_run

from trueline.laws.reduction import gradient_not_reduced
from trueline.schema.errors import CannotTell
from trueline.schema.files.run_manifest import ParamLists

ALL_GROUPS = range(len(GROUPS))


def unreduced(rows, *, steps, groups=ALL_GROUPS, reduction_seen=True):
    """The rows with every worker using its own gradient of ``groups`` at ``steps``."""
    for (step, rank), row in rows.items():
        if step not in steps:
            continue
        for group in groups:
            row["group_used_residual"][group] = 0.6
            row["group_used_local"][group] = 1e-9 if reduction_seen else 1.0
            row["group_seen"][group] = float(reduction_seen)
        row["used_param_norms"] = row["used_param_norms"] + 0.1 * rank
    return rows


def test_all_groups_at_all_steps(tmp_path):
    (finding,) = gradient_not_reduced.check(write_run(tmp_path, unreduced(healthy_rows(2, 5), steps=range(5))))

    assert (finding.severity, finding.ranks) == ("error", (0, 1))
    assert (finding.step_first, finding.step_last) == (0, 4)
    assert finding.claim == "Ranks 0 and 1 used their own gradients of all parameters unreduced at steps 0-4."
    assert finding.measured == pytest.approx(0.6)
    assert finding.false_alarm_rate is not None
    assert 0 < finding.false_alarm_rate < 1e-10


@pytest.mark.parametrize("changed_step", [None, 2])
def test_where_others_came_to_be_trained_the_model_is_to_be_wrapped_again(tmp_path, changed_step):
    lists = ParamLists(params=PARAMS, groups=rank_env(0, 2).groups)
    many = [] if changed_step is None else [lists.model_copy(update={"step": step}) for step in (0, changed_step)]
    envs = {rank: rank_env(rank, 2, lists=many) for rank in range(2)}
    rows = unreduced(healthy_rows(2, 9), steps=range(2, 9))
    (finding,) = gradient_not_reduced.check(write_run(tmp_path, rows, envs=envs))
    assert ("wrap the model again after parameters are unfrozen" in finding.next[0]) == (changed_step is not None)


def test_a_single_step_is_named(tmp_path):
    (finding,) = gradient_not_reduced.check(write_run(tmp_path, unreduced(healthy_rows(2, 9), steps=[6])))
    assert (finding.step_first, finding.step_last) == (6, 6)
    assert finding.claim.endswith("at step 6.")


def test_no_reduction_seen_at_all(tmp_path):
    rows = unreduced(healthy_rows(2, 4), steps=range(4), reduction_seen=False)
    assert len(gradient_not_reduced.check(write_run(tmp_path, rows))) == 1


def test_one_group_is_named(tmp_path):
    rows = unreduced(healthy_rows(3, 4), steps=range(4), groups=[1])
    (finding,) = gradient_not_reduced.check(write_run(tmp_path, rows))

    assert finding.sites[0] == "0.0/r0/reduce/blocks.0#0:out0"
    assert "blocks.0" in finding.claim


def test_one_parameter_of_a_group_is_named_by_its_norms(tmp_path):
    """The rest of the group was reduced, so its sketch is not the worker's own; the norm of the parameter is."""
    rows = healthy_rows(2, 4)
    for row in rows.values():
        row["group_used_residual"][1] = 0.2
        row["used_param_norms"] = row["used_param_norms"].copy()
        row["used_param_norms"][2] = row["param_grad_norms"][2]
    (finding,) = gradient_not_reduced.check(write_run(tmp_path, rows))

    assert finding.sites == ("0.0/r0/reduce/blocks.0.bias#0:out0", "0.0/r1/reduce/blocks.0.bias#0:out0")


def test_a_parameter_that_no_reduction_saw_is_named(tmp_path):
    rows = healthy_rows(2, 4)
    for (_, rank), row in rows.items():
        row["group_used_residual"][1] = 0.2
        row["used_param_norms"] = row["used_param_norms"] + np.array([0, rank, 0, 0])
        row["param_grad_norms"][1] = -1.0
    (finding,) = gradient_not_reduced.check(write_run(tmp_path, rows))
    assert finding.sites[0] == "0.0/r0/reduce/blocks.0.weight#0:out0"


def test_healthy_reductions_are_silent(tmp_path):
    assert gradient_not_reduced.check(write_run(tmp_path, healthy_rows(4, 6))) == []


def test_equal_gradients_of_all_workers_are_silent(tmp_path):
    """Duplicate data: what was used is the worker's own gradient and the mean at once."""
    rows = healthy_rows(2, 4)
    for row in rows.values():
        row["group_used_local"] = [0.0] * len(GROUPS)
    assert gradient_not_reduced.check(write_run(tmp_path, rows)) == []


def test_a_parameter_with_equal_gradients_does_not_make_its_group_unreduced(tmp_path):
    """Replicas differ in another parameter of the group; this one has the same gradient on every worker."""
    rows = healthy_rows(2, 4)
    for row in rows.values():
        row["group_used_residual"][1] = 0.2
        row["param_grad_norms"][2] = row["used_param_norms"][2]
    assert gradient_not_reduced.check(write_run(tmp_path, rows)) == []


def test_one_rank_with_its_own_gradient_is_another_checks_business(tmp_path):
    rows = healthy_rows(3, 4)
    for (_, rank), row in rows.items():
        row["group_used_residual"][0] = 0.3
        row["group_used_local"][0] = 1e-9 if rank == 1 else 0.7
    assert gradient_not_reduced.check(write_run(tmp_path, rows)) == []


def test_parameters_without_a_gradient_are_silent(tmp_path):
    rows = healthy_rows(2, 4)
    for row in rows.values():
        for column in ("group_used_residual", "group_used_local", "group_used_factor", "group_used_shape_residual"):
            row[column][2] = float("nan")
        row["group_seen"][2] = 0.0
        row["param_grad_norms"][3] = row["used_param_norms"][3] = -1.0
    assert gradient_not_reduced.check(write_run(tmp_path, rows)) == []


def test_parameters_that_some_ranks_leave_out_are_silent(tmp_path):
    """A router: the reduced gradient is there on every rank, the local one on some."""
    rows = healthy_rows(2, 6)
    for (step, rank), row in rows.items():
        if (step + rank) % 2:
            row["param_grad_norms"][3], row["group_seen"][2], row["group_used_local"][2] = -1.0, 0.0, 1.0
    assert gradient_not_reduced.check(write_run(tmp_path, rows)) == []


def test_sampled_steps_are_enough(tmp_path):
    rows = unreduced(healthy_rows(2, 9), steps=range(9))
    for (step, _), row in rows.items():
        for column in [name for name in row if name.startswith("group_") and step % 4]:
            del row[column]
    (finding,) = gradient_not_reduced.check(write_run(tmp_path, rows))
    assert finding.evidence["num_steps"] == 3
    assert finding.claim.endswith("at steps 0-8.")


def test_one_worker_or_no_columns_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="one worker"):
        gradient_not_reduced.check(write_run(tmp_path / "one", healthy_rows(1, 2)))
    bare = {key: {"loss": 1.0} for key in healthy_rows(2, 2)}
    with pytest.raises(CannotTell, match="before they were reduced"):
        gradient_not_reduced.check(write_run(tmp_path / "bare", bare))
