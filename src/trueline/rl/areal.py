"""Rollouts of AReaL, recorded by each of its trainers before advantages are computed, with no edit (as in 1.0).

What the engine recorded stands at its token, what the trainer computes (``prox_logp``) at the token before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from trueline.rl.frameworks import Follower, as_array
from trueline.schema.whole_sequences import cut_to_responses

_NO_LOGPROBS = (
    "their trainer computes no log-probabilities before the update: pass actor.recompute_logprob=true, or "
    "actor.use_decoupled_loss=true with actor.prox_logp_method=recompute."
)


class _Actor(Follower):
    framework = "AReaL"
    owner = "PPOActor"

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return {"_compute_advantages": self._values}

    def _values(self, original: Callable[..., Any], actor: Any, data: Any, *args: Any, **kwargs: Any) -> Any:
        # the original puts the trainer's in place of the engine's, and turns masks
        self.try_to(self._keep, actor, data)
        return original(actor, data, *args, **kwargs)

    def _keep(self, actor: Any, data: Mapping[str, Any]) -> None:
        if not actor.engine.is_data_parallel_head():
            return
        count, width = data["input_ids"].shape
        # which prompts they are of is not in the batch
        rows = self.pick(range(count), width)
        names = ("input_ids", "logprobs", "prox_logp", "loss_mask", "versions", "rewards")
        parts = [as_array(data[name][rows]) if data.get(name) is not None else None for name in names]
        ids, rollout, prox, mask, versions, rewards = parts
        if prox is None:
            self.says(_NO_LOGPROBS)
        aligned = [None] * len(rows) if prox is None else np.roll(prox, 1, axis=-1)
        columns: dict[str, Any] = cut_to_responses(zip(ids, rollout, aligned, mask, strict=True))
        columns["reward"] = rewards
        declared = {"temperature": getattr(actor, "temperature", None), "dtype": _dtype(actor)}
        sampling = {name: value for name, value in declared.items() if value is not None}
        version = int(actor.engine.get_version())
        if versions is not None:
            oldest = np.where(mask != 0, versions, version).min(axis=-1)
            columns["versions"] = (oldest.tolist(), version)
            # how old samples may be is AReaL's own setting, which it keeps
            sampling["lag"] = max(0, version - int(oldest.min()))
        self.record(version, columns, sampling)


FOLLOWERS: Mapping[str, type[Follower]] = {"areal.trainer.ppo.actor": _Actor}


def _dtype(actor: Any) -> str | None:
    """The dtype that the trainer computes in."""
    dtype = getattr(getattr(actor.engine, "config", None), "dtype", None)
    return dtype if isinstance(dtype, str) else None
