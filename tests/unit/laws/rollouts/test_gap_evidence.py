"""What tells causes apart that leave gaps of one size, or tokens that are as much too likely."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gallery.rollouts.drawn import Made, at, cut, drawn, softmax
from tests.unit.made_rollouts import codes, recorded

import trueline
from trueline.judge.causes.verdicts import CauseVerdict
from trueline.laws.rollouts.cut_edges import LEAST, edge_of

Batch = dict[str, Any]


def _verdict(run: str) -> CauseVerdict:
    return next(iter(trueline.diagnose(run).of(0)))


def _kinds(run: str, code: str) -> set[str]:
    (kinds,) = (finding.evidence["kind"] for finding in trueline.check(run).findings if finding.code == code)
    return set(kinds)


def _at(length: int, early: float, late: float) -> Any:
    """Errors of logits by position: those of the first six tokens, and of all behind them."""
    return np.where(np.arange(length) < 6, early, late)[None, :, None]


def _own_prompts(batch: Batch) -> None:
    """Four responses to each prompt."""
    batch["prompt_ids"] = [[5, 6, 100 * batch["step"] + row // 4] for row in range(len(batch["response_ids"]))]


@pytest.mark.parametrize(
    ("late", "kind", "cause"),
    [(0.25, "fades", "prompt-differs"), (0.6, "as-far-to-the-end", "implementations-differ")],
)
def test_a_gap_that_fades_along_the_response_is_of_the_prompt(
    tmp_path: Path, late: float, kind: str, cause: str
) -> None:
    run = recorded(tmp_path, Made(size=32, length=32, error=_at(32, 0.5, late)), steps=6)
    assert kind in _kinds(run, "logprob-gap")
    verdict = _verdict(run)
    assert (verdict.cause, verdict.among) == (cause, ())


@pytest.mark.parametrize("by_prompt", [True, False])
def test_sequences_of_some_prompts_have_the_gap_together(tmp_path: Path, by_prompt: bool) -> None:
    made = Made(size=32, length=24)

    def change(batch: Batch) -> None:
        _own_prompts(batch)
        rows = np.arange(32) // 4 if by_prompt else made.random.permutation(32)
        made.error = np.where(rows % 2 == 0, 0.5, 1e-6)[:, None, None] * _at(24, 1.0, 0.8)

    # the first batch is drawn before errors are by prompt
    made.error = np.where(np.arange(32) // 4 % 2 == 0, 0.5, 1e-6)[:, None, None] * _at(24, 1.0, 0.8)
    run = recorded(tmp_path, made, change=change)
    assert ("by-prompt" in _kinds(run, "logprob-gap")) is by_prompt
    assert (_verdict(run).cause == "prompt-differs") is by_prompt


def test_a_gap_of_all_sequences_of_a_step_is_not_by_prompt(tmp_path: Path) -> None:
    made = Made(size=32)

    def change(batch: Batch) -> None:
        _own_prompts(batch)
        made.error = 0.5 if batch["step"] >= 2 else 1e-6

    assert "by-prompt" not in _kinds(recorded(tmp_path, made, steps=8, change=change), "logprob-gap")


@pytest.mark.parametrize(("share", "kind"), [(0.0, "every-token"), (0.8, "some-tokens")])
def test_whether_each_token_has_the_gap(tmp_path: Path, share: float, kind: str) -> None:
    made = Made(size=32)

    def change(batch: Batch) -> None:
        right = made.random.random(made.shape[:2]) < share
        moved = np.where(right, 2e-6, 0.3) * np.where(made.random.random(made.shape[:2]) < 0.5, -1, 1)
        batch["logp_rollout"] = batch["logp_train"] + moved
        del batch["odds_rollout"], batch["odds_train"]

    assert kind in _kinds(recorded(tmp_path, made, change=change), "logprob-gap")


@pytest.mark.parametrize(
    ("name", "among"),
    [
        ("layers.0.mlp.down.weight", ()),
        ("layers.0.mlp.experts.down", ("implementations-differ", "routing-differs")),
    ],
)
def test_a_model_without_experts_routes_nothing(tmp_path: Path, name: str, among: tuple[str, ...]) -> None:
    """In bfloat16, where near ties of a router may move every token."""
    made, weights = Made(size=32, error=1.0), {name: torch.ones(4)}

    def change(batch: Batch) -> None:
        batch["sampling"] = {"dtype": "bfloat16"}
        trueline.rl.record_sync(batch["step"], weights, weights, out=str(tmp_path / "run"))

    verdict = _verdict(recorded(tmp_path, made, change=change))
    assert verdict.cause == "implementations-differ"
    assert verdict.among == among


def test_where_no_prompt_is_new_a_cache_of_prompts_is_a_candidate(tmp_path: Path) -> None:
    made = Made(size=32)

    def change(batch: Batch) -> None:
        step = batch["step"]
        batch["versions"] = (step, step)
        batch["prompt_ids"] = [[7, 7, 7, row] for row in range(32)]
        made.error = 0.15 * (step + 1)
        weights = {"layers.0.weight": torch.full((4,), float(step))}
        trueline.rl.record_sync(step, weights, weights, out=str(tmp_path / "run"))

    run = recorded(tmp_path, made, steps=8, change=change)
    assert {"after-a-sync", "no-new-prompt"} <= _kinds(run, "logprob-gap")
    verdict = _verdict(run)
    assert verdict.standing == "undecided"
    assert {"derived-weights-stale", "prompt-cache-stale"} <= set(verdict.among)


def _raw(made: Made, batch: Batch, sampled: Callable[[Any], Any]) -> None:
    """Tokens are drawn from ``sampled`` of the probabilities that both sides record."""
    p = softmax(made.scale * made.random.normal(size=made.shape))
    q = sampled(p)
    ids = drawn(q / q.sum(-1, keepdims=True), made.random)
    log_p, own = np.log(p), at(p, ids)[..., None]
    entropy = -(p * log_p).sum(-1)
    batch |= {
        "response_ids": ids,
        "logp_rollout": at(log_p, ids) + 1e-6 * made.random.normal(size=ids.shape),
        "logp_train": at(log_p, ids),
        "entropy": entropy,
        "varentropy": (p * (log_p + entropy[..., None]) ** 2).sum(-1),
        "mass_above": (p * (p > own)).sum(-1),
        "words_above": (p > own).sum(-1),
        "top_train": p.argmax(-1),
        "logp_top": log_p.max(-1),
    }
    del batch["odds_rollout"], batch["odds_train"]


def _top_k(p: Any) -> Any:
    return np.where(p >= np.sort(p, -1)[..., -12:-11], p, 0.0)


def _top_p(p: Any) -> Any:
    return cut(p, 0.8)


def _min_p(p: Any) -> Any:
    return np.where(p >= 0.1 * p.max(-1, keepdims=True), p, 0.0)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("sampled", "cause", "says"),
    [
        (_top_k, "cut-not-recorded", "from the 12 likeliest tokens (top-k)"),
        (_min_p, "cut-not-recorded", "0.1 or more of the likeliest's probability (min-p)"),
        (_top_p, "cut-not-recorded", "from the top 0.8 of the probability"),
        (lambda p: p**1.4, "temperature-not-recorded", "a temperature of about 0."),
        (lambda p: p**2.5, "temperature-not-recorded", "a temperature of about 0."),
        (lambda p: p**4, "temperature-not-recorded", "a temperature of about 0."),
        (lambda p: p**0.7, "temperature-not-recorded", "a temperature of about 1."),
    ],
)
def test_a_cut_before_which_was_recorded_ends_abruptly_and_a_temperature_does_not(
    tmp_path: Path, sampled: Callable[[Any], Any], cause: str, says: str
) -> None:
    made = Made(size=32, words=400)
    run = recorded(tmp_path, made, change=lambda batch: _raw(made, batch, sampled))
    assert says in codes(run)["recorded-logprobs-wrong"].claim
    assert _verdict(run).cause == cause


def test_without_what_shows_a_cut_it_is_left_open_beside_a_temperature(tmp_path: Path) -> None:
    made = Made(size=32, words=400)

    def change(batch: Batch) -> None:
        _raw(made, batch, _top_k)
        for name in ("mass_above", "words_above", "top_train", "logp_top"):
            del batch[name]

    verdict = _verdict(recorded(tmp_path, made, change=change))
    assert set(verdict.among) == {"cut-not-recorded", "temperature-not-recorded"}


def test_few_tokens_that_were_hardly_sampled_were_forced(tmp_path: Path) -> None:
    made = Made(size=32, words=400, scale=3.0)

    def change(batch: Batch) -> None:
        _raw(made, batch, lambda p: p)
        forced = np.zeros(made.shape[:2], np.bool_)
        forced[::3, 8:12] = True
        batch["logp_train"] = np.where(forced, -14.0, batch["logp_train"])
        batch["logp_rollout"] = np.where(forced, -14.0, batch["logp_rollout"])

    run = recorded(tmp_path, made, change=change)
    assert "few-tokens" in _kinds(run, "recorded-logprobs-wrong")
    assert _verdict(run).cause == "forced-tokens-not-masked"


@pytest.mark.parametrize("rate", [0.5, 1.0, 2.0, 4.0])
def test_what_thins_out_has_no_edge(rate: float) -> None:
    random = np.random.default_rng(0)
    assert max(edge_of(random.exponential(1 / rate, size=5000), 0.5)[1] for _ in range(500)) < LEAST
    values = random.exponential(1 / rate, size=20000)
    edge, expected = edge_of(values[values < 1.2], 0.5)
    assert edge == pytest.approx(1.2, abs=0.05)
    assert expected > LEAST


@pytest.mark.parametrize("bent", [0.0, 0.15])
def test_logits_that_are_scaled_only_nearly_are_of_no_temperature(tmp_path: Path, bent: float) -> None:
    made = Made(size=32)

    def change(batch: Batch) -> None:
        batch["odds_rollout"] += bent * np.tanh(made.random.normal(size=batch["odds_rollout"].shape))

    findings = trueline.check(recorded(tmp_path, made, change=change, temperature=1.1)).findings
    kinds = [finding.evidence["kind"] for finding in findings if finding.code == "sampling-mismatch"]
    assert ("temperature" in kinds) is (bent == 0)


def test_a_gap_of_nats_brings_no_finding_of_what_is_left_out(tmp_path: Path) -> None:
    run = recorded(tmp_path, Made(size=32, scale=3.0, error=3.0))
    assert set(codes(run)) == {"logprob-gap"}


def _zeros_at(tokens: Any, logp: float) -> Callable[[Batch], None]:
    """The engine recorded 0 at ``tokens``, whose log-probability is ``logp`` for the trainer, and ``mass`` above it."""

    def change(batch: Batch) -> None:
        batch["logp_train"] = np.where(tokens, logp, batch["logp_train"])
        batch["mass_above"] = np.where(tokens, 1 - 2 * np.exp(logp), batch["mass_above"])
        batch["logp_rollout"] = np.where(tokens, 0.0, batch["logp_rollout"])
        del batch["odds_rollout"], batch["odds_train"]

    return change


@pytest.mark.parametrize(("logp", "cause"), [(-1.5, "logprobs-missing"), (-6.0, "forced-tokens-not-masked")])
def test_zeros_at_tokens_that_were_hardly_sampled_are_of_tokens_that_were_put_there(
    tmp_path: Path, logp: float, cause: str
) -> None:
    tokens = np.zeros((32, 24), np.bool_)
    tokens[::3, 10:12] = True
    run = recorded(tmp_path, Made(size=32), change=_zeros_at(tokens, logp))
    assert ("the engine put them there" in codes(run)["recorded-logprobs-wrong"].claim) is (logp == -6.0)
    assert _verdict(run).cause == cause


def test_sequences_that_are_shifted_from_their_first_token_on_are_all_of_them(tmp_path: Path) -> None:
    """Also where values of the first token hide it from the correlation of all."""

    def change(batch: Batch) -> None:
        batch["logp_train"] = np.roll(batch["logp_train"], 1, axis=1)
        batch["logp_train"][:, 0] = -18.0
        del batch["odds_rollout"], batch["odds_train"]

    run = recorded(tmp_path, Made(size=32), change=change)
    assert codes(run)["tokens-differ"].evidence["kind"] == "shifted"
    assert _verdict(run).cause == "logprobs-shifted"


@pytest.mark.parametrize("spread", [0, 12])
def test_what_begins_at_one_place_in_all_responses_is_not_of_their_text(tmp_path: Path, spread: int) -> None:
    made = Made(size=32, length=40)

    def change(batch: Batch) -> None:
        begin = 14 + made.random.integers(spread + 1, size=(32, 1, 1))
        made.error = np.where(np.arange(40)[None, :, None] >= begin, 1.5, 1e-6)

    made.error = _at(40, 1e-6, 1e-6)
    run = recorded(tmp_path, made, steps=8, change=change)
    assert ("tokens-differ" in codes(run)) is (spread > 0)


@pytest.mark.parametrize("by", [2.0, 0.0])
def test_a_penalty_of_tokens_that_hardly_come_again_shows_in_what_the_others_gain(tmp_path: Path, by: float) -> None:
    """Without one, rows that pad the trainer's vocabulary take from all tokens alike."""
    made = Made(size=32, length=12, words=300)

    def change(batch: Batch) -> None:
        size, length, words = made.shape
        logits = 1.5 * made.random.normal(size=made.shape) + 0.5 * made.random.normal(size=(size, 1, words))
        logits[:, :, :3] += 2.5  # a few words are among the likeliest again and again
        stood, before = np.zeros((size, words), np.bool_), np.zeros(made.shape, np.bool_)
        ids = np.zeros((size, length), np.int64)
        for place in range(length):
            before[:, place] = stood
            ids[:, place] = drawn(softmax(logits[:, place] - by * stood), made.random)
            stood[np.arange(size), ids[:, place]] = True
        log_p, log_q = np.log(softmax(logits)), np.log(softmax(logits - by * before)) + (0.2 if not by else 0.0)
        entropy = -(np.exp(log_p) * log_p).sum(-1)
        batch |= {
            "response_ids": ids,
            "logp_rollout": at(log_q, ids) + 1e-6 * made.random.normal(size=ids.shape),
            "logp_train": at(log_p, ids),
            "entropy": entropy,
            "varentropy": (np.exp(log_p) * (log_p + entropy[..., None]) ** 2).sum(-1),
            "mass_above": (np.exp(log_p) * (log_p > at(log_p, ids)[..., None])).sum(-1),
            "top_train": log_p.argmax(-1),
            "logp_top": log_p.max(-1),
        }
        del batch["odds_rollout"], batch["odds_train"]

    kinds = {
        kind
        for finding in trueline.check(recorded(tmp_path, made, steps=4, change=change)).findings
        if finding.code == "sampling-mismatch"
        for kind in (
            [finding.evidence["kind"]] if isinstance(finding.evidence["kind"], str) else finding.evidence["kind"]
        )
    }
    assert ("penalties" in kinds) is (by > 0)


@pytest.mark.parametrize("by_row", [True, False])
def test_where_some_sequences_have_the_gap_it_is_not_of_what_all_are_computed_with(
    tmp_path: Path, by_row: bool
) -> None:
    """As where one of several engines is off, which answers every other request."""
    made = Made(size=32, error=1e-6)

    def change(batch: Batch) -> None:
        step = batch["step"]
        batch["prompt_ids"] = [[100 * step + row // 4 + 1, 5, 6] for row in range(32)]
        batch["versions"] = (step, step)
        off = (np.arange(32) % 2 == 0)[:, None, None] | (not by_row)
        made.error = np.where(off, 0.15 * (step + 1), 1e-6)
        weights = {"layers.0.weight": torch.full((4,), float(step))}
        trueline.rl.record_sync(step, weights, weights, out=str(tmp_path / "run"))

    run = recorded(tmp_path, made, steps=8, change=change)
    assert ("by-row" in _kinds(run, "logprob-gap")) is by_row
    assert (_verdict(run).cause == "derived-weights-stale") is not by_row
