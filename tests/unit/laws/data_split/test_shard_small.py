"""A rank whose few samples come again and again is told from ranks that read many."""

import itertools

import numpy as np
import pytest
from tests.synthetic_runs import write_run

from trueline.laws.data_split.shard_small import check, log_chance
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run


def reads(pools, *, batch=4, ordered=False):
    """Each rank draws its batches from a pool of its own, of so many samples."""

    def change(step, rank, row):
        pool = pools[rank]
        at = (step * batch + np.arange(batch)) % pool
        if not ordered:
            at = np.random.default_rng([step, rank]).integers(pool, size=batch)
        row["sample_digests"] = (1000 * rank + at + 1).tolist()

    return change


def findings(tmp_path, pools, *, num_steps=60, **how):
    plan = how.pop("plan", {})
    path = write_run(tmp_path / "run", num_ranks=len(pools), num_steps=num_steps, change=reads(pools, **how))
    run = Run(path)
    run.manifest.plan.update(plan)
    return check(run)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("pools", [(200, 200, 200, 4), (900, 4)])
def test_a_shard_of_a_few_samples_is_found_with_its_rank(tmp_path, pools, ordered):
    (result,) = findings(tmp_path, pools, ordered=ordered, batch=3)
    assert result.ranks == (len(pools) - 1,)
    assert (result.severity, result.measured, result.step_first) == ("warning", 4.0, 0)
    assert result.claim.startswith(f"Rank {len(pools) - 1} has read 4 different samples, 45 times each, since step 0;")


def test_two_small_shards_of_five_are_named_together(tmp_path):
    (result,) = findings(tmp_path, (200, 5, 200, 3, 200))
    assert result.ranks == (1, 3)
    assert result.claim.startswith("Ranks 1 and 3 have each read 5 different samples or fewer, up to 80 times each")
    assert result.evidence["different"] == {"1": 5, "3": 3}


def test_a_rank_that_holds_a_batch_is_no_measure_of_the_others(tmp_path):
    (result,) = findings(tmp_path, (200, 1, 200, 4, 200))
    assert (result.ranks, result.expected) == ((3,), pytest.approx(140, abs=20))


@pytest.mark.parametrize(
    ("pools", "how", "why"),
    [
        ((200, 200, 200, 200), {}, "equal shards"),
        ((200, 200, 200, 60), {}, "a shard of a third"),
        ((10**6, 10**6, 10**6, 1), {"num_steps": 1, "batch": 8}, "chance does that in 2 of a million Runs"),
        ((4, 4, 4, 4), {}, "a small data set"),
        ((200, 200, 200, 1), {}, "one batch that is held, of which sample-repeats tells"),
    ],
)
def test_what_may_well_be_is_left_alone(tmp_path, pools, how, why):
    assert findings(tmp_path, pools, **how) == [], why


def test_samples_that_never_come_again_cannot_tell(tmp_path):
    def change(step, rank, row):
        row |= {"epoch": step // 20, "sample_digests": [4 * step + rank + 1]}

    with pytest.raises(CannotTell, match="none of the samples came again in 3 epochs"):
        check(Run(write_run(tmp_path / "run", num_steps=60, change=change)))


def test_ranks_that_are_meant_to_differ_are_compared_among_themselves(tmp_path):
    assert findings(tmp_path / "declared", (200, 200, 4, 4), plan={"worker_groups": [[0, 1], [2, 3]]}) == []
    (result,) = findings(tmp_path / "and-wrong", (200, 200, 90, 4), plan={"worker_groups": [[0, 1], [2, 3]]})
    assert result.ranks == (3,)


@pytest.mark.parametrize(("drawn", "different", "population"), [(4, 1, 3), (5, 2, 4), (6, 2, 4), (7, 3, 4), (3, 3, 3)])
def test_the_chance_is_bounded(drawn, different, population):
    draws = list(itertools.product(range(population), repeat=drawn))
    exact = sum(len(set(draw)) <= different for draw in draws) / len(draws)
    assert exact <= np.exp(log_chance(drawn, different, population)) <= 10 * exact
