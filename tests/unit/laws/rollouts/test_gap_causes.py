"""Which cause is named by when a gap begins, by the sequences that have it, and by the tokens that carry it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gallery.rollouts.drawn import Made, at, drawn, softmax
from gallery.rollouts.loop import Loop
from gallery.rollouts.policy import Policy
from tests.unit.made_rollouts import recorded

import trueline
from trueline.judge.causes.verdicts import CauseVerdict
from trueline.laws.rollouts.gaps import dtype_text
from trueline.laws.rollouts.rows import rows_of

Batch = dict[str, Any]


def _verdicts(run: str) -> list[CauseVerdict]:
    diagnosis = trueline.diagnose(run)
    return list(diagnosis.of(0)) if diagnosis.report.incidents else []


def _cause(run: str) -> str:
    return _verdicts(run)[0].cause


def _kinds(run: str, code: str) -> set[str]:
    kinds = [each.evidence["kind"] for each in trueline.check(run).findings if each.code == code]
    return {kind for of_finding in kinds for kind in ([of_finding] if isinstance(of_finding, str) else of_finding)}


def _versions(batch: Batch) -> None:
    batch["versions"] = (batch["step"], batch["step"])


def _off_by(made: Made, size: float, rows: int | None = None) -> None:
    """The logits of the first ``rows`` sequences of the next step are off by errors of ``size``."""
    made.error = np.where(np.arange(made.shape[0]) < (rows or made.shape[0]), size, 1e-6)[:, None, None]


def _prompts(batch: Batch, seen: int) -> None:
    """``seen`` prompts are those of every step, the others new."""
    size, step = len(batch["response_ids"]), batch["step"]
    batch["prompt_ids"] = [[7, 7, 7, row] if row < seen else [100 + step, row, 1, 2] for row in range(size)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_prompts_that_older_weights_answered_have_the_gap_alone(tmp_path: Path, dtype: str) -> None:
    made = Made(size=32)

    def change(batch: Batch) -> None:
        _versions(batch)
        _prompts(batch, 16)
        batch["sampling"] = {"dtype": dtype}
        _off_by(made, 0.6, 16)

    run = recorded(tmp_path, made, steps=8, change=change)
    assert {"after-a-sync", "seen-prompts"} <= _kinds(run, "logprob-gap")
    verdict = _verdicts(run)[0]
    assert (verdict.cause, verdict.among) == ("prompt-cache-stale", ())
    assert "reset_prefix_cache" in verdict.next[0]


@pytest.mark.parametrize("syncs", [True, False])
def test_what_begins_at_the_first_sync_in_new_prompts_too_is_of_the_weights(tmp_path: Path, syncs: bool) -> None:
    made, out = Made(size=32), str(tmp_path / "run")

    def change(batch: Batch) -> None:
        _versions(batch)
        _prompts(batch, 0)
        _off_by(made, 0.15 * (batch["step"] + 1))
        if syncs:
            weights = {"layers.0.weight": np.full(4, batch["step"], np.float32)}
            torch_weights = {name: torch.from_numpy(value) for name, value in weights.items()}
            trueline.rl.record_sync(batch["step"], torch_weights, torch_weights, out=out)

    verdict = _verdicts(recorded(tmp_path, made, steps=8, change=change))[0]
    assert {"after-a-sync", "any-prompt"} <= _kinds(out, "logprob-gap")
    assert ("weights-equal" in _kinds(out, "logprob-gap")) is syncs
    if syncs:
        assert (verdict.cause, verdict.standing) == ("derived-weights-stale", "supported")
    else:
        assert verdict.standing == "undecided"
        assert set(verdict.among) == {"derived-weights-stale", "weights-partly-synced"}
        assert "rl.record_sync" in verdict.next[0]


def test_a_gap_that_is_there_from_the_start_is_of_no_sync(tmp_path: Path) -> None:
    made = Made(size=32, error=0.5)
    verdict = _verdicts(recorded(tmp_path, made, steps=8, change=_versions))[0]
    assert not {"prompt-cache-stale", "derived-weights-stale"} & {verdict.cause, *verdict.among}
    assert "from-the-start" in _kinds(str(tmp_path / "run"), "logprob-gap")


def test_a_record_that_begins_late_says_nothing_of_the_start(tmp_path: Path) -> None:
    def change(batch: Batch) -> None:
        batch["versions"] = (400 + batch["step"], 400 + batch["step"])

    run = recorded(tmp_path, Made(size=32, error=0.5), change=change)
    assert not _kinds(run, "logprob-gap") & {"from-the-start", "after-a-sync", "later", "same-weights"}


@pytest.mark.parametrize("shift", [1, -1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_some_responses_that_are_shifted_from_a_token_on_are_named(tmp_path: Path, shift: int, dtype: str) -> None:
    made = Made(size=32, length=40, error=0.01 if dtype == "bfloat16" else 1e-6)

    def change(batch: Batch) -> None:
        batch["sampling"] = {"dtype": dtype}
        for row in range(0, 32, 16):
            batch["logp_rollout"][row, 12:] = np.roll(batch["logp_rollout"][row, 12:], -shift)

    run = recorded(tmp_path, made, steps=4, change=change)
    (found,) = (each for each in trueline.check(run).findings if each.code == "tokens-differ")
    assert (found.evidence["kind"], found.evidence["shift"], found.measured) == ("row-shifted", shift, 8.0)
    assert "in 8 of 128 sequences" in found.claim
    assert _cause(run) == "row-shifted-from-a-token-on"


def _penalised(
    made: Made,
    batch: Batch,
    *,
    processed: bool,
    prompt: bool = False,
    by: float = 1.5,
    reproduced: bool = False,
    error: float = 0.0,
) -> None:
    """Tokens that stood before have ``by`` less of a logit where the engine samples, whose logits are ``error`` off."""
    size, length, words = made.shape
    logits = 2.5 * made.random.normal(size=made.shape) * 0.5 + 1.2 * made.random.normal(size=(size, 1, words))
    engine = logits + error * made.random.normal(size=made.shape)
    stood = np.zeros((size, words), np.bool_)
    if prompt:
        stood[np.arange(size)[:, None], np.asarray(batch["prompt_ids"])] = True
    before, ids = np.zeros(made.shape, np.bool_), np.zeros((size, length), np.int64)
    for place in range(length):
        before[:, place] = stood
        ids[:, place] = drawn(softmax(engine[:, place] - by * stood), made.random)
        stood[np.arange(size), ids[:, place]] = True
    log_p, log_q = np.log(softmax(logits)), np.log(softmax(engine - by * before))
    log_p = log_q if reproduced else log_p
    p = np.exp(log_p)
    entropy = -(p * log_p).sum(-1)
    top = log_p.argmax(-1)
    batch |= {
        "response_ids": ids,
        "logp_rollout": at(log_q if processed else log_p, ids) + 1e-6 * made.random.normal(size=ids.shape),
        "logp_train": at(log_p, ids),
        "entropy": entropy,
        "varentropy": (p * (log_p + entropy[..., None]) ** 2).sum(-1),
        "mass_above": (p * (p > at(p, ids)[..., None])).sum(-1),
        "top_train": top,
        "logp_top": at(log_p, top),
    }
    del batch["odds_rollout"], batch["odds_train"]


@pytest.mark.parametrize("processed", [True, False])
@pytest.mark.parametrize("prompt", [True, False])
def test_a_penalty_of_the_engine_alone_is_named(tmp_path: Path, processed: bool, prompt: bool) -> None:
    made = Made(size=32, words=64)
    run = recorded(tmp_path, made, change=lambda batch: _penalised(made, batch, processed=processed, prompt=prompt))
    assert _cause(run) == "penalties-not-in-trainer"


@pytest.mark.parametrize("declared", [{}, {"repetition_penalty": 1.1}])
def test_a_raw_penalty_is_found_without_varentropy_and_named_where_it_was_declared(
    tmp_path: Path, declared: dict[str, float]
) -> None:
    made = Made(size=32, words=64)

    def change(batch: Batch) -> None:
        _penalised(made, batch, processed=False)
        for name in ("varentropy", "top_train", "logp_top", "mass_above"):
            del batch[name]
        batch["sampling"] = {"dtype": "float32", **declared}

    verdict = _verdicts(recorded(tmp_path, made, change=change))[0]
    if declared:
        assert verdict.cause == "penalties-not-in-trainer"
    else:
        assert verdict.standing == "undecided"
        assert "penalties-not-in-trainer" in verdict.among


def test_a_penalty_that_both_sides_apply_is_silent(tmp_path: Path) -> None:
    made = Made(size=32, words=64)
    change: Callable[[Batch], None] = lambda batch: _penalised(made, batch, processed=True, reproduced=True)  # noqa: E731
    assert trueline.check(recorded(tmp_path, made, steps=20, change=change)).findings == ()


def _padded(made: Made, batch: Batch, *, trainer: bool, rows: int = 40) -> None:
    """``rows`` behind the last word with logits of about those of words, in the softmax of one side."""
    logits = made.scale * made.random.normal(size=made.shape)
    pad = np.exp(0.5 + 0.3 * made.random.normal(size=(*made.shape[:2], rows))).sum(-1)
    real = softmax(logits)
    share = pad / (np.exp(logits).sum(-1) + pad)
    ids = drawn(real, made.random)
    log_real = np.log(real)
    log_padded = log_real + np.log1p(-share)[..., None]
    p_rows = share / rows
    log_p = log_padded if trainer else log_real
    p = np.exp(log_p)
    entropy = -(p * log_p).sum(-1) - (share * np.log(p_rows) if trainer else 0)
    second = (p * log_p**2).sum(-1) + (share * np.log(p_rows) ** 2 if trainer else 0)
    mass = (p * (p > at(p, ids)[..., None])).sum(-1)
    batch |= {
        "response_ids": ids,
        "logp_rollout": at(log_real if trainer else log_padded, ids),
        "logp_train": at(log_p, ids),
        "entropy": entropy,
        "varentropy": second - entropy**2,
        "mass_above": mass + (share * (p_rows > at(p, ids)) if trainer else 0),
    }
    del batch["odds_rollout"], batch["odds_train"]


@pytest.mark.parametrize("trainer", [True, False])
def test_rows_that_pad_the_vocabulary_of_one_side_are_named(tmp_path: Path, trainer: bool) -> None:
    made = Made(size=32, words=200)
    run = recorded(tmp_path, made, change=lambda batch: _padded(made, batch, trainer=trainer))
    assert _cause(run) == "padded-vocabulary"


def test_a_single_token_that_a_cut_leaves_tells_over_what_was_normalised(tmp_path: Path) -> None:
    run = recorded(tmp_path, Made(size=32, scale=3.0), top_p=0.8)
    assert "exact-zeros" in _kinds(run, "sampling-mismatch")
    assert _cause(run) == "normalised-over-a-cut"


def test_a_cut_that_leaves_several_tokens_everywhere_is_not_in_the_trainer(tmp_path: Path) -> None:
    assert _cause(recorded(tmp_path, Made(size=32, scale=1.0, words=200), top_p=0.9)) == "cut-not-in-trainer"


@pytest.mark.parametrize("ids", [True, False])
def test_prompts_that_are_not_known_to_be_equal_are_among_the_candidates(tmp_path: Path, ids: bool) -> None:
    """Responses of 8 tokens are too short to see whether a gap fades."""

    def change(batch: Batch) -> None:
        _versions(batch)
        if ids:
            batch["train_prompt_ids"] = batch["prompt_ids"]

    verdict = _verdicts(recorded(tmp_path, Made(size=32, length=8, error=0.5), steps=8, change=change))[0]
    assert ("prompt-differs" in verdict.among) is not ids
    if not ids:  # to print what is there is cheaper than another run
        steps = [line for line in verdict.next if line.startswith(("Print the prompt's", "Compute both sides"))]
        assert steps[0].startswith("Print the prompt's token ids")
        assert len(steps) > 1


@pytest.mark.in_turn
@pytest.mark.parametrize("scale", [2.5, 40.0])
@pytest.mark.parametrize("rounded", [True, False])
def test_sequences_of_bfloat16_do_not_pass_for_float32(tmp_path: Path, scale: float, rounded: bool) -> None:
    """Logits that both sides round may round alike, so that a token is closer than bfloat16 computes."""
    loop = Loop("bfloat16", size=64, length=32)
    loop.policy = Policy(vocabulary=256, scale=scale)
    logits = loop._logits
    loop._logits = lambda *given: logits(*given).bfloat16().float() if rounded else logits(*given)
    loop._declared = dict
    loop.run(3, str(tmp_path / "run"))
    rows = rows_of(trueline.open_run(tmp_path / "run"))
    assert dtype_text(rows) == "in a dtype that was not declared"


def test_sequences_that_are_as_close_as_float32_show_it(tmp_path: Path) -> None:
    def undeclared(batch: Batch) -> None:
        batch["sampling"] = {}
        _off_by(made, 0.02, 40)

    made = Made(size=64)
    run = recorded(tmp_path, made, change=undeclared)
    (found,) = (each for each in trueline.check(run).findings if each.code == "logprob-gap")
    assert "rounding explains in float32, which some sequences show" in found.claim


def test_what_breaks_in_a_second_epoch_is_not_taken_for_a_cache_of_prompts(tmp_path: Path) -> None:
    """All its prompts were answered before, and none of the first epoch's were."""
    made = Made(size=32)

    def change(batch: Batch) -> None:
        _versions(batch)
        batch["prompt_ids"] = [[9 + batch["step"] % 3, row, 4] for row in range(32)]
        _off_by(made, 0.5 if batch["step"] >= 3 else 1e-6)

    verdict = _verdicts(recorded(tmp_path, made, steps=8, change=change))[0]
    assert verdict.standing == "undecided"
    assert "seen-prompts" not in _kinds(str(tmp_path / "run"), "logprob-gap")


def test_log_probabilities_of_other_sequences_are_no_known_cause(tmp_path: Path) -> None:
    made = Made(size=32, error=0.02)

    def change(batch: Batch) -> None:
        batch["sampling"] = {"dtype": "bfloat16"}
        batch["logp_rollout"] = np.roll(batch["logp_rollout"], 1, axis=0)
        del batch["odds_rollout"], batch["odds_train"]

    assert _cause(recorded(tmp_path, made, change=change)) == "unknown"


def test_a_value_that_fills_gaps_agrees_with_no_token_further_on(tmp_path: Path) -> None:
    def change(batch: Batch) -> None:
        batch["logp_rollout"] = np.where(batch["logp_train"] < -2.5, -100.0, batch["logp_rollout"])

    assert "row-shifted" not in _kinds(recorded(tmp_path, Made(size=32), change=change), "tokens-differ")


def test_a_cut_in_bfloat16_is_no_padded_vocabulary(tmp_path: Path) -> None:
    """Errors of logits put d of tokens of which nothing was cut above 0, and rare ones are among them."""

    def bfloat16(batch: Batch) -> None:
        batch["sampling"] = {"dtype": "bfloat16"}

    run = recorded(tmp_path, Made(size=64, words=200, error=0.02, scale=1.0), top_p=0.9, change=bfloat16)
    assert _cause(run) == "cut-not-in-trainer"


def test_a_penalty_is_told_in_bfloat16_too(tmp_path: Path) -> None:
    made = Made(size=32, words=64)

    def change(batch: Batch) -> None:
        _penalised(made, batch, processed=True, by=0.5, error=0.05)
        batch["sampling"] = {"dtype": "bfloat16"}

    assert _cause(recorded(tmp_path, made, change=change)) == "penalties-not-in-trainer"


def test_tokens_that_the_trainer_recorded_as_the_same_were_not_tokenised_again(tmp_path: Path) -> None:
    """Weights that arrive while a response is sampled: from some token on newer ones sampled."""
    made = Made(size=32, length=40)

    def change(batch: Batch) -> None:
        _versions(batch)
        batch["train_response_ids"] = batch["response_ids"].copy()
        made.error = np.where(np.arange(40) >= 14 + 3 * batch["step"], 0.6, 1e-6)[None, :, None]

    run = recorded(tmp_path, made, change=change)
    assert "ids-equal" in _kinds(run, "tokens-differ")
    assert _cause(run) == "unknown"


def test_greedy_sampling_that_was_declared_is_no_other_distribution(tmp_path: Path) -> None:
    def greedy(batch: Batch) -> None:
        batch["sampling"] = {"dtype": "float32", "temperature": 0}

    found = {each.code for each in trueline.check(recorded(tmp_path, Made(), temperature=0.01, change=greedy)).findings}
    assert not found & {"sampling-mismatch", "recorded-logprobs-wrong"}


def test_responses_that_are_shifted_either_way_are_said_with_the_most_frequent_shift(tmp_path: Path) -> None:
    made = Made(size=32, length=40)

    def change(batch: Batch) -> None:
        for row, shift in ((0, 1), (1, -1)):
            batch["logp_rollout"][row, 12:] = np.roll(batch["logp_rollout"][row, 12:], -shift)

    (found,) = (
        each
        for each in trueline.check(recorded(tmp_path, made, steps=4, change=change)).findings
        if each.code == "tokens-differ"
    )
    assert found.evidence["kind"] == "row-shifted"
    assert abs(found.evidence["shift"]) == 1
    assert found.measured == 8.0


def test_tokens_that_the_trainer_recorded_as_others_were_tokenised_again(tmp_path: Path) -> None:
    made = Made(size=32, length=40, error=np.where(np.arange(40) >= 20, 2.0, 1e-6)[None, :, None])

    def change(batch: Batch) -> None:
        batch["train_response_ids"] = np.where(np.arange(40) >= 20, 1 + batch["response_ids"], batch["response_ids"])

    run = recorded(tmp_path, made, change=change)
    assert _kinds(run, "tokens-differ") == {"response"}  # log-probabilities of other tokens say nothing more
    assert _cause(run) == "response-tokenised-again"


def test_greedy_sampling_is_said_to_be_out_of_what_is_judged(tmp_path: Path) -> None:
    def greedy(batch: Batch) -> None:
        batch["sampling"] = {"dtype": "float32", "temperature": 0}

    report = trueline.check(recorded(tmp_path, Made(), temperature=0.01, change=greedy))
    why = {each.check: each.why for each in report.checks_not_run}
    assert "greedy sampling was declared" in why["sampling-mismatch"]
