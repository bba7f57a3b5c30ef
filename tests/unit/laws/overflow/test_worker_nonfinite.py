"""worker-nonfinite: the first step and rank with NaN or infinity before any reduction."""

import math
import re

import pytest
from tests.unit.healthy_run import healthy_rows, rank_env, write_run

from trueline.laws.overflow import worker_nonfinite
from trueline.schema.errors import CannotTell


def test_a_loss_that_is_nan_on_one_rank(tmp_path):
    rows = healthy_rows(3, 6)
    rows[4, 1]["loss"] = math.nan
    (finding,) = worker_nonfinite.check(write_run(tmp_path, rows))

    assert (finding.severity, finding.ranks, finding.step_first, finding.step_last) == ("error", (1,), 4, 4)
    assert finding.sites == ("4.0/r1/loss/loss#0:out0",)
    assert finding.claim == "The loss of rank 1 is not finite at step 4."


def test_a_gradient_names_its_parameters(tmp_path):
    rows = healthy_rows(3, 6)
    rows[2, 2] |= {"grad_nonfinite": 1.0, "grad_norm": math.inf}
    rows[2, 2]["param_grad_norms"][[1, 3]] = [math.nan, math.inf]
    (finding,) = worker_nonfinite.check(write_run(tmp_path, rows))

    assert (finding.ranks, finding.step_first) == ((2,), 2)
    assert finding.evidence["params"] == ["blocks.0.weight", "head"]
    assert finding.sites[0] == "2.0/r2/grad/blocks.0.weight#0:out0"


def test_ranks_are_those_of_the_first_step(tmp_path):
    rows = healthy_rows(3, 6)
    rows[2, 0]["loss"] = math.inf
    for rank in range(3):
        rows[3, rank] |= {"loss": math.nan, "grad_nonfinite": 1.0}
    (finding,) = worker_nonfinite.check(write_run(tmp_path, rows))

    assert (finding.ranks, finding.step_first, finding.step_last) == ((0,), 2, 3)
    assert finding.evidence["first_step_by_rank"] == {"0": 2, "1": 3, "2": 3}


def test_all_ranks_at_once_are_all_named(tmp_path):
    rows = healthy_rows(2, 6)
    for rank in range(2):
        rows[5, rank] |= {"loss": math.nan, "grad_nonfinite": 1.0}
    (finding,) = worker_nonfinite.check(write_run(tmp_path, rows))

    assert (finding.severity, finding.ranks) == ("error", (0, 1))
    assert finding.claim.startswith("The loss and the gradient of ranks 0 and 1 are not finite at step 5")


@pytest.mark.parametrize("known_by", ["update", "digest", "nothing"])
def test_a_rank_whose_weights_were_spoilt_before_is_not_told_to_look_at_its_samples(tmp_path, known_by):
    rows = healthy_rows(3, 6)
    rows[4, 1]["loss"] = math.nan
    if known_by == "update":
        rows[3, 1]["used_param_norms"] = [1.0, math.nan, 1.0, 1.0]
    if known_by == "digest":
        rows[2, 1]["param_digests"] = rows[2, 1]["param_digests"] + 1
        for (step, _), row in rows.items():
            row |= {"param_digests": None} if step > 2 else {}
    (finding,) = worker_nonfinite.check(write_run(tmp_path, rows))
    assert finding.next[known_by == "nothing"].startswith(
        {
            "update": "The weights of rank 1 were not finite before step 4: its samples are not the reason.",
            "digest": "By digest rank 1 held other parameters than its replicas by step 4 already",
            "nothing": "Look at the samples that rank 1 read at step 4",
        }[known_by]
    )
    recorded = {"update": ["steps=3:4"], "digest": [], "nothing": ["steps=4:5"]}[known_by]
    assert re.findall(r"--set (steps=\S+) -- COMMAND", " ".join(finding.next)) == recorded


def test_one_process_alone_is_judged(tmp_path):
    rows = healthy_rows(1, 3)
    rows[1, 0]["loss"] = math.nan
    (finding,) = worker_nonfinite.check(write_run(tmp_path, rows))
    assert finding.ranks == (0,)


def test_absent_gradients_and_large_numbers_are_silent(tmp_path):
    rows = healthy_rows(2, 4)
    for row in rows.values():
        row["param_grad_norms"][0] = -1.0
        row["loss"] = 1e300
    assert worker_nonfinite.check(write_run(tmp_path, rows)) == []


@pytest.mark.parametrize(("steps", "severity"), [(16, "info"), (17, "error")])
def test_a_gradient_scaler_that_looks_for_its_scale_is_no_fault(tmp_path, steps, severity):
    rows = healthy_rows(2, 30)
    for step in range(steps):
        for rank in range(2):
            rows[step, rank]["grad_nonfinite"] = 1.0
    envs = {rank: rank_env(rank, 2, autocast={"cuda": "torch.float16"}) for rank in range(2)}
    (finding,) = worker_nonfinite.check(write_run(tmp_path, rows, envs=envs))
    assert finding.severity == severity


@pytest.mark.parametrize("autocast", [{}, {"cuda": "torch.bfloat16"}])
def test_without_float16_a_single_gradient_is_an_error(tmp_path, autocast):
    rows = healthy_rows(2, 4)
    rows[1, 0]["grad_nonfinite"] = 1.0
    envs = {rank: rank_env(rank, 2, autocast=autocast) for rank in range(2)}
    (finding,) = worker_nonfinite.check(write_run(tmp_path, rows, envs=envs))
    assert finding.severity == "error"


def test_a_loss_is_an_error_under_float16_too(tmp_path):
    rows = healthy_rows(2, 4)
    rows[1, 0]["loss"] = math.nan
    envs = {rank: rank_env(rank, 2, autocast={"cuda": "torch.float16"}) for rank in range(2)}
    (finding,) = worker_nonfinite.check(write_run(tmp_path, rows, envs=envs))
    assert finding.severity == "error"


@pytest.mark.parametrize(("num", "of_all", "severity"), [(16, True, "info"), (16, False, "error"), (17, True, "error")])
def test_updates_that_a_fused_optimizer_leaves_out_spoil_nothing(tmp_path, num, of_all, severity):
    rows = healthy_rows(2, 20)
    for step in range(num):
        rows[step, 1] |= {"loss": math.inf, "grad_nonfinite": 1.0}
        for rank in range(2):
            rows[step, rank]["update_left_out"] = float(of_all or step != 3)
    (finding,) = worker_nonfinite.check(write_run(tmp_path, rows))
    assert (finding.severity, "leave out all updates" in finding.claim) == (severity, of_all)


def test_nothing_measured_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="neither a loss nor a gradient"):
        worker_nonfinite.check(write_run(tmp_path, {(0, 0): {"tokens": 1.0}}))
