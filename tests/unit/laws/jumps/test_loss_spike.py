"""loss-spike: the step at which the loss of the whole run jumps; what is asked for, or small, is silent."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from tests.unit.healthy_run import PARAMS, write_run, write_starts

import trueline
from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.laws.jumps import loss_spike
from trueline.laws.jumps.run_series import WholeRun
from trueline.schema.errors import CannotTell


def losses(num_steps=160, *, at=None, fold=4.0, length=1, seed=3):
    rng = np.random.default_rng(seed)
    loss_T = (2 + np.exp(-np.arange(num_steps) / 40)) * np.exp(0.03 * rng.standard_normal(num_steps))
    if at is not None:
        loss_T[at : at + length] *= fold
    return loss_T


def series(loss_T, **changes):
    return WholeRun(steps=np.arange(len(loss_T)), ranks=(0, 1), loss=loss_T, **changes)


def judge(whole):
    return loss_spike.judge(whole, AlarmBudget())


def rows(loss_T, *, ranks=2, **columns):
    """Rows of workers whose mean loss is ``loss_T``; a column is a function of the step."""
    return {
        (step, rank): {
            "loss": float(loss) + (0.2 if rank else -0.2) * (ranks > 1),
            **{name: value(step) for name, value in columns.items()},
        }
        for step, loss in enumerate(loss_T)
        for rank in range(ranks)
    }


def test_a_jump_of_the_mean_loss_is_told_from_a_run(tmp_path):
    run = write_run(tmp_path, rows(losses(at=120, length=3), lr=lambda step: [1e-3]))
    (finding,) = loss_spike.check(run)
    level = float(np.exp(np.median(np.log(losses()[104:120]))))
    assert (finding.code, finding.severity, finding.ranks) == ("loss-spike", "warning", (0, 1))
    assert (finding.step_first, finding.step_last) == (120, 122)
    assert finding.expected == pytest.approx(level)
    assert finding.measured == pytest.approx(float(losses(at=120, length=3)[120:123].max()))
    assert finding.false_alarm_rate < 1e-3
    assert finding.sites[0] == "120.0/r0/loss/loss#0:out0"
    assert finding.claim.startswith("The mean loss of 2 workers jumped from 2.0")
    assert " at step 120, " in finding.claim
    assert finding.claim.endswith(" times its usual spread, and came back after step 122.")


LEFT, FIRST, OTHER = (np.arange(len(PARAMS), dtype=np.uint64) + base for base in (100, 200, 300))
"""Digests of all parameters: as a start leaves them, as the job first begins, and neither."""


def started_twice(path, begun, *, at=100, jumps=True):
    """A job whose loss jumps once, and is started again at step ``at``, where its weights are ``begun`` and its loss
    jumps.
    """
    loss_T = losses(at=at if jumps else None)
    loss_T[80] *= 4
    all_rows = rows(loss_T, ranks=1)
    all_rows[0, 0]["param_digests"], all_rows[at, 0]["param_digests"] = FIRST, begun
    all_rows[at - 1, 0]["closing_digests"] = LEFT
    before = {key: row for key, row in all_rows.items() if key[0] < at}
    return write_starts(path, [(0, before), (at, {key: row for key, row in all_rows.items() if key[0] >= at})])


@pytest.mark.parametrize(
    ("begun", "kind", "said"),
    [
        (LEFT, "weights-kept", "Its weights are as the start before had left them."),
        (FIRST, "weights-other", "not as the start before had left them, but those that it first began with."),
        (OTHER, "weights-other", "Its weights are not as the start before had left them."),
        (np.concatenate([LEFT[:1], OTHER[1:]]), "weights-other", "and head are not as the start before had left them."),
    ],
)
def test_a_jump_where_the_job_was_started_again_says_whether_its_weights_are_those_that_were_left(
    tmp_path, begun, kind, said
):
    earlier, jump = loss_spike.check(started_twice(tmp_path, begun))
    assert (earlier.step_first, earlier.evidence["kind"]) == (80, ["within-start"])
    assert (jump.step_first, jump.evidence["kind"]) == (100, ["at-restart", kind])
    assert "The job was started again at step 100." in jump.claim
    assert jump.claim.endswith(said)
    cause = next(v for v in trueline.diagnose(tmp_path).verdicts if v.incident == 1)
    assert cause.cause == ("weights-not-restored" if kind == "weights-other" else "unknown")


@pytest.mark.parametrize(("jump", "kinds"), [(100, "states-gone"), (105, "states-gone"), (120, "within-start")])
def test_a_jump_soon_after_a_start_without_states_of_the_optimizer(tmp_path, jump, kinds):
    all_rows = rows(losses(at=jump), ranks=1)
    all_rows[0, 0]["param_digests"], all_rows[100, 0]["param_digests"] = FIRST, LEFT
    all_rows[99, 0] |= {"closing_digests": LEFT, "closing_states": json.dumps({"exp_avg": {"head": "01"}})}
    starts = [{key: row for key, row in all_rows.items() if (key[0] >= 100) == is_later} for is_later in (False, True)]
    (finding,) = loss_spike.check(write_starts(tmp_path, [(0, starts[0]), (100, starts[1])]))
    assert finding.evidence["kind"][-1] == kinds
    (said,) = trueline.diagnose(tmp_path).verdicts
    assert (said.cause == "optimizer-state-lost") == (kinds == "states-gone")


def test_a_jump_after_a_start_that_has_its_states(tmp_path):
    all_rows = rows(losses(at=105), ranks=1)
    states = json.dumps({"exp_avg": {"head": "01"}})
    all_rows[100, 0] |= {"param_digests": LEFT, "opening_states": states}
    all_rows[99, 0] |= {"closing_digests": LEFT, "closing_states": states}
    starts = [{key: row for key, row in all_rows.items() if (key[0] >= 100) == is_later} for is_later in (False, True)]
    (finding,) = loss_spike.check(write_starts(tmp_path, [(0, starts[0]), (100, starts[1])]))
    assert finding.evidence["kind"] == ["within-start"]


def test_other_weights_at_a_start_without_a_jump_are_no_finding(tmp_path):
    assert [finding.step_first for finding in loss_spike.check(started_twice(tmp_path, OTHER, jumps=False))] == [80]


def test_one_process_has_a_loss_not_a_mean(tmp_path):
    (finding,) = loss_spike.check(write_run(tmp_path, rows(losses(at=120), ranks=1)))
    assert finding.claim.startswith("The loss jumped")


def test_several_jumps_are_one_finding():
    loss_T = losses(num_steps=300, at=120)
    loss_T[180] *= 4
    (finding,) = judge(series(loss_T))
    assert [spike["step"] for spike in finding.evidence["spikes"]] == [120, 180]
    assert "; it jumped once more, at step 180" in finding.claim


def test_a_loss_that_stays_up_has_not_come_back():
    (finding,) = judge(series(losses(at=120, length=40)))
    assert finding.claim.endswith("had not come back by step 159.")


def test_the_line_is_half_of_the_promise():
    """Of jumps of growing size, the first that is told has just less than the probability that was promised."""
    log_line = math.log(0.1 / 10_000 / 2)
    sizes = [
        findings[0] for fold in np.geomspace(1.3, 3, 200) if (findings := judge(series(losses(at=120, fold=fold))))
    ]
    log_p = sizes[0].evidence["spikes"][0]["log_p"]
    assert log_line - 0.5 < log_p <= log_line


def test_a_healthy_loss_and_a_jump_of_less_than_a_quarter_are_silent():
    assert judge(series(losses(num_steps=2000))) == []
    quiet = np.exp(1e-4 * np.random.default_rng(0).standard_normal(160))
    quiet[120] *= 1.2
    assert judge(series(quiet)) == []
    quiet[120] *= 1.1
    assert len(judge(series(quiet))) == 1


@pytest.mark.parametrize(
    "change", [{"lr": lambda s: [1e-3 if s < 120 else 1.3e-3]}, {"num_micro": lambda s: 1 + (s >= 120)}]
)
def test_a_jump_where_the_schedule_asks_for_one_is_silent(tmp_path, change):
    assert loss_spike.check(write_run(tmp_path, rows(losses(at=120, length=40), **change))) == []


def test_single_steps_of_two_batches_leave_the_past_as_it_was(tmp_path):
    """A gradient scaler leaves out an update now and then: the next step is of two batches, and its loss is twice."""
    loss_T = losses(at=120)
    loss_T[5::20] *= 2
    two = {"num_micro": lambda step: 1 + (step % 20 == 5)}
    (finding,) = loss_spike.check(write_run(tmp_path / "spike", rows(loss_T, **two)))
    assert (finding.step_first, finding.step_last) == (120, 120)
    loss_T[120] /= 4
    assert loss_spike.check(write_run(tmp_path / "healthy", rows(loss_T, **two))) == []


def test_a_learning_rate_that_falls_or_rises_slowly_is_no_excuse(tmp_path):
    lr = lambda step: [1e-3 * 1.1 ** min(step, 50) * (0.1 if step >= 100 else 1)]  # noqa: E731
    assert len(loss_spike.check(write_run(tmp_path, rows(losses(at=120), lr=lr)))) == 1


def test_a_step_with_less_than_half_of_the_tokens_is_not_judged(tmp_path):
    few = {"tokens": lambda step: 10.0 if step == 120 else 64.0}
    assert loss_spike.check(write_run(tmp_path / "few", rows(losses(at=120), **few))) == []
    half = {"tokens": lambda step: 32.0 if step == 120 else 64.0}
    assert len(loss_spike.check(write_run(tmp_path / "half", rows(losses(at=120), **half)))) == 1


def test_steps_at_which_a_worker_has_no_finite_loss_are_left_out(tmp_path):
    loss_rows = rows(losses(at=120))
    loss_rows[120, 1]["loss"] = math.nan
    assert loss_spike.check(write_run(tmp_path, loss_rows)) == []


def test_a_run_without_steps_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="no step of this Run has one of all workers"):
        loss_spike.check(write_run(tmp_path, {}))


def test_too_few_steps_and_no_positive_loss_cannot_tell():
    takes = "it takes 48 steps before one can be compared with them, and this Run has"
    with pytest.raises(CannotTell, match=rf"{takes} 48 and none after them$"):
        judge(series(losses(num_steps=48)))
    # those alone that are compared with each other are counted: 60 are more than it takes
    with pytest.raises(CannotTell, match=rf"{takes} 38 in one stretch: the learning rate .* jumps, last at step 52$"):
        judge(replace(series(losses(num_steps=60)), starts=(14, 52)))
    with pytest.raises(CannotTell, match="it needs a loss above zero"):
        judge(series(-losses()))
    partly = losses(num_steps=200)
    partly[40:] *= -1
    with pytest.raises(CannotTell, match=r"this Run has 40 with a loss above zero among its 200$") as error:
        judge(series(partly))
    assert error.value.reason == "no-data"
