"""rows-untrained: rows of tokens without a target that counts."""

from dataclasses import replace

import pytest
import torch
from tests.unit.healthy_run import write_run

from trueline.capture.probes.losses import edge_tokens, end_tokens
from trueline.laws.targets import rows_untrained
from trueline.schema.columns.edge_tokens import EdgeTokens
from trueline.schema.columns.end_tokens import EndTokens
from trueline.schema.columns.target_places import PLACES
from trueline.schema.errors import CannotTell

IGNORED = -100


def found_in(tmp_path, *, without, rows=8, steps=4, next_tokens=False):
    """Findings of texts of which so many rows have no target; of a language model, or of masked words."""
    ids_BT = torch.randint(3, 50, (rows, 12), generator=torch.Generator().manual_seed(0))
    labels_BL = ids_BT[:, 1:].clone()
    labels_BL[:without] = IGNORED
    numbers = {
        "end_tokens": end_tokens.row_of(ids_BT, None, labels_BL, labels_BL != IGNORED, 0, 1).tolist(),
        "edge_tokens": edge_tokens.row_of(ids_BT, None).tolist(),
    }
    if next_tokens:
        num = (rows - without) * 11
        numbers["target_places"] = [num if place == 1 else 0 for place in PLACES] * 2
    run = write_run(tmp_path, {(step, 0): dict(numbers) for step in range(steps)})
    return rows_untrained.check(run)


def test_most_rows_without_a_target(tmp_path):
    (finding,) = found_in(tmp_path, without=6)
    assert (finding.severity, finding.step_first, finding.step_last) == ("confirm", 0, 3)
    assert finding.claim == (
        "24 of 32 rows of tokens have no target that counts in the loss, over 4 steps that were looked at."
    )


@pytest.mark.parametrize("without", [0, 4])
def test_half_of_the_rows_are_left_alone(tmp_path, without):
    assert found_in(tmp_path, without=without) == []


def test_a_third_of_the_rows_of_a_language_model(tmp_path):
    (finding,) = found_in(tmp_path, without=8, rows=24, next_tokens=True)
    assert finding.claim.startswith("32 of 96 rows of tokens have no target that counts in the loss")


@pytest.mark.parametrize(("without", "next_tokens"), [(8, False), (1, True), (0, True)])
def test_short_rows_of_masked_words_and_few_rows_are_left_alone(tmp_path, without, next_tokens):
    assert found_in(tmp_path, without=without, rows=24, next_tokens=next_tokens) == []


def test_cannot_tell_of_few_rows_and_of_batches_without_any_target(tmp_path):
    with pytest.raises(CannotTell, match="fewer than 16 rows"):
        found_in(tmp_path / "few", without=6, steps=1)
    with pytest.raises(CannotTell, match="whose targets are of these rows"):
        found_in(tmp_path / "none", without=8)


def test_passes_of_which_not_all_were_looked_at_are_left_out(tmp_path):
    ends = EndTokens(*[0] * 20)
    texts = EdgeTokens(*[0] * 13)
    row = {
        "end_tokens": [n for _ in range(2) for n in replace(ends, targets=9, target_rows=1).to_row()],
        "edge_tokens": replace(texts, rows=8).to_row(),
    }
    with pytest.raises(CannotTell, match="whose targets are of these rows"):
        rows_untrained.check(write_run(tmp_path, {(step, 0): dict(row) for step in range(8)}))
