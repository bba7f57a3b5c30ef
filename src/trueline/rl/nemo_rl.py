"""Rollouts of NeMo-RL, recorded in its driver as it logs them after each step, with no edit (as of August 2026).

All of its loops of GRPO, whether or not they hold batches themselves, hand what they trained on to
``Logger.log_batched_dict_as_jsonl``, unless ``env.should_log_nemo_gym_responses`` is set.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from trueline.rl.frameworks import DriverFollower, Follower, as_array
from trueline.schema.whole_sequences import cut_to_responses

_FILE = re.compile(r"train_data_step(\d+)\.jsonl$")
_SETTINGS = ("temperature", "top_p", "top_k")
_SKIPPED = "loss_fn.force_on_policy_ratio skips the pass that computes the trainer's log-probabilities."
_LATE = "which weights sampled is not logged by async_grpo: a gap may be of older ones."


class _Logger(DriverFollower):
    framework = "NeMo-RL"
    owner = "Logger"

    def __init__(self, owner: Any, record: Callable[..., bool]) -> None:
        super().__init__(owner, record)
        self._config: Mapping[str, Any] = {}

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return {"log_hyperparams": self._configures, "log_batched_dict_as_jsonl": self._logs}

    def _configures(self, original: Callable[..., Any], logger: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        self._config = params if isinstance(params, Mapping) else {}
        return original(logger, params, *args, **kwargs)

    def _logs(
        self, original: Callable[..., Any], logger: Any, to_log: Any, filename: str, *args: Any, **kwargs: Any
    ) -> Any:
        match = _FILE.search(filename)
        if match is not None and {"generation_logprobs", "prev_logprobs"} <= set(to_log):
            self.try_to(self._keep, int(match[1]) - 1, to_log)
        return original(logger, to_log, filename, *args, **kwargs)

    def _keep(self, step: int, to_log: Mapping[str, Any]) -> None:
        names = ("token_ids", "generation_logprobs", "prev_logprobs", "token_loss_mask")
        batch = [as_array(to_log[name]) if name in to_log else None for name in names]
        num = len(to_log["generation_logprobs"])
        # which prompts they are of is not logged
        rows = self.pick(range(num), max((len(values) for values in to_log["generation_logprobs"]), default=0))
        columns = cut_to_responses(tuple(None if part is None else part[row] for part in batch) for row in rows)
        if "logp_train" not in columns:
            self.says(_SKIPPED)
        rewards = to_log.get("filtered_rewards", to_log.get("rewards"))
        columns["reward"] = None if rewards is None else [rewards[row] for row in rows]
        policy = self._config.get("policy") or {}
        generation = policy.get("generation") or {}
        sampling = {name: generation[name] for name in _SETTINGS if generation.get(name) is not None}
        sampling |= {name: value for name, value in _engine(policy, generation).items() if value}
        if ((self._config.get("grpo") or {}).get("async_grpo") or {}).get("enabled"):
            self.says(_LATE)
        self.record(step, columns, sampling)


FOLLOWERS: Mapping[str, type[Follower]] = {"nemo_rl.utils.logger": _Logger}


def _engine(policy: Mapping[str, Any], generation: Mapping[str, Any]) -> dict[str, Any]:
    """The engine, and the coarser dtype of both sides."""
    precision = (generation.get("vllm_cfg") or {}).get("precision") or policy.get("precision")
    return {"engine": generation.get("backend"), "dtype": precision}
