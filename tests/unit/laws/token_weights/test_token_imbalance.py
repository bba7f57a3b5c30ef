"""token-imbalance: far too unequal counts under equal weights are found; weighted averages, ordinary counts are not."""

from dataclasses import replace

import numpy as np
import pytest
from tests.unit.healthy_run import healthy_rows, rank_env, write_run

from trueline.judge.stats.alarm_budget import AlarmBudget
from trueline.laws.token_weights import token_imbalance
from trueline.laws.token_weights.token_imbalance import log_noise_e_values, noise_factors
from trueline.laws.unlike_workers.series import WorkerSeries
from trueline.schema.errors import CannotTell

BUDGET = AlarmBudget()


def _counts(num_steps, num_workers, *, sigma, seed=0):
    return np.ceil(np.exp(np.random.default_rng(seed).normal(6, sigma, (num_steps, num_workers))))


def _eighth(num_steps, num_workers, *, sigma=0.0):
    counts = _counts(num_steps, num_workers, sigma=sigma)
    counts[:, -1] /= 8
    return counts


def _trained(tokens, *, weighted, signal=1.0, loss="as trained", norms=True, **changes):
    """Series of workers whose tokens pull ``signal`` one way and 30 each its own; losses are noisy means over tokens.

    Weighted workers' gradients are sums over the mean count. ``loss`` says whether that is recorded, too.
    """
    rng = np.random.default_rng(4)
    share = tokens / tokens.mean(axis=1, keepdims=True)
    losses = np.abs(2 + 4 * rng.standard_normal(tokens.shape) / np.sqrt(tokens))
    log_norm = np.log(signal**2 + 30**2 / tokens) / 2 + 0.1 * rng.standard_normal(tokens.shape)
    if weighted:
        log_norm += np.log(share)
        losses *= share if loss == "as trained" else 1
    facts = {
        "steps": np.arange(len(tokens)),
        "ranks": tuple(range(tokens.shape[1])),
        "loss": losses if loss != "none" else np.full(tokens.shape, np.nan),
        "log_norm": log_norm if norms else np.full(tokens.shape, np.nan),
        "cosine": np.full(tokens.shape, np.nan),
        "tokens": tokens,
    }
    return WorkerSeries(**{**facts, **changes})


@pytest.mark.parametrize("workers", [2, 4, 8])
@pytest.mark.parametrize("sigma", [0.0, 0.5])
def test_an_eighth_of_the_tokens_on_one_rank_is_found_within_forty_steps(workers, sigma):
    tokens = _eighth(40, workers, sigma=sigma)
    (finding,) = token_imbalance.judge(_trained(tokens, weighted=False), BUDGET)

    assert (finding.code, finding.severity, finding.ranks) == ("token-imbalance", "warning", (workers - 1,))
    assert finding.step_first <= 3
    share = 0.125 / (workers - 0.875)
    assert finding.measured == pytest.approx(1 / (workers * share), rel=0.15)
    assert finding.evidence["misplaced_weight"] == pytest.approx(1 / workers - share, rel=0.15)
    assert finding.false_alarm_rate < 1e-3
    assert finding.claim.startswith(f"A token on rank {workers - 1} counts ")


@pytest.mark.parametrize("since", [25, 40, 80])
@pytest.mark.parametrize("workers", [2, 4])
def test_a_lasting_imbalance_is_dated_from_where_it_begins(workers, since):
    tokens = _counts(since + 60, workers, sigma=0.5)
    tokens[since:, -1] /= 8
    (finding,) = token_imbalance.judge(_trained(tokens, weighted=False), BUDGET)
    low, high = finding.evidence["onset_interval"]
    assert low <= since <= high <= low + 4
    assert f"since step {finding.step_first}" in finding.claim


@pytest.mark.parametrize(("workers", "within"), [(2, 60), (4, 25), (8, 15), (32, 12)])
def test_wild_counts_are_found_and_the_noise_measured(workers, within):
    tokens = _counts(within, workers, sigma=1.5)
    (finding,) = token_imbalance.judge(_trained(tokens, weighted=False), BUDGET)
    assert finding.ranks == tuple(range(workers))
    assert finding.measured == pytest.approx(noise_factors(tokens).mean(), rel=0.4)
    assert "times that of the mean over all tokens" in finding.claim


@pytest.mark.parametrize("signal", [0.1, 10.0])
@pytest.mark.parametrize("tokens", [_eighth(60, 4), _counts(60, 4, sigma=1.5)])
@pytest.mark.parametrize("loss", ["as trained", "means", "none"])
def test_gradients_decide_how_workers_are_averaged(tokens, signal, loss):
    """Whether tokens pull together or each its own way, and whatever loss was recorded."""
    kinds = {"signal": signal, "loss": loss}
    assert len(token_imbalance.judge(_trained(tokens, weighted=False, **kinds), BUDGET)) == 1
    assert token_imbalance.judge(_trained(tokens, weighted=True, **kinds), BUDGET) == []


def test_without_gradients_losses_decide_unless_they_were_given():
    tokens = _eighth(60, 4)
    plain, weighted = (_trained(tokens, weighted=each, norms=False) for each in (False, True))
    assert len(token_imbalance.judge(plain, BUDGET)) == 1
    assert token_imbalance.judge(weighted, BUDGET, loss_is_local=False) == []
    with pytest.raises(CannotTell, match="neither gradient norms nor losses say"):
        token_imbalance.judge(plain, BUDGET, loss_is_local=False)


def test_sums_in_the_loss_and_means_in_the_gradient_cannot_be_told():
    tokens = _eighth(60, 4)
    series = _trained(tokens, weighted=False)
    series.loss[:] = series.loss * tokens
    with pytest.raises(CannotTell, match="losses grow with the tokens of a worker, and gradient norms do not"):
        token_imbalance.judge(series, BUDGET)


def test_a_reduction_that_may_weight_cannot_be_told():
    with pytest.raises(CannotTell, match="the reduction is code that may weight workers"):
        token_imbalance.judge(_trained(_eighth(60, 4), weighted=False), BUDGET, reduction_known=False)


def test_gradients_alone_say_that_weights_are_equal():
    assert token_imbalance.judge(_trained(_eighth(60, 4), weighted=False, loss="none"), BUDGET) != []


@pytest.mark.parametrize("workers", [2, 4, 16])
def test_equal_and_ordinary_counts_are_silent(workers):
    assert token_imbalance.judge(_trained(np.full((300, workers), 64.0), weighted=False), BUDGET) == []
    assert token_imbalance.judge(_trained(_counts(2000, workers, sigma=0.5), weighted=False), BUDGET) == []


def test_uneven_last_batches_are_silent():
    tokens, samples = np.full((200, 4), 64.0), np.full((200, 4), 8.0)
    tokens[9::10, 3], samples[9::10, 3] = 8.0, 1.0
    assert token_imbalance.judge(_trained(tokens, weighted=False, samples=samples), BUDGET) == []


def test_healthy_counts_keep_the_promise():
    """The share is a twelfth of one alarm per 10,000 steps; 60,000 steps in runs of 300. More than 4 have a probability
    of 2e-4.
    """
    found = 0
    for seed in range(200):
        series = _trained(_counts(300, 2 + seed % 4, sigma=0.5, seed=seed), weighted=False)
        found += bool(token_imbalance.judge(series, BUDGET))
    assert found <= 4


def test_a_lasting_but_small_difference_is_silent():
    tokens = _counts(2000, 4, sigma=0.3)
    tokens[:, 2] *= 0.8
    assert token_imbalance.judge(_trained(tokens, weighted=False), BUDGET) == []


def test_evidence_starts_where_the_tokens_vanish():
    tokens = _counts(200, 4, sigma=0.3)
    tokens[120:, 1] /= 8
    (finding,) = token_imbalance.judge(_trained(tokens, weighted=False), BUDGET)
    assert 116 <= finding.step_first <= 124


def test_a_worker_without_tokens_at_a_step_is_not_counted():
    tokens = np.full((60, 4), 64.0)
    tokens[:, 2] = 0
    series = replace(_trained(np.full((60, 4), 64.0), weighted=False), tokens=tokens)
    assert token_imbalance.judge(series, BUDGET) == []


def test_groups_that_are_meant_to_differ_are_judged_apart():
    tokens = np.full((60, 4), 64.0)
    tokens[:, 2:] = 8
    assert token_imbalance.judge(_trained(tokens, weighted=False, declared=((0, 1), (2, 3))), BUDGET) == []


def test_noise_bets_win_nothing_while_the_factor_is_ordinary():
    """Log-normal counts with exactly 1.5 in the mean: the mean of e is 1, within six standard errors."""
    sigma = np.sqrt(np.log(1 + 0.5 / (1 - 1 / 4)))
    factors = noise_factors(np.exp(np.random.default_rng(0).normal(0, sigma, (100_000, 4))))
    e = np.exp(log_noise_e_values(factors))
    np.testing.assert_array_less(np.abs(e.mean(axis=0) - 1), 6 * e.std(axis=0) / np.sqrt(len(e)))


def test_few_steps_cannot_tell_and_say_how_many_can():
    with pytest.raises(CannotTell, match=r"6 steps have token counts of 2 workers, which differ, and 20 are needed"):
        token_imbalance.judge(_trained(_eighth(6, 2), weighted=False), AlarmBudget(false_alarms=1.0))


def test_without_counts_it_cannot_tell():
    series = replace(_trained(_eighth(30, 2), weighted=False), tokens=np.full((30, 2), np.nan))
    with pytest.raises(CannotTell, match="token counts of two workers"):
        token_imbalance.judge(series, BUDGET)


def test_a_healthy_run_is_silent(tmp_path):
    assert token_imbalance.check(write_run(tmp_path, healthy_rows(4, 30))) == []


@pytest.mark.parametrize(
    ("env", "noun"), [({}, "token"), ({"token_source": "samples"}, "sample"), ({"reduce_known": False}, None)]
)
def test_a_run_of_unequal_counts_is_found_unless_its_reduction_is_unknown(tmp_path, env, noun):
    rows = healthy_rows(4, 30)
    for (_, rank), row in rows.items():
        row["tokens"] = 2.0 if rank == 3 else 16.0
    run = write_run(tmp_path, rows, envs={rank: rank_env(rank, 4, **env) for rank in range(4)})
    if noun is None:
        with pytest.raises(CannotTell, match="may weight workers"):
            token_imbalance.check(run)
        return
    (finding,) = token_imbalance.check(run)
    assert finding.claim.startswith(f"A {noun} on rank 3 counts 6.2 times what it should since step 0")


def test_given_losses_without_gradients_cannot_be_told_in_a_run(tmp_path):
    rows = {key: {"loss": 1.0 + 0.01 * sum(key), "tokens": 2.0 if key[1] else 16.0} for key in healthy_rows(2, 40)}
    given = {rank: rank_env(rank, 2, loss_source="given") for rank in range(2)}
    with pytest.raises(CannotTell, match="neither gradient norms nor losses"):
        token_imbalance.check(write_run(tmp_path / "given", rows, envs=given))
    output = {rank: rank_env(rank, 2, loss_source="output") for rank in range(2)}
    assert len(token_imbalance.check(write_run(tmp_path / "output", rows, envs=output))) == 1
