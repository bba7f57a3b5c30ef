"""One loop of rollouts and updates, of which a fault is a subclass: what the recorder is handed, and what the log of a
framework keeps of the same steps.

B sequences, L tokens of a response, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.rl.causes.decoder import Engine, History, Sampled, Sampling, padded, processed_logp
from benchmarks.rl.causes.models import MODELS
from torch import Tensor, nn

import trueline
from trueline.rl.logits import TokenStatistics

GROUP = 4
"""Responses to one prompt."""
PROMPT = 8
POOL = 8
"""Prompts that come again and again; half of all are new."""
STEP_SIZE = 0.03
"""How far weights move at each step, in their standard deviations."""


class Training:
    """``size`` sequences of ``length`` tokens a step with the policy ``model``, whose weights take a random step after
    it. A subclass changes what is wrong; ``self.kind`` counts the seeds, for faults that come in several ways.
    """

    engine_class: type[Engine] = Engine
    sampling = Sampling()
    declares: dict[str, Any] = {}  # noqa: RUF012  read only
    tools = False
    names_prompts = True
    """Whether prompts are recorded: slime's samples have them in any case, as the trainer has them."""
    in_log = True
    """Whether a log has what makes it healthy, so that it may be judged from one."""

    def __init__(self, model: str, seed: int, *, size: int = 32, length: int = 24) -> None:
        torch.manual_seed(seed)
        self.kind, self.size, self.length = seed, size, length
        self.model = MODELS[model]()
        self.shape = self.model.shape
        self.random = torch.Generator().manual_seed(1000 + seed)
        self.bos = self.shape.vocabulary - 1
        self.ends = max(self.shape.vocabulary // 128, 1)
        self.pool = [self.prompt() for _ in range(POOL)]
        self.engine = self.engine_class(self.shape, self.sampling, self.random)
        self.out: str | None = None
        self.batches: list[dict[str, Any]] = []
        self.prepare()

    def prepare(self) -> None:
        """What a subclass sets up."""

    @torch.no_grad()
    def run(self, steps: int, out: str | None, dump: Dump | None = None) -> None:
        """So many steps, recorded into a Run at ``out`` and dumped as a framework would. Without either, ``batches``
        has what was handed over.
        """
        self.out = out
        for step in range(steps):
            self.hand_over(step)
            batch = self.batch(step)
            told = {name: value for name, value in batch.items() if self.names_prompts or name != "prompt_ids"}
            if out is not None:
                trueline.rl.record(step, out=out, **told)
            if dump is not None:
                dump.write(step, batch if dump.form == "slime" else told)
            if out is None and dump is None:
                self.batches.append(batch)
            self.update(step)
        trueline.rl.close()

    def weights(self, step: int) -> dict[str, Tensor]:
        """The trainer's weights that are handed to the engine."""
        del step
        return dict(self.model.module.named_parameters())

    def hand_over(self, step: int) -> None:
        """Weights to the engine, and digests of both sides."""
        self.engine.load(self.weights(step))
        self.digest(step)

    def digest(self, step: int) -> None:
        """Record what both sides have."""
        if self.out is not None:
            trueline.rl.record_sync(step, self.trained(), self.engine.params, version=step, out=self.out)

    def trained(self) -> dict[str, Tensor]:
        """The trainer's parameters as it names them."""
        return dict(self.model.module.named_parameters())

    def prompt(self) -> list[int]:
        """A beginning of text, then random words."""
        words = torch.randint(self.ends, self.bos, (self.prompt_length() - 1,), generator=self.random)
        return [self.bos, *words.tolist()]

    def prompt_length(self) -> int:
        """Of the next prompt."""
        return PROMPT

    def prompts(self, step: int) -> list[list[int]]:
        """One of each group's sequences after the other."""
        del step
        own = [
            self.pool[self.whole(POOL)] if self.whole(2) else self.prompt() for _ in range(max(self.size // GROUP, 1))
        ]
        return [prompt for prompt in own for _ in range(self.size // len(own))]

    def whole(self, below: int) -> int:
        """A random whole number."""
        return int(torch.randint(below, (1,), generator=self.random))

    def forced(self, step: int) -> Tensor:
        """[B, L] tokens of a tool, -1 where the engine samples."""
        del step
        forced_BL = torch.full((self.size, self.length), -1)
        if self.tools:
            for row in range(0, self.size, 3):
                start = self.length // 4 + self.whole(self.length // 4)
                words = torch.randint(self.ends, self.bos, (4,), generator=self.random)
                forced_BL[row, start : start + 4] = words
        return forced_BL

    def sample(self, step: int, prompts: list[list[int]]) -> Sampled:
        """The engine's responses."""
        return self.engine.generate(prompts, self.length, self.forced(step), self.ends)

    def batch(self, step: int) -> dict[str, Any]:
        """What is recorded of a step."""
        prompts = self.prompts(step)
        sampled = self.sample(step, prompts)
        told = self.score(prompts, sampled, self.trainer_logits(prompts, sampled.ids))
        behind = sampled.mask.flip(-1).cumsum(-1).flip(-1) == 0
        ids = sampled.ids.masked_fill(behind, 0)
        reward = ((ids % 4 == 0) & (sampled.mask > 0)).sum(-1) / sampled.mask.sum(-1).clamp(min=1)
        groups = reward.reshape(-1, self.size // max(self.size // GROUP, 1))
        centred = groups - groups.mean(-1, keepdim=True)
        batch = {
            "prompt_ids": prompts,
            "response_ids": ids,
            "mask": sampled.mask,
            "logp_rollout": sampled.logp.masked_fill(sampled.mask == 0, 0.0),
            "logp_train": told.logp.masked_fill(behind, 0.0),
            "entropy": told.entropy,
            "varentropy": told.varentropy,
            "mass_above": told.mass_above,
            "words_above": told.words_above,
            "top_train": told.top_train,
            "logp_top": told.logp_top,
            "odds_rollout": sampled.odds,
            "odds_train": torch.where(told.odds.isfinite(), told.odds, math.nan),
            "versions": self.versions(step),
            "reward": reward,
            "reward_again": reward,
            "advantage": (centred / (groups.std(-1, keepdim=True) + 1e-4)).flatten(),
            "group": torch.arange(len(groups)).repeat_interleave(groups.shape[1]),
            "sampling": {"temperature": 1.0, "dtype": "float32"} | self.declares,
        }
        again = self.update_logits(prompts, sampled.ids)
        if again is not None:
            batch["logp_update"] = self.score(prompts, sampled, again).logp.masked_fill(behind, 0.0)
        return self.told(step, batch)

    def told(self, step: int, batch: dict[str, Any]) -> dict[str, Any]:
        """What of it is handed over, where that is not all, or not right."""
        del step
        return batch

    def versions(self, step: int) -> tuple[int, int]:
        """Those of the weights of engine and trainer."""
        return step, step

    def trainer_logits(self, prompts: list[list[int]], ids_BL: Tensor) -> Tensor:
        """[B, L, V] before each token of the responses."""
        prompt_ids, position, seen = padded(self.trainer_prompts(prompts))
        length = ids_BL.shape[1]
        after = position[:, -1:] + 1 + torch.arange(length)
        seen = torch.cat([seen, torch.ones_like(ids_BL, dtype=torch.bool)], 1)
        ids = torch.cat([prompt_ids, ids_BL], 1)
        logits = self.model.logits(ids, torch.cat([position, after], 1), seen)
        return logits[:, prompt_ids.shape[1] - 1 : -1].float()

    def trainer_prompts(self, prompts: list[list[int]]) -> list[list[int]]:
        """The prompts as the trainer has them."""
        return prompts

    def update_logits(self, prompts: list[list[int]], ids_BL: Tensor) -> Tensor | None:
        """Those of the update, before weights change; None where they are not recorded."""
        del prompts, ids_BL
        return None

    def score(self, prompts: list[list[int]], sampled: Sampled, logits_BLV: Tensor) -> TokenStatistics:
        """The trainer's statistics of the tokens, at the pairs of words that the engine found likeliest."""
        logits = self.trainer_processed(logits_BLV, prompts, sampled.ids)
        return trueline.rl.of_logits(logits, sampled.ids, pair=sampled.top)

    def trainer_processed(self, logits_BLV: Tensor, prompts: list[list[int]], ids_BL: Tensor) -> Tensor:
        """The logits after what the trainer does to them."""
        del prompts, ids_BL
        return logits_BLV

    def update(self, step: int) -> None:
        """A random step of each matrix."""
        del step
        for param in self.model.module.parameters():
            self.move(param)

    def move(self, param: Tensor) -> None:
        """A random step of a parameter, if it is a matrix."""
        if param.ndim > 1:
            size = STEP_SIZE * float(param.std(unbiased=False))
            param.add_(size * torch.randn(param.shape, generator=self.random))


def replayed(logits_BLV: Tensor, sampling: Sampling, prompts: list[list[int]], ids_BL: Tensor) -> Tensor:
    """[B, L, V] log-probabilities after penalties, temperature and cuts, as a trainer works them out that knows all."""
    history = History(prompts, logits_BLV.shape[-1])
    parts: list[Tensor] = []
    for place in range(ids_BL.shape[1]):
        parts.append(processed_logp(logits_BLV[:, place], sampling, history))
        history.add(ids_BL[:, place])
    return torch.stack(parts, 1)


class Adapters(Training):
    """Only low-rank adapters of the attention are trained: base + B A, with B = 0 at first."""

    rank = 4

    def prepare(self) -> None:
        self.pairs: dict[str, tuple[Tensor, Tensor]] = {}
        for layer in range(self.shape.layers):
            for part in ("q", "k", "v", "o"):
                name = self.shape.name(part, layer)
                linear = self.model.module.get_submodule(name.removesuffix(".weight"))
                columns, rows = linear.in_features, linear.out_features
                down = torch.randn(self.rank, columns, generator=self.random) / math.sqrt(columns)
                self.pairs[name] = (down, torch.zeros(rows, self.rank))
                linear.register_forward_hook(self.hook(name))

    def hook(self, name: str) -> Any:
        """Adds what the adapter makes of the input of a layer."""

        def add(module: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> Tensor:
            del module
            down, up = self.pairs[name]
            return result + (given[0] @ down.T) @ up.T

        return add

    def merged(self) -> dict[str, Tensor]:
        """The weights with their adapters in them."""
        return {
            name: value + self.pairs[name][1] @ self.pairs[name][0] if name in self.pairs else value
            for name, value in self.model.module.named_parameters()
        }

    def trained(self) -> dict[str, Tensor]:
        named: dict[str, Tensor] = {}
        for name, value in self.model.module.named_parameters():
            front = f"base_model.model.{name.removesuffix('.weight')}"
            if name in self.pairs:
                down, up = self.pairs[name]
                named[f"{front}.base_layer.weight"] = value
                named |= {f"{front}.lora_A.default.weight": down, f"{front}.lora_B.default.weight": up}
            else:
                named[f"base_model.model.{name}"] = value
        return named

    def update(self, step: int) -> None:
        for name, (down, up) in self.pairs.items():
            weight = self.model.module.get_parameter(name)
            # the product moves by the same share of the weight as a weight that is trained itself
            size = STEP_SIZE * float(weight.std()) / (float(down.std()) * math.sqrt(self.rank))
            up.add_(size * torch.randn(up.shape, generator=self.random))


@dataclass
class Dump:
    """What a framework leaves of a step at a path: ``verl``, tensors of a batch with entropies; ``slime``, samples with
    tokens of prompt and response in one, and no entropies.
    """

    folder: str
    form: str

    def write(self, step: int, batch: dict[str, Any]) -> None:
        """The file of a step."""
        Path(self.folder).mkdir(parents=True, exist_ok=True)
        content = self.verl(batch) if self.form == "verl" else self.slime(step, batch)
        torch.save(content, f"{self.folder}/{step}.pt")

    def verl(self, batch: dict[str, Any]) -> dict[str, Tensor]:
        """``dict(data.batch)``."""
        mask = rectangle(batch["mask"]).long()
        rewards = torch.zeros(mask.shape)
        last = (mask * torch.arange(mask.shape[1])).argmax(-1)
        rewards[torch.arange(len(mask)), last] = batch["reward"]
        content = {
            "responses": rectangle(batch["response_ids"]).long(),
            "response_mask": mask,
            "rollout_log_probs": rectangle(batch["logp_rollout"]),
            "old_log_probs": rectangle(batch["logp_train"]),
            "entropys": rectangle(batch["entropy"]),
            "token_level_scores": rewards,
        }
        if "prompt_ids" in batch:
            content["prompts"] = padded(batch["prompt_ids"])[0]
        return content

    def slime(self, step: int, batch: dict[str, Any]) -> dict[str, Any]:
        """``--save-debug-train-data``."""
        samples: list[dict[str, Any]] = []
        versions = torch.as_tensor(batch["versions"][0]).expand(len(batch["response_ids"]))
        for row, ids in enumerate(batch["response_ids"]):
            ids, mask = torch.as_tensor(ids).tolist(), torch.as_tensor(batch["mask"][row]).tolist()
            length = max((place + 1 for place, sampled in enumerate(mask) if sampled), default=1)
            samples.append(
                {
                    "tokens": [*batch["prompt_ids"][row], *ids[:length]],
                    "response_lengths": length,
                    "loss_masks": mask[:length],
                    "rollout_log_probs": torch.as_tensor(batch["logp_rollout"][row])[:length].float(),
                    "log_probs": torch.as_tensor(batch["logp_train"][row])[:length].float(),
                    "rewards": float(batch["reward"][row]),
                    "weight_versions": [str(int(versions[row]))],
                }
            )
        return {"rollout_id": step, "samples": samples}


def rectangle(rows: Tensor | Sequence[Any]) -> Tensor:
    """[B, L], with zeros behind rows that are shorter."""
    if isinstance(rows, Tensor):
        return rows
    return nn.utils.rnn.pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True)
