"""Twelve faults that were set aside once, and are open since: checks were changed after a look at them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from benchmarks.rl.causes.decoder import Cache, Engine, Sampled, Sampling, padded
from benchmarks.rl.causes.faults import Fault
from benchmarks.rl.causes.training import GROUP, Adapters, Training
from torch import Tensor

SYSTEM = 5
"""Tokens that all prompts begin with."""


class SystemCached(Engine):
    """What was computed of the system prompt stays for good; the rest of each prompt is computed anew."""

    system: Cache | None = None

    def prefill(self, prompts: list[list[int]]) -> tuple[Tensor, Cache, Tensor]:
        if self.system is None:
            ids, position, seen = padded([prompts[0][:SYSTEM]])
            _, self.system = self.forward(ids, position, seen, None)
        num = len(prompts)
        front = Cache(
            [keys.expand(num, -1, -1, -1) for keys in self.system.keys],
            [values.expand(num, -1, -1, -1) for values in self.system.values],
            self.system.seen_BT.expand(num, -1),
        )
        ids, position, seen = padded([prompt[SYSTEM:] for prompt in prompts])
        logits, cache = self.forward(ids, position + SYSTEM, seen, front)
        return logits, cache, position[:, -1] + SYSTEM + 1


class SystemPromptCached(Training):
    engine_class = SystemCached

    def prompt(self) -> list[int]:
        system = [self.bos, *range(self.ends + 10, self.ends + 10 + SYSTEM - 1)]
        return [*system, *super().prompt()[SYSTEM:]]


class ChunkTwice(Training):
    """Of streams of more than one chunk, a chunk's log-probabilities begin with the last one of the chunk before."""

    def told(self, step: int, batch: dict[str, Any]) -> dict[str, Any]:
        logp = batch["logp_rollout"].clone()
        for row in range(0, self.size, 3):
            start = self.length // 4 + (5 * row + step) % (self.length // 2)
            logp[row, start + 1 :] = batch["logp_rollout"][row, start:-1]
        return batch | {"logp_rollout": logp.masked_fill(batch["mask"] == 0, 0.0)}


class StopTokenUnlogged(Training):
    """The engine returns no log-probability of the token that ends a response; 0 is filled in."""

    def told(self, step: int, batch: dict[str, Any]) -> dict[str, Any]:
        stops = (batch["response_ids"] < self.ends) & (batch["mask"] > 0)
        return batch | {"logp_rollout": batch["logp_rollout"].masked_fill(stops, 0.0)}


class Float8Cache(Engine):
    """Keys and values are kept in 8 bits, without a scale."""

    def forward(
        self, ids_BT: Tensor, position_BT: Tensor, seen_BT: Tensor, cache: Cache | None
    ) -> tuple[Tensor, Cache]:
        logits, longer = super().forward(ids_BT, position_BT, seen_BT, cache)
        keys, values = (
            [value.to(torch.float8_e4m3fn).float() for value in kind] for kind in (longer.keys, longer.values)
        )
        return logits, Cache(keys, values, longer.seen_BT)


class CacheInFloat8(Training):
    engine_class = Float8Cache


class OtherBase(Engine):
    """Does not read the base of rotary positions from the configuration."""

    def rates(self) -> Tensor:
        half = self.shape.head_width // 2
        return 1_000_000.0 ** (-torch.arange(half) / half)


class RotaryBase(Training):
    engine_class = OtherBase


class WakesWithCheckpoint(Training):
    """The engine's weights are dropped when it sleeps, and those of the checkpoint are there again when it wakes."""

    def prepare(self) -> None:
        self.checkpoint = {name: value.detach().clone() for name, value in self.weights(0).items()}

    def hand_over(self, step: int) -> None:
        self.engine.load(self.weights(step))
        self.engine.load(self.checkpoint)
        self.digest(step)


class AdapterDropout(Adapters):
    """Dropout of the adapters' input is on in all passes of the trainer; the engine has merged weights."""

    def weights(self, step: int) -> dict[str, Tensor]:
        return self.merged()

    def hook(self, name: str) -> Any:
        def add(module: Any, given: tuple[Tensor, ...], result: Tensor) -> Tensor:
            down, up = self.pairs[name]
            return result + (torch.nn.functional.dropout(given[0], 0.1) @ down.T) @ up.T

        return add

    def update_logits(self, prompts: list[list[int]], ids_BL: Tensor) -> Tensor | None:
        return self.trainer_logits(prompts, ids_BL)


class MinPRaw(Training):
    sampling = Sampling(min_p=0.1, records="raw")


class GroupsTransposed(Training):
    """Rewards are reshaped as if the responses to one prompt were apart by the number of prompts."""

    def told(self, step: int, batch: dict[str, Any]) -> dict[str, Any]:
        groups = batch["reward"].reshape(-1, self.size // GROUP)
        advantage = (groups - groups.mean(0)) / (groups.std(0) + 1e-4)
        return batch | {"advantage": advantage.flatten()}


class SwitchesWeights(Engine):
    """Takes over other weights before a token, and goes on with its cache."""

    switch: tuple[int, dict[str, Tensor]] | None = None
    decoded = 0

    def decode(self, ids_B: Tensor, position_B: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        self.decoded += 1
        if self.switch is not None and self.decoded == self.switch[0]:
            self.load(self.switch[1])
        return super().decode(ids_B, position_B, cache)


class PartialRollouts(Training):
    """Every other sequence was begun with the weights of the step before and is ended with those of this step; its
    version is the one that it was begun with, and no lag is meant.
    """

    engine_class = SwitchesWeights
    behind: dict[str, Tensor] | None = None

    def sample(self, step: int, prompts: list[list[int]]) -> Sampled:
        now = {name: value.detach().clone() for name, value in self.weights(step).items()}
        forced = self.forced(step)
        parts = []
        for parity in (0, 1):
            rows = slice(parity, None, 2)
            self.engine.decoded, self.engine.switch = 0, None
            if parity and self.behind is not None:
                self.engine.load(self.behind)
                self.engine.switch = (self.length // 2, now)
            parts.append(self.engine.generate(prompts[rows], self.length, forced[rows], self.ends))
        self.behind = now
        names = ("ids", "logp", "top", "odds", "mask")
        return Sampled(
            *(torch.stack([getattr(part, name) for part in parts], 1).flatten(0, 1) for name in names),
        )

    def versions(self, step: int) -> Any:
        return torch.tensor([step, max(step - 1, 0)]).repeat(self.size // 2), step


class PromptTruncated(Training):
    """Prompts of 5 to 14 tokens, of which the trainer has the last 10, with the engine's ids recorded."""

    def prompt_length(self) -> int:
        return 5 + self.whole(10)

    def trainer_prompts(self, prompts: list[list[int]]) -> list[list[int]]:
        return [prompt[-10:] for prompt in prompts]


class MaskLate(Training):
    """The mask of a tool's turn begins and ends one token late; the engine has log-probabilities of its tokens."""

    tools = True

    def sample(self, step: int, prompts: list[list[int]]) -> Sampled:
        sampled = super().sample(step, prompts)
        mask = sampled.mask.clone()
        mask[:, 1:] = sampled.mask[:, :-1]
        # where the response has ended nothing counts
        ended = sampled.mask.flip(-1).cumsum(-1).flip(-1) == 0
        return replace(sampled, mask=mask.masked_fill(ended, 0))


SEEN = (
    Fault(
        "system-prompt-kept",
        "the engine keeps its cache of the system prompt over syncs",
        ("prompt-cache-stale",),
        SystemPromptCached,
        "NVIDIA-NeMo/RL#4018, vllm-omni#6739",
    ),
    Fault(
        "chunk-twice",
        "in every third stream one log-probability stands twice at the border of a chunk",
        ("row-shifted-from-a-token-on",),
        ChunkTwice,
        "sglang#21583, sglang#26782",
    ),
    Fault(
        "stop-unlogged",
        "the engine has no log-probability of the token that ends a response",
        ("logprobs-missing",),
        StopTokenUnlogged,
        "lmdeploy#4000",
    ),
    Fault(
        "cache-float8",
        "the engine keeps keys and values in 8 bits without a scale",
        ("decoding-differs",),
        CacheInFloat8,
        "NVIDIA-NeMo/RL#3225, sglang#25790",
    ),
    Fault(
        "rotary-base",
        "the engine has another base of rotary positions",
        ("implementations-differ",),
        RotaryBase,
        "SpecForge#265, ms-swift#6056",
    ),
    Fault(
        "wakes-with-checkpoint",
        "the engine has the weights of the checkpoint again after it slept",
        ("engine-weights-not-loaded",),
        WakesWithCheckpoint,
        "trl#5312",
    ),
    Fault(
        "adapter-dropout",
        "dropout of adapters is on in both passes of the trainer",
        ("trainer-passes-differ",),
        AdapterDropout,
        "unsloth-zoo#832",
    ),
    Fault(
        "min-p-raw",
        "sampled with min-p 0.1, log-probabilities recorded before it",
        ("cut-not-recorded",),
        MinPRaw,
        "trl#6789, vime#64",
    ),
    Fault(
        "groups-transposed",
        "advantages of groups that are not those of one prompt",
        ("advantages-of-other-group",),
        GroupsTransposed,
        "dllm-reasoning/d1#19, grpo-flat#2",
    ),
    Fault(
        "partial-rollouts",
        "every other sequence was begun with the weights of the step before, no lag is declared",
        ("rollouts-lag",),
        PartialRollouts,
        "labs-molt#124, vllm#54443",
    ),
    Fault(
        "prompt-truncated",
        "the trainer has the last 10 tokens of longer prompts",
        ("prompt-differs",),
        PromptTruncated,
        "trl#3569, trl#3601",
    ),
    Fault(
        "mask-late",
        "the mask of a tool's turn is off by one",
        ("forced-tokens-not-masked",),
        MaskLate,
        "verl#3287",
    ),
)
