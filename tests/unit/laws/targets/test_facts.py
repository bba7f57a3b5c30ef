"""Facts of tokens: padding and targets, as shares of the places of rows."""

import pytest
from tests.unit.healthy_run import write_run
from tests.unit.laws.targets.test_end_untrained import END, PAD, TEXTS, passed
from tests.unit.laws.targets.test_token_doubled import passed as edged

from trueline.laws.targets import facts


def run_of(tmp_path, *passes):
    return write_run(tmp_path, {(step, 0): {"end_tokens": tokens.to_row()} for step, tokens in enumerate(passes)})


def test_padding_and_targets_are_shares_of_places(tmp_path):
    """Rows of 4, 6, 3 and 5 tokens in 6 places; the first token of each is the target of no position."""
    run = run_of(tmp_path, passed(TEXTS, end=[END]), passed(TEXTS, end=[END]))
    assert facts.padding(run) == (
        f"25% of the places of tokens are padding (token {PAD})",
        {"share": 0.25, "tokens": [PAD], "side": ""},
    )
    assert facts.targets(run) == (
        "of rows with a target, 58% of the places have one that counts in the loss",
        {"targets": 28, "places": 48, "share": 0.5833},
    )


@pytest.mark.parametrize(("edges", "side"), [(("left",), "left"), (("right",), "right"), (("left", "right"), "")])
def test_the_side_of_padding_is_told(tmp_path, edges, side):
    rows = [row for edge in edges for row in edged(TEXTS, side=edge).to_row()]
    run = write_run(tmp_path, {(0, 0): {"end_tokens": passed(TEXTS).to_row(), "edge_tokens": rows}})
    text, value = facts.padding(run)
    assert value["side"] == (f"on the {side}" if side else "on both sides")
    assert text.endswith(f"padding (token {PAD}), {value['side']}")


def test_rows_without_padding_have_no_such_line(tmp_path):
    assert facts.padding(run_of(tmp_path / "whole", passed([[9, 8, 7]] * 4))) is None
    none = write_run(tmp_path / "none", {(0, 0): {"loss": 1.0}})
    assert (facts.padding(none), facts.targets(none)) == (None, None)
