"""What the constants of frameworks, in ``constants.toml`` with their sources, say of the same tokens.

d is logp_rollout - logp_train of a sampled token, N tokens of R sequences of one step.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import trueline

CONSTANTS: list[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("constants.toml").read_text(encoding="utf-8"))[
    "constant"
]
NAMES = tuple(dict.fromkeys(each["framework"] for each in CONSTANTS))


def alarms(of_steps: Sequence[Mapping[str, float]]) -> dict[str, int]:
    """At how many steps each framework alarms."""
    count = dict.fromkeys(NAMES, 0)
    for metrics in of_steps:
        for name in {each["framework"] for each in CONSTANTS if not _within(metrics[each["metric"]], each)}:
            count[name] += 1
    return count


def _within(value: float, constant: Mapping[str, Any]) -> bool:
    return constant.get("low", -np.inf) <= value <= constant.get("high", np.inf)


def by_step(path: str) -> list[Mapping[str, float]]:
    """The metrics of each step of a Run."""
    found: dict[int, list[np.ndarray]] = {}
    for table in trueline.open_run(path).kept("rollouts").pieces(["step", "mask", "logp_rollout", "logp_train"]):
        for row in table.to_pylist():
            keep = np.asarray(row["mask"]) > 0
            d = np.asarray(row["logp_rollout"], np.float64) - np.asarray(row["logp_train"], np.float64)
            if keep.any():
                found.setdefault(row["step"], []).append(d[keep])
    return [_metrics(sequences) for sequences in found.values()]


def _metrics(sequences: list[np.ndarray]) -> Mapping[str, float]:
    d_N = np.concatenate(sequences)
    weight_N = np.exp(np.clip(-d_N, -20, 20))
    return {
        "tokens": len(d_N),
        "log_ppl_diff": float(np.mean([each.mean() for each in sequences])),
        "weight_mean": weight_N.mean(),
        "weight_std": weight_N.std(),
        "weight_min": weight_N.min(),
        "weight_max": weight_N.max(),
        "effective_share": weight_N.sum() ** 2 / (weight_N**2).sum() / len(weight_N),
        "chi2_token": (weight_N**2).mean() - 1,
        "k1": d_N.mean(),
        "k3": (weight_N - 1 + d_N).mean(),
        "abs_diff": np.abs(d_N).mean(),
        "mult_prob_error": np.exp(np.clip(np.abs(d_N), 0, 20)).mean(),
        "sequence_weight_max": float(np.exp(max(np.clip(-each.sum(), -20, 20) for each in sequences))),
    }
