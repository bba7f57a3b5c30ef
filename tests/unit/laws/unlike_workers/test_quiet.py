"""Where no detector can have reached its threshold is known from numbers that further steps only add to."""

import math

import numpy as np
import pytest
from tests.following import assert_follows
from tests.synthetic_runs import write_run

from trueline.judge.follows import Stretch
from trueline.judge.stats import closest_pairs, persistence
from trueline.judge.stats.alarm_budget import alarm_budget_of
from trueline.judge.stats.exchangeability import log_detector, log_heights, scores
from trueline.laws.unlike_workers import outliers, quiet
from trueline.laws.unlike_workers.outliers import find_outliers
from trueline.laws.unlike_workers.quiet import Quiet
from trueline.laws.unlike_workers.quiet_sets import QuietOrder, QuietPairs, QuietTokens
from trueline.laws.unlike_workers.series import as_measured, lasting_weights, series_of
from trueline.store.reader import Run

QUANTITIES = ("loss", "norm", "direction")


def carried_after(quiet_in, run, part, carried):
    return quiet_in.advance(Stretch(run, part, part), carried)


@pytest.mark.parametrize("ratio", [1.0, 1.7, 6.0, 40.0])
@pytest.mark.parametrize("shift", [0.0, 0.4])
def test_what_evidence_is_divided_by_raises_a_detector_by_no_more_than_its_starts(ratio, shift):
    """Over seeds, workers and steps; also where a shift is allowed for."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        values_TN = rng.standard_t(3, size=(400, 4))
        values_TN[150:, 1] += shift
        z_TN = scores(values_TN)
        plain = np.maximum.accumulate(log_heights(z_TN), axis=0)
        bound = np.logaddexp(plain, np.log(np.arange(1, 401))[:, None])
        divided = log_heights(z_TN, dependence_N=ratio, allowance_TN=0.1 * rng.random((400, 4)))
        assert np.all(divided <= bound)
    assert ratio < 6 or np.any(divided > plain), "the starts are there for something"


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_what_is_carried_does_not_depend_on_the_stretches(tmp_path, quantity):
    run = Run(write_run(tmp_path / "run", num_steps=90))
    whole, series = carried_after(Quiet(quantity), run, run, {}), as_measured(run)
    carried = {}
    for begin, end in ((0, 10), (10, 60), (60, 90)):
        carried = carried_after(Quiet(quantity), run, run.between(begin, end), carried)
    assert carried.keys() == whole.keys()
    assert all(np.array_equal(carried[name], whole[name], equal_nan=True) for name in whole)
    values_TN = {"loss": series.loss, "norm": series.log_norm, "direction": series.cosine}[quantity]
    highest = log_heights(scores(values_TN))
    assert np.log(whole["highest 0"][0]) == pytest.approx(highest.max(axis=0))


@pytest.mark.parametrize("quiet_in", [QuietOrder(), QuietPairs(), QuietTokens()])
def test_what_is_carried_of_sets_does_not_depend_on_the_stretches(tmp_path, quiet_in):
    run = Run(write_run(tmp_path / "run", num_steps=90, change=tokens(lambda step, rank: 50 + (step * rank) % 7)))
    whole, carried = carried_after(quiet_in, run, run, {}), {}
    for begin, end in ((0, 10), (10, 60), (60, 90)):
        carried = carried_after(quiet_in, run, run.between(begin, end), carried)
    assert carried.keys() == whole.keys()
    assert all(np.array_equal(carried[name], whole[name], equal_nan=True) for name in whole)
    series = as_measured(run)
    if isinstance(quiet_in, QuietOrder):
        log_e_TB = persistence.log_e_values(scores(series.loss))
        assert float(whole["highest loss 0"]) == log_detector(log_e_TB).max()
    elif isinstance(quiet_in, QuietPairs):
        assert np.array_equal(np.log(whole["pairs 0"][0, -1]), closest_pairs.heights(series.loss[:, :, None]))
    else:
        unequal_T = series.tokens.min(axis=1) < series.tokens.max(axis=1)
        heights_TN = log_heights(scores(np.log(series.tokens[unequal_T])))
        assert np.log(whole["highest 0"].max()) == pytest.approx(heights_TN.max())


def high(since, rank=1, by=0.6):
    def change(step, rank_, row):
        if rank_ == rank and step >= since:
            row["loss"] += by

    return change


def documents(step, rank, row):
    """Each rank reads documents of 15 steps, which differ."""
    row["loss"] = 3 + 0.01 * row["loss"] + math.sin(7 * (step // 15) + 3 * rank + (step // 15) * rank)


def tokens(of):
    def change(step, rank, row):
        row["tokens"] = float(of(step, rank))

    return change


def fixed_shards(step, rank, row):
    row["epoch"] = step // 12
    row["sample_digests"] = [1 + rank * 1000 + step % 12]
    row["loss"] += 0.1 * ((rank * 7 + step % 12) % 5)


def uneven(step, rank, row):
    row["sample_digests"] = [step * 100 + rank * 10 + index for index in range(2 - (rank == 3 and step % 20 == 19))]


KINDS = {
    "high loss": high(40),
    "high at the end": high(112, by=2.0),
    "high in between": lambda step, rank, row: high(50, by=0.8)(step, rank, row) if step < 75 else None,
    "documents": documents,
    "equal tokens": tokens(lambda step, rank: 512 + step),
    "varying tokens": tokens(lambda step, rank: 500 + (step * 37 + rank * 101) % 97),
    "more tokens on one rank": tokens(lambda step, rank: 900 if rank == 2 else 300),
    "fixed shards": fixed_shards,
    "uneven last batches": uneven,
    "one rank without losses": lambda step, rank, row: row.pop("loss") if rank == 1 else None,
    "losses of one rank": lambda step, rank, row: row.pop("loss") if rank else None,
    "late": lambda step, rank, row: row.pop("loss") if step < 95 else None,
    "equal": lambda step, rank, row: row.update(loss=1 / (1 + step)),
    "not finite": lambda step, rank, row: row.update(loss=math.nan) if step == 30 else None,
}


@pytest.mark.in_turn
@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_said_of_workers_is_the_same_judged_whole_and_followed(tmp_path, kind, num_ranks):
    path = write_run(tmp_path / "run", num_ranks=num_ranks, num_steps=120, change=KINDS[kind])
    assert_follows(path, (25, 60, 110), steps=20)


def test_quiet_workers_are_known_as_such_and_others_are_not(tmp_path):
    silent = {}
    for name, change in {"healthy": None, "high": high(40), "tokens": KINDS["varying tokens"]}.items():
        run = Run(write_run(tmp_path / name, num_steps=120, change=change))
        silent[name] = Quiet("loss").conclude(run, carried_after(Quiet("loss"), run, run, {})) == []
        found = find_outliers(series_of(run), alarm_budget_of(run), "loss")
        assert bool(found) == (name == "high")
    assert silent == {"healthy": True, "high": False, "tokens": True}


def test_two_workers_have_no_direction_of_their_own(tmp_path):
    run = Run(write_run(tmp_path / "run", num_ranks=2, num_steps=60))
    assert carried_after(Quiet("direction"), run, run, {}) is None


def test_tokens_that_may_weigh_workers_are_not_taken_for_equal(tmp_path):
    run = Run(write_run(tmp_path / "run", num_steps=120, change=KINDS["more tokens on one rank"]))
    carried = carried_after(Quiet("loss"), run, run, {})
    assert carried["tokens"].tolist() == [120, 0, 480, 4]
    assert Quiet("loss").conclude(run, carried) is None
    varying = Run(write_run(tmp_path / "varying", num_steps=120, change=KINDS["varying tokens"]))
    series = as_measured(varying)
    num_known, even, num_modal, _ = carried_after(Quiet("loss"), varying, varying, {})["tokens"]
    assert (num_known, even) == (120, 0)
    assert num_modal < 0.9 * 480
    assert np.all(lasting_weights(series.loss, series.log_norm, series.tokens) == 1)


def test_in_a_long_run_the_first_steps_say_how_many_are_enough(tmp_path, monkeypatch):
    """What a further step cannot change; they are looked at once, and in a Run that is followed then no more."""
    run, starts = Run(write_run(tmp_path / "run", num_steps=60)), []
    monkeypatch.setattr(outliers, "FIRST_STEPS", 40)
    monkeypatch.setattr(quiet, "FIRST_STEPS", 40)
    for module in (outliers, quiet):
        monkeypatch.setattr(module, "ratio_among", lambda start, *of: starts.append(start) or 1.5)
    find_outliers(series_of(run), alarm_budget_of(run), "loss")
    carried = carried_after(Quiet("loss"), run, run.between(0, 30), {})
    assert "ratios" not in carried
    carried = carried_after(Quiet("loss"), run, run.between(30, 50), carried)
    assert carried["ratios"].tolist() == [1.5]
    carried = carried_after(Quiet("loss"), run, run.between(50, 60), carried)
    assert Quiet("loss").conclude(run, carried) == []
    assert [start.steps.tolist() for start in starts] == [[*range(40)]] * 2
    assert all(np.array_equal(start.loss, series_of(run).loss[:40]) for start in starts)
