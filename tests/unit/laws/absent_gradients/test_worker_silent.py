"""worker-silent: ranks without gradient while others have one, as a whole or by parameter; routing is left alone."""

import numpy as np
import pytest
from tests.unit.healthy_run import PARAMS, healthy_rows, rank_env, write_run

from trueline.laws.absent_gradients import worker_silent
from trueline.laws.absent_gradients.worker_silent import silent_params
from trueline.schema.errors import CannotTell


def silenced(rows, *, rank, steps, loss=None):
    for step in steps:
        rows[step, rank] |= {"grad_norm": 0.0, "group_grad_norms": [0.0] * 3, "param_grad_norms": np.zeros(len(PARAMS))}
        if loss is not None:
            rows[step, rank]["loss"] = loss
    return rows


def without(rows, param, *, present):
    """The rows in which ``param`` has a gradient where ``present(step, rank)``."""
    for (step, rank), row in rows.items():
        if not present(step, rank):
            row["param_grad_norms"][param] = -1.0
    return rows


def test_a_rank_without_gradient_for_good(tmp_path):
    rows = silenced(healthy_rows(3, 8), rank=1, steps=range(2, 8), loss=0.0)
    (finding,) = worker_silent.check(write_run(tmp_path, rows))

    assert (finding.severity, finding.ranks, finding.step_first, finding.step_last) == ("error", (1,), 2, 7)
    assert finding.claim == "The gradient of rank 1 is zero at steps 2-7, while other ranks have one."
    assert finding.false_alarm_rate == 0.0


def test_a_single_step_with_a_loss_is_an_error(tmp_path):
    (finding,) = worker_silent.check(write_run(tmp_path, silenced(healthy_rows(2, 8), rank=0, steps=[5])))
    assert (finding.severity, finding.ranks, finding.step_first) == ("error", (0,), 5)


def test_of_a_single_step_it_is_said_how_many_were_looked_at(tmp_path):
    rows = silenced(healthy_rows(2, 12), rank=0, steps=[6])
    for (step, _), row in rows.items():
        if step % 3:
            row.update(grad_norm=None, group_grad_norms=None, param_grad_norms=None)
    (finding,) = worker_silent.check(write_run(tmp_path, rows))
    assert finding.claim == (
        "The gradient of rank 0 is zero at step 6, while other ranks have one (4 of 12 steps were looked at)."
    )


def test_a_single_step_without_loss_is_a_warning(tmp_path):
    (finding,) = worker_silent.check(write_run(tmp_path, silenced(healthy_rows(2, 8), rank=0, steps=[5], loss=0.0)))
    assert finding.severity == "warning"


@pytest.mark.parametrize(
    ("loss", "kind"), [(None, "loss-usual"), (0.0, "loss-zero"), (float("nan"), "loss-not-finite")]
)
def test_what_the_loss_is_at_the_silent_steps_is_its_kind(tmp_path, loss, kind):
    (finding,) = worker_silent.check(write_run(tmp_path, silenced(healthy_rows(2, 8), rank=0, steps=[5], loss=loss)))
    assert finding.evidence["kind"] == kind


def test_a_policy_gradient_without_advantages_is_an_information(tmp_path):
    rows = healthy_rows(2, 8)
    for (step, _), row in rows.items():
        row["loss"] *= (-1) ** step
    (finding,) = worker_silent.check(write_run(tmp_path, silenced(rows, rank=0, steps=[3, 4, 5], loss=0.0)))
    assert (finding.severity, finding.ranks) == ("info", (0,))


def test_all_ranks_silent_together_is_no_fault(tmp_path):
    rows = healthy_rows(2, 4)
    for rank in range(2):
        rows = silenced(rows, rank=rank, steps=[2])
    assert worker_silent.check(write_run(tmp_path, rows)) == []


def test_a_parameter_that_one_rank_never_trains(tmp_path):
    rows = without(healthy_rows(3, 4), 3, present=lambda step, rank: rank != 2)
    (finding,) = worker_silent.check(write_run(tmp_path, rows))

    assert (finding.severity, finding.ranks, finding.false_alarm_rate) == ("warning", (2,), 0.0)
    assert finding.sites == ("0.0/r2/grad/head#0:out0",)
    assert finding.claim == "Rank 2 never had a gradient of 1 parameter that other ranks had: head."


def test_a_gradient_of_zero_counts_as_none(tmp_path):
    rows = healthy_rows(2, 5)
    for (_, rank), row in rows.items():
        if rank:
            row["param_grad_norms"][1:3] = 0.0
    (finding,) = worker_silent.check(write_run(tmp_path, rows))
    assert finding.evidence["params"] == ["blocks.0.weight", "blocks.0.bias"]


def test_two_steps_are_too_few(tmp_path):
    rows = without(healthy_rows(3, 2), 3, present=lambda step, rank: rank != 2)
    assert worker_silent.check(write_run(tmp_path, rows)) == []


@pytest.mark.parametrize("num_steps", [3, 12])
def test_routing_that_left_one_rank_out_so_far_is_silent(tmp_path, num_steps):
    """One expert was never routed to on rank 1, others now and then: as likely as not in a few steps."""
    rows = without(healthy_rows(2, num_steps), 3, present=lambda step, rank: rank == 0)
    rows = without(rows, 1, present=lambda step, rank: (step + rank) % 3 > 0)
    assert worker_silent.check(write_run(tmp_path, rows)) == []


def test_routing_that_leaves_one_rank_out_for_ever_is_found(tmp_path):
    rows = without(healthy_rows(4, 20), 3, present=lambda step, rank: rank != 1)
    rows = without(rows, 1, present=lambda step, rank: (step + rank) % 3 > 0)
    (finding,) = worker_silent.check(write_run(tmp_path, rows))
    assert (finding.ranks, finding.false_alarm_rate) == ((1,), 1e-6)


def test_parameters_frozen_or_unused_everywhere_are_silent(tmp_path):
    rows = without(healthy_rows(3, 6), 0, present=lambda step, rank: False)
    assert worker_silent.check(write_run(tmp_path, rows)) == []


def test_other_parameters_on_each_rank_are_not_compared(tmp_path):
    rows = without(healthy_rows(2, 6), 3, present=lambda step, rank: rank == 0)
    envs = {rank: rank_env(rank, 2, params=[f"{name}.{rank}" for name in PARAMS]) for rank in range(2)}
    assert worker_silent.check(write_run(tmp_path, rows, envs=envs)) == []


def test_a_rank_that_died_is_not_silent(tmp_path):
    rows = {key: row for key, row in healthy_rows(3, 8).items() if key[1] != 2 or key[0] < 3}
    assert worker_silent.check(write_run(tmp_path, rows)) == []


def test_healthy_rows_are_silent(tmp_path):
    assert worker_silent.check(write_run(tmp_path, healthy_rows(4, 6))) == []


def test_without_gradients_it_cannot_tell(tmp_path):
    rows = {key: {"loss": 1.0} for key in healthy_rows(2, 2)}
    with pytest.raises(CannotTell, match="gradient norms of two workers"):
        worker_silent.check(write_run(tmp_path, rows))


def test_routing_that_treats_workers_alike_does_not_alarm():
    """Rarely used experts, 300 jobs of 60 steps with 2 workers and 64 parameters: the rule of three steps would fire
    in most.
    """
    rng = np.random.default_rng(0)
    fired = naive = 0
    for _ in range(300):
        has_TNP = rng.random((60, 2, 64)) < 0.05
        some_TP = has_TNP.any(axis=1) & ~has_TNP.all(axis=1)
        naive += bool(np.any(~has_TNP.any(axis=0) & (some_TP.sum(axis=0) >= 3)))
        fired += bool(np.any(silent_params(has_TNP)[0]))
    assert (fired, naive > 100) == (0, True)
