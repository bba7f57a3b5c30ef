"""Which cause is named by where a gap begins, and by what the length of prompts has to do with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gallery.rollouts.drawn import Made
from tests.unit.made_rollouts import codes, recorded

import trueline

SIZE, LENGTH = 32, 24
Batch = dict[str, Any]


def _answer(run: str) -> tuple[str, set[str]]:
    """The cause that is named, ``""`` where none is, and those that it may be."""
    first = trueline.diagnose(run).of(0)[0]
    return ("" if first.standing == "undecided" else first.cause), set(first.among)


def _kinds(run: str, code: str) -> list[str]:
    return codes(run)[code].evidence["kind"]


def _judged(folder: Path, begins: Any, lengths: Any, *, fades: float = 0.95, **changes: Any) -> str:
    """A Run of responses that are apart from token ``begins`` [B] on, behind prompts of ``lengths`` [B] tokens."""
    place = np.arange(LENGTH) - np.asarray(begins)[:, None]
    error = np.where(place >= 0, 0.6 * fades ** np.maximum(place, 0), 1e-6)[..., None]

    def change(batch: Batch) -> None:
        batch["prompt_ids"] = [[1, *range(2, length + 1)] for length in lengths]
        batch.update(changes)

    return recorded(folder, Made(size=SIZE, length=LENGTH, error=error), steps=8, change=change)


def _lengths() -> Any:
    """Four responses to each of eight prompts."""
    return np.repeat(np.array([9, 5, 7, 9, 4, 8, 9, 6]), 4)


def test_a_gap_of_prompts_that_are_shorter_than_the_longest_is_of_their_padding(tmp_path: Path) -> None:
    run = _judged(tmp_path, np.where(_lengths() < 9, 1, LENGTH), _lengths())
    assert "with-padding" in _kinds(run, "logprob-gap")
    assert "decode-diverges" not in codes(run)
    assert _answer(run) == ("prompt-differs", set())


def test_a_gap_of_other_prompts_than_the_shorter_ones_is_of_decoding(tmp_path: Path) -> None:
    run = _judged(tmp_path, np.where(np.arange(SIZE) // 4 % 2, 1, LENGTH), np.roll(_lengths(), 4))
    assert "without-padding" in _kinds(run, "logprob-gap")
    assert _answer(run) == ("decoding-differs", set())


def test_a_gap_of_all_prompts_of_several_lengths_may_be_of_padding(tmp_path: Path) -> None:
    """As up to a length that is fixed."""
    run = _judged(tmp_path, np.ones(SIZE), _lengths())
    assert _answer(run) == ("", {"prompt-differs", "decoding-differs"})


def test_a_gap_of_prompts_that_were_not_recorded_may_be_of_padding(tmp_path: Path) -> None:
    run = _judged(tmp_path, np.ones(SIZE), _lengths(), prompt_ids=None)
    assert _answer(run) == ("", {"prompt-differs", "decoding-differs"})


def test_a_gap_that_grows_is_of_no_padding(tmp_path: Path) -> None:
    run = _judged(tmp_path, np.ones(SIZE), _lengths(), fades=1.06)
    assert _answer(run) == ("decoding-differs", set())


def test_a_gap_from_one_length_on_is_of_decoding_or_of_all_layers(tmp_path: Path) -> None:
    """As of a window of attention, or of another kernel for long sequences."""
    run = _judged(tmp_path, 16 - _lengths(), _lengths(), fades=1.0)
    assert "from-a-length" in _kinds(run, "logprob-gap")
    assert {"decode-diverges", "tokens-differ"}.isdisjoint(codes(run))
    assert "decode-diverges" in {each.code for each in trueline.check(run).findings}
    assert _answer(run) == ("", {"implementations-differ", "routing-differs", "decoding-differs"})


def test_a_gap_from_one_length_on_that_prompts_have_too_is_of_no_decoding(tmp_path: Path) -> None:
    lengths = np.where(np.arange(SIZE) // 4 % 2, 20, _lengths())
    run = _judged(tmp_path, np.maximum(16 - lengths, 0), lengths, fades=1.0)
    assert "in-prompts-too" in _kinds(run, "logprob-gap")
    assert "decode-diverges" not in codes(run)
    assert _answer(run) == ("", {"implementations-differ", "routing-differs"})


def test_responses_that_end_before_a_gap_would_begin_have_none_for_that(tmp_path: Path) -> None:
    mask = np.ones((SIZE, LENGTH), np.int64)
    mask[::3, 10:] = 0
    run = _judged(tmp_path, np.full(SIZE, 12), np.full(SIZE, 8), fades=1.0, mask=mask)
    assert "by-row" not in _kinds(run, "logprob-gap")


@pytest.mark.parametrize(("far", "cause"), [(True, "response-tokenised-again"), (False, "decoding-differs")])
def test_responses_that_differ_from_some_token_on_have_other_tokens_where_these_are_improbable(
    tmp_path: Path, far: bool, cause: str
) -> None:
    begins = np.where(np.arange(SIZE) % 2, LENGTH, 4 + np.arange(SIZE) % 12)
    place = np.arange(LENGTH) - begins[:, None]
    made = Made(size=SIZE, length=LENGTH, error=np.where(place >= 0, 0.4, 1e-6)[..., None])

    def change(batch: Batch) -> None:
        batch["logp_train"] -= np.where(place == 0, 9.0 * far, 0.0)

    run = recorded(tmp_path, made, steps=8, change=change)
    assert _kinds(run, "tokens-differ") == ["from-one-position", "other-tokens" if far else "as-sampled"]
    assert _answer(run) == (cause, set())


def test_tokens_that_one_side_thinks_of_as_if_it_did_not_know_the_other_are_not_called_the_same(tmp_path: Path) -> None:
    def change(batch: Batch) -> None:
        other = -np.random.default_rng(batch["step"]).exponential(2.0, (SIZE, LENGTH)) - 0.5
        begins = 4 + np.arange(SIZE)[:, None] % 12
        batch["logp_train"] = np.where(np.arange(LENGTH) >= begins, other, batch["logp_train"])

    run = recorded(tmp_path, Made(size=SIZE, length=LENGTH), steps=8, change=change)
    assert _kinds(run, "tokens-differ") == ["from-one-position", "tokens-unclear"]
    assert _answer(run)[0] == ""


def test_an_engine_without_sense_from_some_token_on_need_not_have_other_tokens(tmp_path: Path) -> None:
    begins = np.where(np.arange(SIZE) % 2, LENGTH, 4 + np.arange(SIZE) % 12)
    place = np.arange(LENGTH) - begins[:, None]

    def change(batch: Batch) -> None:
        batch["logp_train"] -= np.where(place >= 0, 9.0, 0.0)

    run = recorded(tmp_path, Made(size=SIZE, length=LENGTH), steps=8, change=change)
    assert _kinds(run, "tokens-differ") == ["from-one-position", "tokens-unclear"]
    assert _answer(run)[0] != "response-tokenised-again"
