"""Rollouts of TRL's ``GRPOTrainer`` and ``RLOOTrainer``, recorded as they train, with no edit of the script.

Four of their methods are wrapped, which return what they returned (as in TRL 1.16): what scores, what generates and
scores, what computes log-probabilities and what computes the loss. Between generation and update TRL shuffles the
sequences and cuts them into micro-batches; a tensor more among those that it shuffles says which is which, and is
taken out again before the loss is computed.

B sequences of one rank, P prompt tokens, L response tokens, F reward functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trueline.rl import frameworks
from trueline.rl.frameworks import TOKENS, Record

_KEY = "trueline"
_COARSEST = ("float32", "float16", "bfloat16")


class ScoredSequences(NamedTuple):
    """Facts of sequences that have been scored, [B] each: ``reward`` and ``group`` (NaN for none) float64,
    whether it ``is_recorded``, and the number of updates at which it was generated.
    """

    reward: Tensor
    group: Tensor
    is_recorded: Tensor
    generated: Tensor


class Follower(frameworks.Follower):
    """Wraps the methods of one class of trainers."""

    framework = "TRL"

    def __init__(self, owner: Any, record: Record) -> None:
        super().__init__(owner, record)
        self._leaves_one_out = owner.__name__ == "RLOOTrainer"
        self._rewards: Tensor | None = None
        self._computed: tuple[Tensor, Tensor | None] | None = None
        self._num_generations = 0

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return {
            "_calculate_rewards": self._scores,
            "_generate_and_score_completions": self._generates,
            "_get_per_token_logps_and_entropies": self._computes,
            "compute_loss": self._trains,
        }

    # -- around the methods of the trainer -----------------------------------------------------------------------------

    def _scores(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._rewards = original(*args, **kwargs)
        return self._rewards

    def _generates(self, original: Callable[..., Any], trainer: Any, *args: Any, **kwargs: Any) -> Any:
        outputs = original(trainer, *args, **kwargs)
        # TRL shuffles all tensors of the outputs alike: one more among them says later which sequence is which.
        if trainer.model.training:
            self.try_to(self._mark, trainer, outputs)
        return outputs

    def _mark(self, trainer: Any, outputs: dict[str, Any]) -> None:
        outputs[_KEY] = torch.stack(self._score_sequences(trainer, len(outputs["completion_ids"])), 1)

    def _computes(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        computed = original(*args, **kwargs)
        if torch.is_grad_enabled():
            self._computed = computed[0].detach(), computed[1]
        return computed

    def _trains(
        self, original: Callable[..., Any], trainer: Any, model: Any, inputs: Any, *args: Any, **kwargs: Any
    ) -> Any:
        scored = inputs.pop(_KEY, None) if isinstance(inputs, dict) else None
        self._computed = None
        loss = original(trainer, model, inputs, *args, **kwargs)
        if scored is not None:
            self.try_to(self._keep, trainer, inputs, scored)
        self._computed = None
        return loss

    # -- what is recorded ----------------------------------------------------------------------------------------------

    def _score_sequences(self, trainer: Any, num: int) -> ScoredSequences:
        """Scores of the ``num`` sequences that this rank has generated just now. All ranks record sequences of the same
        groups, other groups each time.
        """
        ranks, rank = trainer.accelerator.num_processes, trainer.accelerator.process_index
        size = trainer.num_generations
        index = torch.arange(rank * num, (rank + 1) * num)
        group = index // size
        max_groups = max(1, TOKENS // (size * trainer.args.max_completion_length))
        stride = -(-num * ranks // size) // max_groups or 1
        is_recorded = (group + self._num_generations) % stride == 0
        self._num_generations += 1
        rewards = torch.full((num,), torch.nan, dtype=torch.float64)
        if self._rewards is not None:
            weighted = self._rewards.detach().cpu().double()[index] * trainer.reward_weights.cpu().double()
            rewards = torch.where(weighted.isnan().all(1), torch.nan, weighted.nansum(1))
        number = group.double() if self._by_groups(trainer) else torch.full_like(rewards, torch.nan)
        return ScoredSequences(
            rewards, number, is_recorded.double(), torch.full_like(rewards, float(trainer.state.global_step))
        )

    def _by_groups(self, trainer: Any) -> bool:
        """True if advantages are rewards less the mean of their group, but for a positive factor."""
        is_unchanged = all(
            getattr(type(trainer), name) is getattr(self._owner, name)
            for name in ("_generate_and_score_completions", "_prepare_inputs", "_calculate_rewards")
        )
        if self._leaves_one_out:
            return is_unchanged and trainer.beta == 0.0
        return is_unchanged and getattr(trainer, "multi_objective_aggregation", "") == "sum_then_normalize"

    def _keep(self, trainer: Any, inputs: Mapping[str, Any], marks: Tensor) -> None:
        """Record a micro-batch of which the loss was just computed."""
        scored = ScoredSequences(*marks.unbind(1))
        mask = inputs["completion_mask"] * inputs.get("tool_mask", 1)
        rows = (scored.is_recorded.bool() & mask.any(1).cpu()).nonzero()[:, 0]
        if not len(rows):
            return
        updates = int(scored.generated[0])
        is_on_policy = updates == trainer.state.global_step  # so that this pass has the weights that generated
        device_rows = rows.to(mask.device)

        def select_rows(value: Any) -> Any:
            return value.detach()[device_rows] if isinstance(value, Tensor) else None

        computed, entropy = self._computed if self._computed is not None and is_on_policy else (None, None)
        before = inputs.get("old_per_token_logps")
        prompts = zip(select_rows(inputs["prompt_ids"]), select_rows(inputs["prompt_mask"]), strict=True)
        advantage = select_rows(inputs["advantages"])
        self._record(
            trainer.state.global_step,
            [ids[prompt_mask.bool()] for ids, prompt_mask in prompts],
            select_rows(inputs["completion_ids"]),
            select_rows(mask),
            select_rows(inputs.get("sampling_per_token_logps")),
            select_rows(computed if before is None else before),
            entropy=select_rows(entropy),
            logp_update=None if before is None else select_rows(computed),
            versions=(updates, updates),
            sampling=_declared(trainer, sampled="sampling_per_token_logps" in inputs),
            reward=scored.reward[rows],
            advantage=advantage if advantage.ndim == 1 else None,
            group=scored.group[rows],
        )


def _declared(trainer: Any, *, sampled: bool) -> dict[str, Any]:
    """Settings that the trainer samples with, and the dtype of its coarsest numbers; ``sampled``: by another engine."""
    args = trainer.args
    names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
    dtypes = {str(param.dtype).removeprefix("torch.") for param in trainer.model.parameters()}
    dtypes |= {name for name, is_enabled in (("bfloat16", args.bf16), ("float16", args.fp16)) if is_enabled}
    by_coarseness = [name for name in _COARSEST if name in dtypes]
    declared = {name: value for name in names if (value := getattr(args, name, None)) is not None}
    config = getattr(trainer.model, "config", None)
    words = getattr(config.get_text_config() if hasattr(config, "get_text_config") else config, "vocab_size", None)
    declared |= {"vocabulary": words} if isinstance(words, int) else {}
    declared |= {"dtype": by_coarseness[-1] if by_coarseness else "float32", "group_size": trainer.num_generations}
    if not sampled or getattr(trainer, "use_vllm", False):
        declared["engine"] = "vllm" if getattr(trainer, "use_vllm", False) else "transformers"
    return declared


class _Grpo(Follower):
    owner = "GRPOTrainer"


class _Rloo(Follower):
    owner = "RLOOTrainer"


FOLLOWERS: Mapping[str, type[Follower]] = {"trl.trainer.grpo_trainer": _Grpo, "trl.trainer.rloo_trainer": _Rloo}
