"""Rollouts of verl, recorded in its driver as they are trained on, with no edit (as in verl 0.9).

``RayPPOTrainer`` has a batch in its own hands. ``PPOTrainer`` (``trainer.use_v1``) leaves it with TransferQueue and
has its keys: what is recorded, and no more, is asked for once more.

The mask is taken where log-probabilities are computed: what rejects tokens later takes those away that say most.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from trueline.rl.frameworks import DriverFollower, Follower, numbered, scalar_of

FIELDS = ["prompts", "responses", "response_mask", "rollout_log_probs", "old_log_probs", "entropy", "rm_scores"]
"""What is read of a batch that is not in the driver's hands."""
_BY_GROUP = {"grpo", "grpo_vectorized", "rloo"}
"""Estimators whose advantages are rewards less the mean of their group, but for a positive factor."""
_NO_LOGPROBS = (
    "the engine's log-probabilities are not in its batches; pass actor_rollout_ref.rollout.calculate_log_probs=True."
)
_BYPASS = (
    "algorithm.rollout_correction.bypass_mode takes the engine's log-probabilities for the trainer's, so that there is "
    "nothing to compare before the update."
)


class _Computed(NamedTuple):
    """What was there as the trainer had computed log-probabilities: the sequences that are recorded, by place or key,
    and columns of these.
    """

    rows: list[Any]
    columns: dict[str, Any]


class _Verl(DriverFollower):
    framework = "verl"

    def __init__(self, owner: Any, record: Callable[..., bool]) -> None:
        super().__init__(owner, record)
        self._computed: _Computed | None = None

    def _keep(self, trainer: Any, columns: dict[str, Any], groups: Sequence[str], advantages: Any, old: Any) -> None:
        """Record ``columns``, with ``advantages`` [B, L] and ``versions`` where there are any; ``old`` are the
        log-probabilities of the trainer.
        """
        config, rollout = trainer.config, trainer.config.actor_rollout_ref.rollout
        # what verl never computed again is no evidence of anything
        bypass = (config.algorithm.get("rollout_correction", None) or {}).get("bypass_mode", False)
        if columns.get("logp_rollout") is None:
            self.says(_NO_LOGPROBS)
        if bypass:
            self.says(_BYPASS)
        columns["logp_train"] = None if bypass else old
        sampling = _declared(rollout)
        by_group = _name(config.algorithm.adv_estimator) in _BY_GROUP and not config.algorithm.get("use_kl_in_reward")
        if by_group and rollout.n > 1 and advantages is not None:
            columns |= {"group": numbered(groups), "advantage": scalar_of(advantages, columns["mask"])}
        versions = columns.pop("versions", None)
        if versions is not None and all(isinstance(version, int) for version in versions):
            ahead = getattr(trainer, "current_param_version", trainer.global_steps - 1)
            columns["versions"] = (versions, ahead)
            if _is_asynchronous(trainer):
                # how old samples may be is verl's own setting, which it keeps
                sampling["lag"] = max(0, *(ahead - version for version in versions))
        self.record(trainer.global_steps - 1, columns, sampling)


def _is_asynchronous(trainer: Any) -> bool:
    """True for trainers that train on older samples on purpose, by their names."""
    name = f"{type(trainer).__module__}.{type(trainer).__name__}".lower()
    return "async" in name or "off_policy" in name


class _RayTrainer(_Verl):
    """Of trainers that hold batches themselves (``DataProto``)."""

    owner = "RayPPOTrainer"

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return {"_compute_old_log_prob": self._computes, "_update_actor": self._trains}

    def _computes(self, original: Callable[..., Any], trainer: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = original(trainer, batch, *args, **kwargs)
        self._computed = self.try_to(self._take, batch, outputs[0] if isinstance(outputs, tuple) else outputs)
        return outputs

    def _take(self, batch: Any, outputs: Any) -> _Computed:
        length = batch.batch["responses"].shape[1]
        rows = self.pick(_uids(batch), length)
        entropy = outputs.batch.get("entropys", None)
        mask = batch.batch["response_mask"][rows]
        columns = {"mask": mask, "entropy": None if entropy is None else entropy[rows]}
        return _Computed(rows, columns | {"experts_train": _experts(outputs, batch, rows)})

    def _trains(self, original: Callable[..., Any], trainer: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        self.try_to(self._keep_batch, trainer, batch)
        self._computed = None
        return original(trainer, batch, *args, **kwargs)

    def _keep_batch(self, trainer: Any, batch: Any) -> None:
        tensors, others = batch.batch, batch.non_tensor_batch
        length, width = tensors["responses"].shape[1], tensors["prompts"].shape[1]
        if self._computed is None:
            rows = self.pick(_uids(batch), length)
            self._computed = _Computed(rows, {"mask": tensors["response_mask"][rows]})
        computed = self._computed
        rows = [row for row, mask in zip(computed.rows, computed.columns["mask"], strict=True) if mask.any()]
        at = [index for index, mask in enumerate(computed.columns["mask"]) if mask.any()]

        def select(name: str) -> Any:
            value = tensors.get(name, None)
            return None if value is None else value[rows]

        columns = {name: None if value is None else value[at] for name, value in computed.columns.items()}
        is_prompt = tensors["attention_mask"][rows, :width].bool()
        scores = select("token_level_scores")
        columns |= {
            "prompt_ids": [ids[mask] for ids, mask in zip(select("prompts"), is_prompt, strict=True)],
            "response_ids": select("responses"),
            "logp_rollout": select("rollout_log_probs"),
            "reward": None if scores is None else scores.sum(-1),
        }
        if columns.get("experts_train") is None:
            columns["experts_rollout"] = _experts(batch, batch, rows)
        if "min_global_steps" in others:
            columns["versions"] = [others["min_global_steps"][row] for row in rows]
        groups = _uids(batch)
        self._keep(trainer, columns, [groups[row] for row in rows], select("advantages"), select("old_log_probs"))


class _Trainer(_Verl):
    """Of trainers that leave batches with TransferQueue."""

    owner = "PPOTrainer"

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return {"_compute_old_log_prob": self._computes, "_compute_advantage": self._values}

    def _computes(self, original: Callable[..., Any], trainer: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        computed = original(trainer, batch, *args, **kwargs)
        self._computed = self.try_to(self._take, trainer, batch)
        return computed

    def _take(self, trainer: Any, batch: Any) -> _Computed:
        length = trainer.config.actor_rollout_ref.rollout.response_length
        rows = self.pick([_prompt_of(key) for key in batch.keys], length)
        keys = [batch.keys[row] for row in rows]
        # what is handed on from here need not have the tags of samples
        versions = {"versions": [batch.tags[row].get("min_global_steps") for row in rows]}
        return _Computed(keys, self._read(batch, keys, FIELDS) | versions)

    def _values(self, original: Callable[..., Any], trainer: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        valued = original(trainer, batch, *args, **kwargs)
        self.try_to(self._keep_batch, trainer, batch)
        self._computed = None
        return valued

    def _keep_batch(self, trainer: Any, batch: Any) -> None:
        if self._computed is None:
            return
        values = self._computed.columns
        at = [index for index, mask in enumerate(values["response_mask"]) if mask.any()]
        keys = [self._computed.rows[index] for index in at]

        def select(name: str) -> Any:
            return [values[name][index] for index in at] if name in values else None

        scores = select("rm_scores")
        columns = {
            "prompt_ids": select("prompts"),
            "response_ids": select("responses"),
            "mask": select("response_mask"),
            "logp_rollout": select("rollout_log_probs"),
            "entropy": select("entropy"),
            "reward": None if scores is None else [float(score.sum()) for score in scores],
        }
        columns["versions"] = select("versions")
        advantages = self._read(batch, keys, ["advantages"]).get("advantages")
        self._keep(trainer, columns, [_prompt_of(key) for key in keys], advantages, select("old_log_probs"))

    def _read(self, batch: Any, keys: list[str], fields: list[str]) -> dict[str, list[Tensor]]:
        """The fields of some samples, each a tensor a sample, by name."""
        queue = sys.modules[self._owner.__module__].tq
        values = queue.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=fields)
        return {name: list(values[name].unbind()) for name in fields if name in list(values.keys())}


FOLLOWERS: Mapping[str, type[Follower]] = {
    "verl.trainer.ppo.ray_trainer": _RayTrainer,
    "verl.trainer.ppo.v1.trainer_base": _Trainer,
}


def _uids(batch: Any) -> list[str]:
    """The prompt of each sequence; each its own where verl does not say."""
    uids = batch.non_tensor_batch.get("uid")
    return [str(uid) for uid in uids] if uids is not None else [str(index) for index in range(len(batch.batch))]


def _prompt_of(key: str) -> str:
    """Of a key of a sample, PROMPT_ROLLOUT_OUTPUT, the prompt."""
    return key.rsplit("_", 2)[0]


def _experts(outputs: Any, batch: Any, rows: list[int]) -> Tensor | None:
    """The experts [B, L, layers, slots] that ``outputs`` has, at the positions before each token of the responses; None
    where there are none, or in another form. verl has those of one side: the trainer replays what the engine chose.
    """
    experts, length = outputs.batch.get("routed_experts", None), batch.batch["responses"].shape[1]
    width = batch.batch["prompts"].shape[1] + length
    if not isinstance(experts, Tensor) or experts.is_nested or experts.ndim != 4 or experts.shape[1] != width:
        return None
    return experts[rows, -length - 1 : -1]


def _declared(rollout: Any) -> dict[str, Any]:
    """What verl was configured to sample with."""
    names = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "engine": "name", "dtype": "dtype"}
    declared = {key: value for key, name in names.items() if (value := rollout.get(name, None)) is not None}
    if rollout.get("quantization", None):
        declared["dtype"] = "fp8"
    return declared | {"group_size": rollout.n}


def _name(value: Any) -> str:
    """The name that an enumeration has in a configuration."""
    return str(getattr(value, "value", value))
