"""draws-alike: what is drawn for samples and is the same on ranks that read different ones; what may be the same."""

import numpy as np
import pytest
from tests.unit.healthy_run import write_run

from trueline.laws.inputs import draws_alike
from trueline.laws.inputs.draws_alike import _log_chance
from trueline.schema.columns.input_values import InputFact, InputValue, facts_text
from trueline.schema.errors import CannotTell

ROWS = 4
T = InputFact("t", False, "torch.float32", (ROWS,))
X = InputFact("x", False, "torch.float32", (ROWS, 8))
OTHER = 0
SINGLE = 1


def own(step, rank):
    """A digest of this step and rank alone."""
    return 1000 * step + rank + 1


def shared(step, rank):
    return 1000 * step + 777


def found_in(tmp_path, tensors, *, num_ranks=2, steps=8):
    """Of a job whose ranks read ``tensors``: facts with the digest by step and rank, and whether it is one number."""
    rows = {}
    for step in range(steps):
        for rank in range(num_ranks):
            seen = [(fact(step) if callable(fact) else fact, of, single) for fact, of, single in tensors]
            values = [number for _, of, single in seen for number in (of(step, rank), single, 0, 0)]
            rows[step, rank] = {"input_facts": facts_text([fact for fact, *_ in seen]), "input_values": values}
    return draws_alike.check(write_run(tmp_path, rows))


def test_times_that_ranks_share_are_found(tmp_path):
    (finding,) = found_in(tmp_path, [(X, own, OTHER), (T, shared, OTHER)])
    assert (finding.severity, finding.ranks, finding.evidence["kind"]) == ("warning", (0, 1), "drawn")
    assert finding.claim == (
        "`t` is bitwise the same on ranks 0 and 1 at all 8 steps that were looked at, while their `x` is not."
    )


def test_noise_to_be_predicted_is_found_as_a_target(tmp_path):
    noise = InputFact("mse_loss", True, "torch.float32", (ROWS, 8))
    (finding,) = found_in(tmp_path, [(X, own, OTHER), (noise, shared, OTHER)])
    assert finding.claim.startswith("The target of mse_loss is bitwise the same on ranks 0 and 1")


def test_some_ranks_of_several_are_named(tmp_path):
    (finding,) = found_in(
        tmp_path,
        [(X, own, OTHER), (T, lambda step, rank: own(step, rank // 2 if rank < 2 else rank), OTHER)],
        num_ranks=4,
    )
    assert finding.ranks == (0, 1)


def test_labels_that_ranks_share_may_be_the_same_samples(tmp_path):
    labels = InputFact("labels", False, "torch.int64", (ROWS,))
    (finding,) = found_in(tmp_path, [(X, own, OTHER), (labels, shared, OTHER)])
    assert finding.evidence["kind"] == "read"
    assert "sampler" in finding.next[0]


@pytest.mark.parametrize(
    "tensor",
    [
        (T, own, OTHER),
        (T, shared, SINGLE),  # a number that follows the step
        (T, lambda step, rank: 5, OTHER),  # what is the same at every step
        (T, lambda step, rank: step % 2, OTHER),
        (InputFact("t", False, "torch.float32", (1,)), shared, OTHER),
        (InputFact("table", False, "torch.float32", (9, 8)), shared, OTHER),  # not one row a sample
        (InputFact("position_ids", False, "torch.int64", (ROWS, 8)), shared, OTHER),
        (lambda step: InputFact("grid", False, "torch.int64", (ROWS, step + 2)), shared, OTHER),  # follows the shape
        (T, lambda step, rank: shared(step, rank) if step else own(step, rank), OTHER),
    ],
)
def test_what_may_be_the_same_is_silent(tmp_path, tensor):
    assert found_in(tmp_path, [(X, own, OTHER), tensor]) == []


def test_seven_steps_may_be_chance(tmp_path):
    assert found_in(tmp_path, [(X, own, OTHER), (T, shared, OTHER)], steps=7) == []


def test_ranks_that_read_the_same_samples_are_another_matter(tmp_path):
    with pytest.raises(CannotTell, match="differs between ranks"):
        found_in(tmp_path, [(X, shared, OTHER), (T, shared, OTHER)])


def test_the_chance_is_that_of_deals(tmp_path):
    """Two ranks and three steps, two of the values equal: by going through all deals."""
    rng = np.random.default_rng(0)
    places = np.array([1, 1, 1, 1, 2, 2])
    deals = np.array([rng.permutation(places) for _ in range(200_000)]).reshape(-1, 3, 2)
    of_first = [InputValue(T, digest, None, False) for digest in (1, 1, 2)]
    share = np.mean([np.all(deals[..., 0] == deals[..., 1], axis=1)])
    assert np.exp(_log_chance(of_first)) == pytest.approx(share, abs=0.005)
