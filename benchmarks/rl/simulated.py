"""Healthy rollouts that are drawn from distributions that are made up, judged: how often a check alarms.

    python -m benchmarks.rl --part drawn

500 steps of 1,000 tokens over 50 words each: a few seconds.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from benchmarks.rl.measure import RESULTS, read
from gallery.rollouts.drawn import Made

import trueline
from trueline.rl.batch import rows_of
from trueline.store.writer import RunWriter

STEPS, SIZE, LENGTH, SEEDS = 500, 50, 20, 3
Change = Callable[[dict[str, Any], np.random.Generator], None]


def _bfloat16(batch: dict[str, Any], random: np.random.Generator) -> None:
    del random
    batch["sampling"] = {"dtype": "bfloat16"}


def _kept_in_bfloat16(batch: dict[str, Any], random: np.random.Generator) -> None:
    _bfloat16(batch, random)
    for name in ("logp_rollout", "logp_train"):
        bits = batch[name].astype(np.float32).view(np.uint32)
        batch[name] = ((bits + 0x8000) & 0xFFFF0000).view(np.float32)


def _lag(batch: dict[str, Any], random: np.random.Generator) -> None:
    del random
    batch |= {"version_rollout": 0, "version_train": 1, "sampling": {"lag": 1}}


def _tools(batch: dict[str, Any], random: np.random.Generator) -> None:
    batch["mask"] = (random.random(batch["response_ids"].shape) > 0.3).astype(int)
    for name in ("logp_rollout", "logp_train"):
        batch[name] = np.where(batch["mask"] == 1, batch[name], -9.0)


def _unrecorded(batch: dict[str, Any], random: np.random.Generator) -> None:
    del random, batch["logp_rollout"], batch["odds_rollout"], batch["odds_train"]


def _entropies_alone(batch: dict[str, Any], random: np.random.Generator) -> None:
    _unrecorded(batch, random)
    del batch["varentropy"]
    batch["sampling"] = {"dtype": "bfloat16", "vocabulary": 50}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], Change | None]] = {
    "float32 on both sides": ({}, {}, None),
    "an engine with rounding of 0.01, declared bfloat16": ({"error": 0.01}, {}, _bfloat16),
    "the same, log-probabilities kept in bfloat16": ({"error": 0.01}, {}, _kept_in_bfloat16),
    "a lag that is declared, logits 0.4 apart": ({"error": 0.4}, {}, _lag),
    "top-p 0.9 that the trainer reproduces": ({"reproduced": True}, {"top_p": 0.9}, None),
    "30 % of the tokens a tool's, and masked": ({}, {}, _tools),
    "a policy of very low entropy": ({"scale": 12.0}, {}, None),
    "an engine that records nothing": ({}, {}, _unrecorded),
    "the same, rounding of 0.01, entropies alone": ({"error": 0.01}, {}, _entropies_alone),
}


def judge(case: str, seed: int) -> dict[str, Any]:
    """What is found in one Run."""
    made_of, sampled, change = CASES[case]
    made, random = Made(size=SIZE, length=LENGTH, seed=seed, **made_of), np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as folder:
        writer = RunWriter(f"{folder}/run", rank=0, seal_s=600)
        for step in range(STEPS):
            batch = made.batch(**sampled)
            batch["version_rollout"], batch["version_train"] = batch.pop("versions")
            if change is not None:
                change(batch, random)
            writer.write(rows_of(step, batch, batch.pop("sampling")))
        writer.close()
        report = trueline.check(f"{folder}/run")
    found = [f"{each.code}: {each.claim}" for each in report.findings if each.is_grave]
    return {"case": case, "seed": seed, "steps": STEPS, "tokens": SIZE * LENGTH, "found": found}


def main() -> None:
    """Judge those that are not there."""
    known = {(one["case"], one["seed"]) for one in read("drawn")}
    RESULTS.mkdir(exist_ok=True)
    for seed, case in product(range(SEEDS), CASES):
        if (case, seed) not in known:
            with (RESULTS / "drawn.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps(judge(case, seed)) + "\n")
