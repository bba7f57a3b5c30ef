"""Rollouts of slime, recorded by each of its trainers as it has trained on them, with no edit (as of August 2026).

slime hands all that it trained on to ``save_debug_train_data``, whether it is to be saved or not. Tensor and pipeline
parallel ranks have the same sequences: the one that has log-probabilities records them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from trueline.rl.frameworks import Follower

_NO_LOGPROBS = (
    "their trainer has no log-probabilities before the update where one update follows a rollout; "
    "--get-mismatch-metrics computes them, --save-debug-train-data keeps those of the update."
)
_NO_ENGINE = "the engine's log-probabilities are not handed to the trainer; pass --use-rollout-logprobs or --use-tis."
_IN_PARTS = "sequences are cut over ranks of context parallelism, and not recorded; --save-debug-train-data saves them."
_SETTINGS = {"temperature": "rollout_temperature", "top_p": "rollout_top_p", "top_k": "rollout_top_k"}


class _Slime(Follower):
    framework = "slime"

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return {"save_debug_train_data": self._saves}

    def _saves(self, original: Callable[..., Any], args: Any, *rest: Any, **kwargs: Any) -> Any:
        self.try_to(self._keep, args, kwargs.get("rollout_id"), kwargs.get("rollout_data"))
        return original(args, *rest, **kwargs)

    def _keep(self, args: Any, rollout_id: int, rollout_data: Mapping[str, Any]) -> None:
        parallel = sys.modules["megatron.core"].mpu
        last = parallel.is_pipeline_last_stage(ignore_virtual=True)
        if not last or parallel.get_tensor_model_parallel_rank() != 0:
            return
        if parallel.get_context_parallel_world_size() > 1:
            self.says(_IN_PARTS)
            return
        for name, sentence in (("log_probs", _NO_LOGPROBS), ("rollout_log_probs", _NO_ENGINE)):
            if rollout_data.get(name) is None:
                self.says(sentence)
        lengths = [int(length) for length in rollout_data["response_lengths"]]
        size = args.n_samples_per_prompt
        places = rollout_data.get("sample_indices") or range(len(lengths))
        # groups are dealt out to ranks: here they only say which sequences are recorded together
        rows = self.pick([int(place) // size for place in places], max(lengths, default=0))

        def select(name: str) -> Any:
            values = rollout_data.get(name)
            return None if values is None else [values[row] for row in rows]

        sequences = [(rollout_data["tokens"][row], lengths[row]) for row in rows]
        columns = {
            "prompt_ids": [ids[: len(ids) - length] for ids, length in sequences],
            "response_ids": [ids[len(ids) - length :] for ids, length in sequences],
            "mask": select("loss_masks"),
            "logp_rollout": select("rollout_log_probs"),
            "logp_train": select("log_probs"),
            "entropy": select("entropy"),
            "reward": select("rewards"),
        }
        sampling = {name: getattr(args, setting) for name, setting in _SETTINGS.items() if hasattr(args, setting)}
        sampling |= {"engine": "sglang", "dtype": "bfloat16" if getattr(args, "bf16", True) else "float16"}
        self.record(rollout_id, columns, sampling)


FOLLOWERS: Mapping[str, type[Follower]] = {"slime.observability.train_data_utils": _Slime}
