"""What the constants of frameworks and of a published guide say of the same tokens.

verl b178a3c (docs/algo/rollout_corr.md, "health"), NeMo-RL 7ea279a (docs/guides/grpo.md), slime 624b824 (its CI), TRL
f2cd577 (the default of vllm_importance_sampling_cap), the guide's 2.3.3.5. d is logp_rollout - logp_train of a sampled
token, N tokens of R sequences.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

import trueline

NAMES = ("guide", "verl", "NeMo-RL", "slime", "TRL")


def verdicts(path: str) -> dict[int, Mapping[str, bool]]:
    """By step whether each alarms."""
    table = trueline.open_run(path).kept("rollouts").table(["step", "mask", "logp_rollout", "logp_train"]).to_pylist()
    by_step: dict[int, list[np.ndarray]] = {}
    for row in table:
        keep = np.asarray(row["mask"]) > 0
        d = np.asarray(row["logp_rollout"], dtype=np.float64) - np.asarray(row["logp_train"], dtype=np.float64)
        by_step.setdefault(row["step"], []).append(d[keep])
    return {step: _of(sequences) for step, sequences in by_step.items()}


def _of(sequences: list[np.ndarray]) -> Mapping[str, bool]:
    d_N = np.concatenate(sequences)
    weight_N = np.exp(np.clip(-d_N, -20, 20))
    effective = weight_N.sum() ** 2 / (weight_N**2).sum() / len(weight_N)
    chi2 = (weight_N**2).mean() - 1
    healthy = (
        0.5 <= weight_N.mean() <= 2
        and effective >= 0.3
        and weight_N.std() <= 1
        and abs(d_N.mean()) <= 0.1
        and chi2 <= 1
    )
    return {
        "guide": abs(np.mean([each.mean() for each in sequences if len(each)])) > 0.01,
        "verl": not healthy,
        "NeMo-RL": np.exp(np.abs(d_N)).mean() > 1.05,
        "slime": np.abs(d_N).mean() > 0.1,
        "TRL": weight_N.max() > 3.0,
    }
