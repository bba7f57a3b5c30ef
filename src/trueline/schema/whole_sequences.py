"""Log-probabilities that a framework keeps for whole sequences, prompt and response, cut to what was sampled.

T tokens of a sequence, L from the first that was sampled on.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np


def cut_to_responses(
    sequences: Iterable[tuple[Any, Any, Any, Any]],
) -> dict[str, list[Any]]:
    """Columns of the table ``rollouts``, of each sequence ``(ids, logp_rollout, logp_train, mask)``, [T] each and
    aligned to the token: None for ids or log-probabilities that there are not, and for a mask where the engine has 0
    for what it did not sample.

    A trainer that skips its pass leaves 0 throughout: that is none.
    """
    names = ("prompt_ids", "response_ids", "logp_rollout", "logp_train", "mask")
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for ids, rollout, train, mask in sequences:
        of_engine = np.ravel(np.asarray(rollout, dtype=np.float64))
        of_trainer = None if train is None else np.ravel(np.asarray(train, dtype=np.float64))
        sampled = of_engine != 0 if mask is None else np.ravel(np.asarray(mask)) != 0
        # no distribution leaves one token throughout
        if of_trainer is not None and not of_trainer[sampled[: len(of_trainer)]].any():
            of_trainer = None
        first = int(np.argmax(sampled)) if sampled.any() else 0
        words = None if ids is None else np.ravel(np.asarray(ids))
        columns["prompt_ids"].append(None if words is None else words[:first])
        columns["response_ids"].append(None if words is None else words[first:])
        columns["logp_rollout"].append(of_engine[first:])
        columns["logp_train"].append(None if of_trainer is None else of_trainer[first:])
        columns["mask"].append(sampled[first:].astype(int))
    return {name: column for name, column in columns.items() if any(value is not None for value in column)}
