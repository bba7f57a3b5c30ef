"""Rollouts of OpenRLHF, recorded in its driver as it has made experiences of them, with no edit (as in 0.11).

Log-probabilities of an experience are those of the last A tokens of its sequences, which where nothing was cut is all
but the first.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trueline.capture.model.patches import Patch, calling
from trueline.rl.frameworks import DriverFollower, Follower, as_array, pick, scalar_of
from trueline.schema.whole_sequences import cut_to_responses

_MAKER = "RemoteExperienceMaker"
_MAKES = "compute_advantages_and_returns"
_BY_GROUP = {"rloo", "group_norm", "dr_grpo"}
"""Estimators whose advantages are rewards less the mean of their group, but for a positive factor."""
_LATE = "with train.async_enable which weights sampled is not known, so that nothing is recorded."


class _Trainer(DriverFollower):
    framework = "OpenRLHF"
    owner = "BasePPOTrainer"

    def __init__(self, owner: Any, record: Callable[..., bool]) -> None:
        super().__init__(owner, record)
        self._step: int | None = None

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return {"train_step": self._trains}

    def install(self) -> None:
        maker = getattr(sys.modules[self._owner.__module__], _MAKER, None)
        if not hasattr(maker, _MAKES):
            self._fails(f"this OpenRLHF has no {_MAKER}.{_MAKES}")
            return
        super().install()
        Patch(maker, _MAKES, calling(self._makes)).install()

    def _trains(
        self, original: Callable[..., Any], trainer: Any, samples: Any, global_step: int, *args: Any, **kwargs: Any
    ) -> Any:
        self._step = global_step
        try:
            return original(trainer, samples, global_step, *args, **kwargs)
        finally:
            self._step = None

    def _makes(self, original: Callable[..., Any], maker: Any, *args: Any, **kwargs: Any) -> Any:
        experiences = original(maker, *args, **kwargs)
        if self._step is not None:
            self.try_to(self._keep, maker, self._step, experiences)
        return experiences

    def _keep(self, maker: Any, step: int, experiences: Sequence[Any]) -> None:
        args = maker.strategy.args
        if getattr(args.train, "async_enable", False):
            self.says(_LATE)
            return
        size = args.rollout.n_samples_per_prompt
        samples = [int(sample) for experience in experiences for sample in experience.index]
        length = max(experience.action_mask.shape[1] for experience in experiences)
        picked = set(pick([sample // size for sample in samples], length, step))
        sequences, rows, offset = list[Any](), list[tuple[Any, int]](), 0
        for experience in experiences:
            names = ("sequences", "rollout_log_probs", "action_log_probs", "action_mask")
            ids, *per_action = (as_array(getattr(experience, name)) for name in names)
            if per_action[0] is None:
                self.says("no log-probabilities of the engine are in its experiences.")
                return
            count, width = per_action[-1].shape
            indices = [row for row in range(count) if offset + row in picked]
            missing = ids.shape[1] - width
            per_token = [np.pad(part, ((0, 0), (missing, 0))) for part in per_action]
            sequences += [(ids[row], *(part[row] for part in per_token)) for row in indices]
            rows += [(experience, row) for row in indices]
            offset += count
        columns: dict[str, Any] = cut_to_responses(sequences)
        columns["reward"] = [float(experience.rewards[row]) for experience, row in rows]
        if args.algo.advantage.estimator in _BY_GROUP and size > 1 and _has_no_penalty(maker, args):
            columns["group"] = [int(experience.index[row]) // size for experience, row in rows]
            advantages = [experience.advantages[row] for experience, row in rows]
            columns["advantage"] = scalar_of(advantages, [experience.action_mask[row] for experience, row in rows])
        sampling = {"temperature": args.rollout.temperature, "top_p": args.rollout.top_p, "engine": "vllm"}
        sampling |= {"dtype": {"bf16": "bfloat16", "fp16": "float16"}.get(args.ds.param_dtype, "bfloat16")}
        self.record(step, columns, sampling | {"group_size": size})


FOLLOWERS: Mapping[str, type[Follower]] = {"openrlhf.trainer.ppo_trainer": _Trainer}


def _has_no_penalty(maker: Any, args: Any) -> bool:
    """True if nothing is taken off the rewards between group and advantage."""
    return maker.initial_model_group is None or args.algo.kl.use_loss or maker.kl_ctl.value == 0
