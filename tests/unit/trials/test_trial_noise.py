"""`trial noise`: sums in an order against plain loops of NumPy, and the gradients that are simulated."""

import numpy as np
import pytest
import torch
from tests.unit.healthy_run import healthy_rows, rank_env, write_run

from trueline.comparison.expect.rounding import UNIT_ROUNDOFF
from trueline.schema.errors import CannotTell, InputError
from trueline.trials import noise
from trueline.trials.noise import SumSetup, add_up, judge, measure, num_pieces, setup_of, workers_gradients


def rounded(values, dtype):
    return torch.from_numpy(np.asarray(values, dtype=np.float64)).to(dtype).double().numpy()


def in_turn(terms, dtype):
    total = terms[0]
    for term in terms[1:]:
        total = rounded(total + term, dtype)
    return total


def by_halves(terms, dtype):
    half = len(terms) // 2
    return rounded(by_halves(terms[:half], dtype) + by_halves(terms[half:], dtype), dtype) if half else terms[0]


def round_the_ring(terms, dtype):
    """Every element by itself: which of N even pieces it is in says whose term comes first."""
    count, size = terms.shape
    width = -(-size // count)
    return np.array([in_turn(np.roll(terms[:, i], -(i // width)), dtype) for i in range(size)])


SLOW = {"sequential": in_turn, "ring": round_the_ring, "tree": by_halves}


@pytest.mark.parametrize("order", SLOW)
@pytest.mark.parametrize("accumulate", ["same", "float32"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("workers", "size"), [(2, 5), (5, 23), (8, 64), (7, 3)])
def test_every_partial_sum_is_rounded_in_the_order_that_was_asked_for(order, accumulate, dtype, workers, size):
    terms = torch.randn(workers, size, generator=torch.Generator().manual_seed(workers)).to(dtype)
    within = torch.float32 if accumulate == "float32" else dtype
    slow = rounded(SLOW[order](terms.double().numpy(), within), dtype)
    assert np.array_equal(add_up(terms, order, accumulate=accumulate).double().numpy(), slow)


@pytest.mark.parametrize("cosine", [-0.2, 0.0, 0.1, 0.9, 1.0])
def test_simulated_gradients_have_the_mean_cosine_that_was_asked_for(cosine):
    terms = workers_gradients(SumSetup(5, 1, cosine=cosine), 40_000, torch.Generator().manual_seed(0)).double()
    cosines = torch.corrcoef(terms) if cosine < 1 else terms @ terms.T / terms[0].square().sum()
    pairs = cosines[tuple(torch.triu_indices(5, 5, offset=1))]
    # The standard error of a correlation of 40,000 elements with scales of their own is about 1 %.
    assert pairs.numpy() == pytest.approx(np.full(10, cosine), abs=0.03)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_the_measured_floor_is_the_predicted_one(dtype):
    for one in measure(SumSetup(workers=16, elements=8192, dtype=dtype, cosine=0.1)):
        assert one.error_rel == pytest.approx(one.error_expected_rel, rel=0.15)
        assert one.difference_rel == pytest.approx(one.difference_expected_rel, rel=0.15)
        assert one.difference_rel <= one.difference_most_rel < one.limit_rel


def test_float32_partial_sums_leave_one_rounding_and_next_to_no_difference():
    (one,) = measure(SumSetup(8, 8192, "bfloat16", "float32", ("ring",)))
    assert one.error_rel == pytest.approx(0.4247 * UNIT_ROUNDOFF["bfloat16"], rel=0.05)
    assert one.error_expected_rel == pytest.approx(one.error_rel, rel=0.05)
    assert one.difference_most_rel <= one.limit_rel < one.error_rel / 50


def test_a_seed_decides_everything_and_pieces_are_heard_of(monkeypatch):
    setup = SumSetup(4, 1000, seed=3)
    assert measure(setup) == measure(setup) != measure(SumSetup(4, 1000, seed=4))

    monkeypatch.setattr(noise, "_AT_A_TIME", 4 * 300)
    monkeypatch.setattr(noise, "_LEAST_PIECE", 1)
    heard = []
    piecewise = measure(setup, progress=lambda: heard.append(1))
    assert len(heard) == num_pieces(setup) == 4 * 3
    assert [one.error_rel for one in piecewise] == pytest.approx([one.error_rel for one in measure(setup)], rel=0.2)


def test_the_kind_of_order_that_allows_most_decides():
    def setup(*orders):
        return SumSetup(64, dtype="bfloat16", orders=orders)

    tree, ring = (judge(0.0, setup(order)).limit_rel for order in ("tree", "ring"))
    between = (tree + ring) / 2
    told = [judge(between, setup(*orders)).explained for orders in (("tree",), ("ring",), ("tree", "ring"))]
    assert told == [False, True, True]
    stagnating = SumSetup(1024, dtype="bfloat16", cosine=0.1)
    assert judge(0.5, stagnating).explained is None


def run_of(tmp_path, cosines, dtype="torch.bfloat16"):
    rows = healthy_rows(3, len(cosines))
    for (step, _), row in rows.items():
        row["cosine_mean"] = cosines[step]
    return write_run(tmp_path / "run", rows, envs={rank: rank_env(rank, 3, grad_dtype=dtype) for rank in range(3)})


def test_a_run_gives_its_workers_dtype_and_the_median_of_its_cosines(tmp_path):
    run = run_of(tmp_path, [0.1, 0.9, 0.2])
    assert setup_of(run, workers=None, cosine=None, dtype=None) == (3, 0.2, "bfloat16")
    assert setup_of(run, workers=64, cosine=0.5, dtype="float32") == (64, 0.5, "float32")


def test_a_run_without_cosines_or_workers_cannot_tell(tmp_path):
    with pytest.raises(CannotTell, match="pass --cosine"):
        setup_of(run_of(tmp_path, [float("nan")]), workers=None, cosine=None, dtype=None)
    alone = write_run(tmp_path / "alone", healthy_rows(1, 2))
    with pytest.raises(CannotTell, match=r"Run '.*alone' has only one worker .* pass --workers"):
        setup_of(alone, workers=None, cosine=None, dtype=None)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"workers": 1}, "--workers is 1; give a number of workers from 2"),
        ({"elements": 0}, "--elements is 0"),
        ({"dtype": "int8"}, "--dtype is 'int8'; give one of float32, bfloat16, float16"),
        ({"accumulate": "half"}, "--accumulate is 'half'"),
        ({"orders": ("star",)}, "--order is 'star'; give one of sequential, ring, tree, all"),
        ({"workers": 5, "cosine": -0.25}, "give one above -0.25, at most 1"),
        ({"cosine": float("nan")}, "--cosine is nan"),
        ({"seed": 2**64}, "--seed is 18446744073709551616; give a whole number of at most 64 bits"),
        ({"seed": -(2**63) - 1}, "--seed is -9223372036854775809"),
    ],
)
def test_what_cannot_be_asked_is_refused_in_a_sentence(wrong, words):
    with pytest.raises(InputError, match=words):
        SumSetup(**wrong)
