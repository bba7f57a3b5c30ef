"""A fault is over where what shows it was looked at later and is not shown; a lag or a sampled signal ends nothing."""

import pytest
from tests.unit.healthy_run import healthy_rows, write_run

from trueline.judge.lasting import over_since
from trueline.schema.finding import Finding


def run_of(tmp_path, *, lag=0, every=1, num_steps=40):
    rows = healthy_rows(2, num_steps)
    for (step, rank), row in list(rows.items()):
        if rank == 1 and step >= num_steps - lag:
            del rows[step, rank]
        elif step % every:
            for name in [name for name in row if name.startswith("grad")]:
                del row[name]
    return write_run(tmp_path, rows)


def nonfinite(step_last, **evidence):
    return Finding("worker-nonfinite", "error", "NaN.", (1,), 5, step_last, evidence=evidence)


@pytest.mark.parametrize(
    ("lag", "every", "last", "over"),
    [
        (0, 1, 39, None),
        (0, 1, 20, 21),
        (3, 1, 36, None),  # the other rank is three steps ahead
        (3, 1, 35, 36),
        (0, 10, 30, None),  # gradients are looked at in steps 0, 10, 20 and 30
        (0, 10, 20, 30),
    ],
)
def test_it_lasts_to_the_last_look_that_all_ranks_have(tmp_path, lag, every, last, over):
    run = run_of(tmp_path, lag=lag, every=every)
    assert over_since(run, [nonfinite(last)]) == over


def test_one_of_several_findings_that_lasts_is_enough(tmp_path):
    run = run_of(tmp_path)
    assert over_since(run, [nonfinite(10), nonfinite(20)]) == 21
    assert over_since(run, [nonfinite(10), nonfinite(39)]) is None
    assert over_since(run, [nonfinite(None)]) is None


def test_what_a_detector_knows_counts_more_than_where_its_evidence_ends(tmp_path):
    run = run_of(tmp_path)
    assert over_since(run, [nonfinite(30, ongoing=True)]) is None
    assert over_since(run, [nonfinite(39, ongoing=False)]) == 40
