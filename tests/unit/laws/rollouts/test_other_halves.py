"""Which cause is named where one side computes within a cut, at a temperature or with an adapter, and the other not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gallery.rollouts.drawn import Made, at, drawn, log_odds, softmax
from tests.unit.made_rollouts import codes, recorded

import trueline

Batch = dict[str, Any]


def _verdict(run: str) -> Any:
    return trueline.diagnose(run).of(0)[0]


def _judged_by(made: Made, batch: Batch, engine: Any, trainer: Any) -> None:
    """Tokens are of the trainer's distribution [B, L, V], and the engine recorded another."""
    ids = drawn(trainer, made.random)
    own = at(trainer, ids)[..., None]
    with np.errstate(divide="ignore"):
        log_p = np.log(trainer)
    known = np.where(trainer > 0, log_p, 0.0)
    entropy = -(trainer * known).sum(-1)
    top = np.argsort(-engine, axis=-1)[..., :2]
    batch |= {
        "response_ids": ids,
        "logp_rollout": at(np.log(engine), ids) + 1e-7 * made.random.normal(size=ids.shape),
        "logp_train": at(log_p, ids),
        "entropy": entropy,
        "varentropy": (trainer * (known + entropy[..., None]) ** 2).sum(-1),
        "mass_above": (trainer * (trainer > own)).sum(-1),
        "words_above": (trainer > own).sum(-1),
        "top_train": trainer.argmax(-1),
        "logp_top": log_p.max(-1),
        "odds_rollout": log_odds(np.log(engine), top),
        "odds_train": log_odds(log_p, top),
    }


def _top_k(p: Any) -> Any:
    kept = np.where(p >= np.sort(p, -1)[..., -12:-11], p, 0.0)
    return kept / kept.sum(-1, keepdims=True)


@pytest.mark.parametrize("declared", [{}, {"top_k": 12}])
def test_a_trainer_that_normalises_over_a_cut_alone_is_told_from_rows_that_pad_the_engine(
    tmp_path: Path, declared: dict[str, int]
) -> None:
    """By the edge of the tokens, or by what was declared where nobody recorded what shows one."""
    made = Made(size=32, words=400)

    def change(batch: Batch) -> None:
        p = softmax(2 * made.random.normal(size=made.shape))
        _judged_by(made, batch, p, _top_k(p))
        batch["sampling"] |= declared
        if declared:
            del batch["words_above"], batch["mass_above"], batch["logp_top"], batch["top_train"]

    run = recorded(tmp_path, made, change=change)
    assert "trainer-cut" in codes(run)["recorded-logprobs-wrong"].evidence["kind"]
    assert (_verdict(run).cause, _verdict(run).among) == ("normalised-over-a-cut", ())


@pytest.mark.parametrize("seed", range(8))
def test_few_rows_that_pad_the_engine_are_of_no_penalty(tmp_path: Path, seed: int) -> None:
    made = Made(size=32, words=400, seed=seed)

    def change(batch: Batch) -> None:
        logits = 2 * made.random.normal(size=made.shape)
        beyond = np.exp(2 * made.random.normal(size=(*made.shape[:2], 20))).sum(-1, keepdims=True)
        p = softmax(logits)
        _judged_by(made, batch, p / (1 + beyond / np.exp(logits).sum(-1, keepdims=True)), p)

    verdict = _verdict(recorded(tmp_path, made, steps=3, change=change))
    assert (verdict.cause, verdict.among) == ("padded-vocabulary", ())


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("temperature", "of_trainer"), [(1.2, True), (1.2, False)])
def test_of_two_temperatures_tokens_say_whose_they_are(
    tmp_path: Path, seed: int, temperature: float, of_trainer: bool
) -> None:
    made = Made(size=16, words=60, seed=seed)

    def change(batch: Batch) -> None:
        logits = 2 * made.random.normal(size=made.shape)
        engine, trainer = softmax(logits), softmax(logits / temperature)
        _judged_by(made, batch, *((engine, trainer) if of_trainer else (trainer, engine)))
        if not of_trainer:  # the engine samples and records at the temperature
            ids = drawn(trainer, made.random)
            swapped = {"logp_rollout": trainer, "logp_train": engine}
            batch |= {"response_ids": ids} | {name: at(np.log(p), ids) for name, p in swapped.items()}
            batch["mass_above"] = (engine * (engine > at(engine, ids)[..., None])).sum(-1)
            del batch["words_above"]

    cause = _verdict(recorded(tmp_path, made, steps=2, change=change)).cause
    assert cause == ("temperature-not-recorded" if of_trainer else "temperature-not-in-trainer")


def _synced(folder: Path, batch: Batch, made: Made, scale: float) -> None:
    """Weights with an adapter that grows from step to step, as the engine has them at a ``scale``."""
    step = batch["step"]
    base, down = torch.ones(4, 4), torch.eye(2, 4)
    up = 0.1 * step * torch.arange(8.0).reshape(4, 2)
    trainer = {"w.base_layer.weight": base, "w.lora_A.default.weight": down, "w.lora_B.default.weight": up}
    engine = {"w.weight": base + scale * up @ down}
    trueline.rl.record_sync(step, trainer, engine, version=step, out=str(folder / "run"))
    batch["versions"] = (step, step)


def test_a_gap_beside_an_adapter_that_is_merged_is_of_nothing_that_was_derived(tmp_path: Path) -> None:
    """Its scale is in no parameter: the weights equal the trainer's at whatever scale."""
    made = Made(size=32)

    def change(batch: Batch) -> None:
        batch["prompt_ids"] = [[100 + batch["step"], row, 1, 2] for row in range(32)]
        _synced(tmp_path, batch, made, 2.0)
        made.error = np.full((1, 1, 1), 0.15 * (batch["step"] + 1))

    run = recorded(tmp_path, made, steps=8, change=change)
    assert {"weights-equal", "adapter-merged", "grows-on"} <= set(codes(run)["logprob-gap"].evidence["kind"])
    assert not _verdict(run).is_known


def test_what_fades_along_responses_to_prompts_that_are_known_is_of_the_prompt(tmp_path: Path) -> None:
    """The system prompt that all begin with is there in any case, so that no prompt is new."""
    made = Made(size=32)

    def change(batch: Batch) -> None:
        step = batch["step"]
        batch["versions"] = (step, step)
        weights = {"layers.0.weight": torch.full((4,), float(step))}
        trueline.rl.record_sync(step, weights, weights, version=step, out=str(tmp_path / "run"))
        along = np.where(np.arange(32)[:, None] % 2, 0.2 * 0.85 ** np.arange(24), 0.01 + 0.001 * np.arange(24))
        made.error = (step + 1) * along[..., None]

    run = recorded(tmp_path, made, steps=8, change=change)
    assert {"fades", "no-new-prompt", "weights-equal"} <= set(codes(run)["logprob-gap"].evidence["kind"])
    assert (_verdict(run).cause, _verdict(run).among) == ("prompt-cache-stale", ())


@pytest.mark.parametrize("processed", [False, True])
def test_words_that_never_come_are_of_no_temperature_and_pad_nothing(tmp_path: Path, processed: bool) -> None:
    """Every fifth word, a likely one, is forbidden before or after log-probabilities are recorded."""
    made = Made(size=32, words=60)

    def change(batch: Batch) -> None:
        p = softmax(2 * made.random.normal(size=made.shape) + (0 if processed else np.arange(60) % 5 == 2))
        q = np.where(np.arange(60) % 5 == 2, 0.0, p)
        q = q / q.sum(-1, keepdims=True)
        ids = drawn(q, made.random)
        log_p, own = np.log(p), at(p, ids)[..., None]
        entropy = -(p * log_p).sum(-1)
        batch |= {
            "response_ids": ids,
            "logp_rollout": at(np.log(q) if processed else log_p, ids),
            "logp_train": at(log_p, ids) + 1e-7 * made.random.normal(size=ids.shape),
            "entropy": entropy,
            "varentropy": (p * (log_p + entropy[..., None]) ** 2).sum(-1),
            "mass_above": (p * (p > own)).sum(-1),
            "words_above": (p > own).sum(-1),
            "top_train": p.argmax(-1),
            "logp_top": log_p.max(-1),
        }
        del batch["odds_rollout"], batch["odds_train"]

    with np.errstate(divide="ignore"):
        run = recorded(tmp_path, made, change=change)
    if processed:
        assert "words-left-out" in codes(run)["sampling-mismatch"].evidence["kind"]
        assert _verdict(run).cause == "cut-not-in-trainer"
    else:
        assert "words-never" in codes(run)["recorded-logprobs-wrong"].evidence["kind"]
        assert not _verdict(run).is_known


def test_a_temperature_of_every_other_request_is_a_temperature(tmp_path: Path) -> None:
    made = Made(size=32)

    def change(batch: Batch) -> None:
        logits = 2 * made.random.normal(size=made.shape)
        q = softmax(logits / np.where(np.arange(32) % 2, 0.7, 1.0)[:, None, None])
        _judged_by(made, batch, q, softmax(logits))
        ids = drawn(q, made.random)
        batch |= {"response_ids": ids, "logp_rollout": at(np.log(q), ids)}
        batch["logp_train"] = at(np.log(softmax(logits)), ids) + 1e-7 * made.random.normal(size=ids.shape)
        batch["prompt_ids"] = [[1, row // 4] for row in range(32)]
        for name in ("mass_above", "words_above", "logp_top", "top_train"):
            del batch[name]

    run = recorded(tmp_path, made, change=change)
    assert "96 of 192 sequences" in codes(run)["sampling-mismatch"].claim
    assert _verdict(run).cause == "temperature-not-in-trainer"


def test_log_probabilities_of_the_likeliest_in_place_of_others_are_of_no_cut(tmp_path: Path) -> None:
    made = Made(size=32)

    def change(batch: Batch) -> None:
        p = softmax(2 * made.random.normal(size=made.shape))
        _judged_by(made, batch, p, p)
        is_listed = batch["logp_train"] >= np.log(np.sort(p, -1)[..., -2]) - 1e-9
        batch["logp_rollout"] = np.where(is_listed, batch["logp_rollout"], batch["logp_top"])

    run = recorded(tmp_path, made, change=change)
    assert codes(run)["sampling-mismatch"].evidence["kind"] == "others-recorded"
    assert not _verdict(run).is_known
