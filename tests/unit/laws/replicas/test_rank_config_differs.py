"""rank-config-differs: settings that must agree do; what tells ranks apart by nature may differ."""

import pytest
from tests.unit.healthy_run import PARAMS, healthy_rows, rank_env, write_run

from trueline.laws.replicas import rank_config_differs
from trueline.schema.errors import CannotTell


def checked(tmp_path, rows, num_ranks, odd, **changes):
    envs = {rank: rank_env(rank, num_ranks, **(changes if rank == odd else {})) for rank in range(num_ranks)}
    return rank_config_differs.check(write_run(tmp_path, rows, envs=envs))


def test_a_learning_rate_that_differs_on_one_rank(tmp_path):
    rows = healthy_rows(4, 3)
    for (_, rank), row in rows.items():
        if rank == 2:
            row |= {"lr": [2e-3], "optimizer_digest": 78}
    optimizer = {"class": "AdamW", "groups": [{"lr": 2e-3, "weight_decay": 0.01, "num_params": 4}]}
    (finding,) = checked(tmp_path, rows, 4, 2, optimizer=optimizer)

    assert (finding.severity, finding.ranks, finding.step_first, finding.step_last) == ("error", (2,), 0, 2)
    assert finding.sites == ("0.0/r2/opt/lr#0:out0",)
    assert "lr is [0.002] on rank 2 and [0.001] on ranks 0, 1 and 3" in finding.claim
    assert finding.measured == 1.0


def test_a_scheduler_that_parts_later_names_the_step(tmp_path):
    rows = healthy_rows(2, 8)
    for (step, rank), row in rows.items():
        if step >= 5:
            row |= {"lr": [1e-3 / (step + rank)], "optimizer_digest": 100 * step + rank}
    (finding,) = checked(tmp_path, rows, 2, -1)
    assert (finding.ranks, finding.step_first, finding.step_last) == ((0, 1), 5, 7)


def test_schedules_that_agree_are_silent(tmp_path):
    rows = healthy_rows(2, 8)
    for (step, _), row in rows.items():
        row |= {"lr": [1e-3 / (step + 1)], "optimizer_digest": 100 * step}
    assert checked(tmp_path, rows, 2, -1) == []


def test_weight_decay_is_told_from_the_environment_file(tmp_path):
    rows = healthy_rows(3, 3)
    for (_, rank), row in rows.items():
        row["optimizer_digest"] += int(rank == 1)
    optimizer = {"class": "AdamW", "groups": [{"lr": 1e-3, "weight_decay": 0.1, "num_params": 4}]}
    (finding,) = checked(tmp_path, rows, 3, 1, optimizer=optimizer)

    assert finding.ranks == (1,)
    assert "groups[0].weight_decay is 0.1 on rank 1 and 0.01 on ranks 0 and 2" in finding.claim


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"param_dtypes": ["torch.bfloat16"] * len(PARAMS)}, "dtype of embed"),
        ({"autocast": {"cuda": "torch.bfloat16"}}, "autocast"),
        ({"requires_grad": [False, True, True, True]}, "requires_grad of embed"),
    ],
)
def test_precision_is_an_error(tmp_path, changes, text):
    (finding,) = checked(tmp_path, healthy_rows(3, 3), 3, 2, **changes)
    assert (finding.severity, finding.ranks, finding.step_first) == ("error", (2,), 0)
    assert text in finding.claim


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"versions": {"python": "3.11.9", "torch": "2.12.0"}}, "version of torch"),
        ({"flags": {"cudnn_benchmark": True}}, "flag cudnn_benchmark"),
        ({"environ": {"RANK": "0", "NCCL_ALGO": "Tree"}}, "$NCCL_ALGO"),
    ],
)
def test_environment_is_a_warning(tmp_path, changes, text):
    (finding,) = checked(tmp_path, healthy_rows(3, 3), 3, 0, **changes)
    assert (finding.severity, finding.ranks) == ("warning", (0,))
    assert text in finding.claim


def test_what_tells_ranks_apart_by_nature_is_silent(tmp_path):
    names = ("LOCAL_RANK", "SLURM_PROCID", "HOSTNAME", "CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME")
    envs = {
        rank: rank_env(rank, 3, hostname=f"h{rank}", environ={**dict.fromkeys(names, f"x{rank}"), "MY_SLOT": str(rank)})
        for rank in range(3)
    }
    assert rank_config_differs.check(write_run(tmp_path, healthy_rows(3, 3), envs=envs)) == []


def test_stages_with_other_parameters_are_not_compared(tmp_path):
    rows = healthy_rows(2, 3)
    for (_, rank), row in rows.items():
        row |= {"lr": [1e-3, 1e-4][: 1 + rank], "optimizer_digest": rank}
    assert checked(tmp_path, rows, 2, 1, params=["other"], param_dtypes=["torch.bfloat16"], requires_grad=[True]) == []


def test_one_worker_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="one worker"):
        checked(tmp_path, healthy_rows(1, 2), 1, -1)
