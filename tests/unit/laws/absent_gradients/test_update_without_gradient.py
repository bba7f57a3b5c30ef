"""update-without-gradient: updates that no parameter has a gradient for, and that change nothing."""

import json

import numpy as np
import pytest
from tests.unit.healthy_run import PARAMS, healthy_rows, write_run

from trueline.laws.absent_gradients import update_without_gradient
from trueline.schema.errors import CannotTell


def updates(num_ranks, num_steps, *, cleared, lr=1e-3):
    """Rows with an update at each step; where ``cleared(step, rank)`` it has no gradient, and nothing changes."""
    rows = healthy_rows(num_ranks, num_steps)
    still = np.arange(1, len(PARAMS) + 1, dtype=np.uint64)
    for (step, rank), row in rows.items():
        row |= {"update_facts": json.dumps({"optimizer": "torch.optim.sgd.SGD"}), "passes_begun": 1, "lr": [lr]}
        if cleared(step, rank):
            row |= {"grad_norm": None, "param_grad_norms": None, "group_grad_norms": None, "param_digests": still}
    return rows


def test_updates_without_a_gradient_since_the_start(tmp_path):
    run = write_run(tmp_path, updates(2, 6, cleared=lambda step, rank: True))
    (finding,) = update_without_gradient.check(run)

    assert (finding.severity, finding.ranks, finding.step_first, finding.step_last) == ("error", (0, 1), 0, 4)
    assert finding.claim == (
        "No parameter had a gradient when SGD made its updates on ranks 0 and 1 at steps 0-4, and none of them changed."
    )
    assert finding.false_alarm_rate == 0.0


def test_from_a_step_on_on_one_rank(tmp_path):
    rows = updates(2, 8, cleared=lambda step, rank: rank == 1 and step >= 3)
    (finding,) = update_without_gradient.check(write_run(tmp_path, rows))
    assert (finding.ranks, finding.step_first, finding.step_last) == ((1,), 3, 6)


@pytest.mark.parametrize(
    ("why", "cleared", "change"),
    [
        ("a gradient at the last update", lambda step, rank: step != 4, {}),
        ("two updates alone", lambda step, rank: step >= 3, {}),
        ("a rate of 0", lambda step, rank: True, {"lr": [0.0]}),
        ("no backward pass", lambda step, rank: True, {"passes_begun": 0}),
    ],
)
def test_is_silent_on(tmp_path, why, cleared, change):
    rows = updates(1, 6, cleared=cleared)
    for row in rows.values():
        row.update(change)
    assert update_without_gradient.check(write_run(tmp_path, rows)) == [], why


def test_is_silent_where_parameters_change(tmp_path):
    rows = updates(1, 6, cleared=lambda step, rank: True)
    for (step, _), row in rows.items():
        row["param_digests"] = row["param_digests"] + np.uint64(step)
    assert update_without_gradient.check(write_run(tmp_path, rows)) == []


def test_cannot_tell_without_a_sampled_update(tmp_path):
    with pytest.raises(CannotTell, match="no update of an optimizer was sampled"):
        update_without_gradient.check(write_run(tmp_path, healthy_rows(1, 4)))


def test_forward_passes_count_where_no_backward_pass_comes_to_the_model(tmp_path):
    rows = updates(1, 6, cleared=lambda step, rank: True)
    for row in rows.values():
        row |= {"passes_begun": None, "num_micro": 2}
    (finding,) = update_without_gradient.check(write_run(tmp_path, rows))
    assert finding.step_last == 4


def test_cannot_tell_where_nobody_looked_at_gradients(tmp_path):
    rows = updates(1, 6, cleared=lambda step, rank: True)
    for (step, _), row in rows.items():
        row |= {"passes_begun": None, "num_micro": 1, "param_digests": row["param_digests"] + np.uint64(step)}
    with pytest.raises(CannotTell, match="no gradient and no backward pass was looked at"):
        update_without_gradient.check(write_run(tmp_path, rows))
