"""rows-lost: fewer samples in the model than in the loader's batches; what is split, packed or chosen."""

import numpy as np
import pytest
from tests.unit.healthy_run import rank_env, write_run

from trueline.laws.data_split import rows_lost
from trueline.schema.columns.input_values import InputFact, facts_text
from trueline.schema.errors import CannotTell

X = InputFact("input_ids", False, "torch.int64", (1, 12))


def found_in(tmp_path, *, rows=1, size=8, batches=1, micros=1, steps=12, facts=(X,), ranks=(0,), fact="batch_rows"):
    """Of steps that take ``batches`` of the loader and call the model on ``rows`` samples in ``micros`` passes."""
    columns = {}
    for step in range(steps):
        for rank in ranks:
            columns[step, rank] = {
                "epoch": 0,
                "loader_batches": int(batches * (step + 1)),
                "num_micro": micros,
                "sample_digests": np.arange(rows, dtype=np.uint64) + np.uint64(100 * step + 1),
                "input_facts": facts_text(facts),
                "input_values": [step, 0, 0, 0] * len(facts),
            }
    envs = {rank: rank_env(rank, len(ranks), data={fact: size}) for rank in ranks}
    return rows_lost.check(write_run(tmp_path, columns, envs=envs))


def test_a_batch_of_which_one_row_is_left_is_found(tmp_path):
    (finding,) = found_in(tmp_path)
    assert (finding.severity, finding.measured, finding.expected) == ("confirm", 1.0, 8.0)
    assert finding.claim == "The loader makes batches of 8 samples, and the model is called on 1 row of each."


def test_micro_batches_and_ranks_are_counted(tmp_path):
    (finding,) = found_in(tmp_path, micros=4, batches=4, rows=8, size=8, ranks=(0, 1))
    assert finding.claim.endswith("the model is called on 2 rows of each on ranks 0 and 1.")


@pytest.mark.parametrize(
    "more",
    [
        {"rows": 8},
        {"rows": 5},  # samples that are left out on purpose
        {"rows": 4, "size": 8, "ranks": (0, 1)},  # one reads for both
        {"rows": 2, "batches": 0.25},  # a batch is taken apart over steps
        {"rows": 2, "batches": 1, "micros": 4},
        {"facts": (InputFact("x", False, "torch.float32", (1, 8, 3)),)},  # [T, B, features]
        {"facts": (X, InputFact("position_ids", False, "torch.int64", (1, 12)))},  # packed
        {"facts": (X, InputFact("images[1]", False, "torch.float32", (3, 8, 8)))},
        {"steps": 6},
    ],
)
def test_what_may_be_so_is_silent(tmp_path, more):
    assert found_in(tmp_path, **more) == []


def test_without_a_loader_nothing_is_said(tmp_path):
    with pytest.raises(CannotTell, match="no DataLoader"):
        found_in(tmp_path, fact="num_workers")
