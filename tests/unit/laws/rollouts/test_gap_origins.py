"""Which cause is named by where in a response a gap begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gallery.rollouts.drawn import Made
from tests.unit.made_rollouts import codes, recorded

import trueline

Batch = dict[str, Any]


def _cause(run: str) -> str:
    return trueline.diagnose(run).of(0)[0].cause


def _errors(first: float, rows: Any) -> Any:
    """Of logits [B, L, 1]: ``first`` at the first token, then 0.4 and less and less, and of other ``rows`` none."""
    errors = np.concatenate([[first], 0.4 * 0.95 ** np.arange(23)])[None, :, None]
    return np.where(rows[:, None, None], errors, 1e-6)


@pytest.mark.parametrize("every", [1, 3])
def test_a_gap_that_the_first_token_has_not_is_of_decoding_however_it_goes_on(tmp_path: Path, every: int) -> None:
    rows = np.arange(32) % every == 0
    run = recorded(tmp_path, Made(size=32, error=_errors(1e-6, rows)), steps=8)
    assert "prefill-diverges" not in codes(run)
    assert _cause(run) == "decoding-differs"


def test_a_gap_that_the_first_token_has_too_is_not_of_decoding(tmp_path: Path) -> None:
    run = recorded(tmp_path, Made(size=32, error=_errors(0.4, np.ones(32, np.bool_))), steps=8)
    assert "decode-diverges" not in codes(run)


def test_gaps_that_begin_at_other_tokens_from_response_to_response_are_not_of_decoding(tmp_path: Path) -> None:
    """As of a text that was tokenised again: some begin right behind the first token."""
    made = Made(size=32)
    begin = 1 + np.arange(32) % 16

    def change(batch: Batch) -> None:
        made.error = np.where(np.arange(24) >= begin[:, None], 1.5, 1e-6)[..., None]

    made.error = 1e-6
    run = recorded(tmp_path, made, steps=8, change=change)
    assert "first-equal" not in codes(run)["logprob-gap"].evidence["kind"]
    assert _cause(run) == "response-tokenised-again"
