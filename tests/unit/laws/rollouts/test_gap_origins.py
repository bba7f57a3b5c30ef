"""Which cause is named by where in a response a gap begins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gallery.rollouts.drawn import Made, at, drawn, softmax
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
    assert trueline.diagnose(run).of(0)[0].standing == "undecided"


def _moving(folder: Path, weights_of: Any, *, steps: int = 6, **sampling: Any) -> str:
    """A Run of eight prompts that come at each step, and of weights that take a random step after each. ``weights_of``
    says of which step are those by which [32] sequences of a step are sampled, which no version says.
    """
    random = np.random.default_rng(0)
    size, length, words = 32, 8, 12
    prompt = np.arange(size) // 4
    logits_SPLV = 2 * random.normal(size=(1, 8, length, words)) + np.cumsum(
        0.4 * random.normal(size=(steps, 8, length, words)), axis=0
    )
    for step in range(steps):
        engine = logits_SPLV[weights_of(step), prompt]
        ids = drawn(softmax(engine), random)
        trueline.rl.record(
            step,
            [[1, 2, int(which)] for which in prompt],
            ids,
            np.ones_like(ids),
            at(np.log(softmax(engine)), ids) + 1e-7 * random.normal(size=ids.shape),
            at(np.log(softmax(logits_SPLV[step, prompt])), ids),
            sampling={"dtype": "float32", **sampling},
            out=str(folder / "run"),
        )
    trueline.rl.close()
    return str(folder / "run")


def _begun_anew(step: int, *, begins: int, checkpoint: int = 0) -> Any:
    """Every other of eight prompts is answered by an engine that has the weights of the ``checkpoint`` from then on."""
    is_new = (np.arange(32) // 4 % 2 == 0) & (step >= begins)
    return np.where(is_new, min(checkpoint, step), step)


def test_an_engine_that_has_the_weights_of_the_step_before_lags_whatever_is_told(tmp_path: Path) -> None:
    run = _moving(tmp_path, lambda step: np.full(32, max(step - 1, 0)))
    found = codes(run)["policy-lag"]
    assert (found.evidence["kind"], found.measured) == (["lag", "gap-by-lag", "by-tokens"], 1.0)
    assert "1 step earlier" in found.claim
    assert _cause(run) == "rollouts-lag"


def test_a_lag_that_was_declared_is_none(tmp_path: Path) -> None:
    assert "policy-lag" not in codes(_moving(tmp_path, lambda step: np.full(32, max(step - 1, 0)), lag=1))


def test_an_engine_that_goes_back_to_older_weights_was_loaded_anew(tmp_path: Path) -> None:
    run = _moving(tmp_path, lambda step: _begun_anew(step, begins=3))
    found = codes(run)["policy-lag"]
    assert (found.evidence["kind"], found.evidence["weights_of"]) == ("went-back", 0)
    assert _cause(run) == "engine-weights-not-loaded"


@pytest.mark.parametrize(("begins", "checkpoint"), [(1, 0), (3, 2)])
def test_an_engine_that_keeps_its_weights_did_not_go_back(tmp_path: Path, begins: int, checkpoint: int) -> None:
    """It may have been left out: that is said of none that was there from the start, or stopped."""
    run = _moving(tmp_path, lambda step: _begun_anew(step, begins=begins, checkpoint=checkpoint))
    assert "policy-lag" not in codes(run)
    assert "logprob-gap" in codes(run)


def test_another_gap_is_of_no_older_weights(tmp_path: Path) -> None:
    made = Made(size=32, length=8, words=12)

    def change(batch: Batch) -> None:
        batch["prompt_ids"] = [[1, 2, row // 4] for row in range(32)]
        made.error = 0.2 * (batch["step"] + 1)

    assert "policy-lag" not in codes(recorded(tmp_path, made, change=change))
