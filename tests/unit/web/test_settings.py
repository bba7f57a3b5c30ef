"""Settings that ranks differ in are those of one step, and only the leaf that differs is shown."""

from tests.unit.healthy_run import healthy_rows, rank_env, write_run

from trueline.web.judging import JudgeHere
from trueline.web.views.settings import settings_of
from trueline.web.watched_run import WatchedRun


def shown(path, rates, digests):
    """What is shown of a Run of two ranks whose rate warms up, of which each wrote its own at a moment of its own."""
    rows = healthy_rows(2, 4)
    for (step, rank), row in rows.items():
        row |= {"lr": [rates[rank] * (step + 1)], "optimizer_digest": digests[rank] + step}
    groups = [{"lr": rate, "weight_decay": 0.01, "num_params": 4} for rate in (2e-4, 1e-4)]
    envs = {rank: rank_env(rank, 2, optimizer={"class": "AdamW", "groups": [groups[rank]]}) for rank in range(2)}
    run = write_run(path, rows, envs=envs)
    return settings_of(WatchedRun(run.path, "run", None, JudgeHere())).within


def test_rates_of_a_warm_up_that_ranks_wrote_at_other_steps_do_not_differ(tmp_path):
    assert shown(tmp_path / "run", (1e-4, 1e-4), (7, 7)) == ()


def test_rates_of_one_step_that_differ_are_shown_with_that_step(tmp_path):
    (row,) = shown(tmp_path / "run", (1e-4, 3e-4), (7, 70))
    assert (row.key, row.values) == ("lr of group 0 at step 0", (("rank 0", "0.0001"), ("rank 1", "0.0003")))
