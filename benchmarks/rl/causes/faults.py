"""What a fault is, and the open half of those that are planted: checks may be tried on these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.rl.causes.decoder import Cache, Engine, Sampling, padded
from benchmarks.rl.causes.training import Adapters, Training, replayed
from torch import Tensor


@dataclass(frozen=True)
class Fault:
    """``causes`` are the slugs that are right for it; ``models`` those in which it can be. ``source`` is who had it."""

    name: str
    says: str
    causes: tuple[str, ...]
    training: type[Training]
    source: str = ""
    models: tuple[str, ...] = ("small", "large")


class PrefixCache(Engine):
    """Keeps what it computed of a prompt but for its last token, and takes it up where the prompt comes again."""

    keeps_over_syncs = False

    def load(self, weights: Mapping[str, Tensor]) -> None:
        super().load(weights)
        if not self.keeps_over_syncs or not hasattr(self, "known"):
            self.known: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}

    def prefill(self, prompts: list[list[int]]) -> tuple[Tensor, Cache, Tensor]:
        new = [list(prompt) for prompt in dict.fromkeys(map(tuple, prompts)) if prompt not in self.known]
        if new:
            ids, position, seen = padded([prompt[:-1] for prompt in new])
            _, cache = self.forward(ids, position, seen, None)
            for row, prompt in enumerate(new):
                layers = zip(cache.keys, cache.values, strict=True)
                self.known[tuple(prompt)] = [(keys[row], values[row]) for keys, values in layers]
        of_rows = [self.known[tuple(prompt)] for prompt in prompts]
        keys, values = (
            [torch.stack([row[layer][which] for row in of_rows]) for layer in range(self.shape.layers)]
            for which in range(2)
        )
        width = len(prompts[0]) - 1
        last = torch.tensor([prompt[-1] for prompt in prompts])
        cache = Cache(keys, values, torch.ones(len(prompts), width, dtype=torch.bool))
        position = torch.full((len(prompts),), width)
        logits, cache = self.decode(last, position, cache)
        return logits, cache, position + 1


class KeepingPrefixCache(PrefixCache):
    keeps_over_syncs = True


class PromptCacheStale(Training):
    engine_class = KeepingPrefixCache


class DerivedOnce(Engine):
    """Makes what it computes with of the first weights alone, but for what ``renews`` names."""

    stale = ("qkv", "up", "head")
    kind = 0

    def derive(self) -> dict[str, Any]:
        fresh = super().derive()
        stale = self.stale[self.kind % len(self.stale)]
        return {name: self.derived[name] if self.derived and name.startswith(stale) else fresh[name] for name in fresh}


class DerivedWeightsStale(Training):
    """The matrix of q, k and v, that of gate and up, or the transposed output, from seed to seed. Of a mixture the
    second is another copy of what the experts are loaded from.
    """

    engine_class = DerivedOnce

    def prepare(self) -> None:
        self.engine.kind = self.kind


class AdapterNotSent(Adapters):
    """The engine goes on with the base."""


class RowShifted(Training):
    """The first token after a tool's turn has no log-probability in one side's list, so that all behind it stand one
    place too early.
    """

    tools = True

    def told(self, step: int, batch: dict[str, Any]) -> dict[str, Any]:
        name = "logp_train" if self.kind % 2 else "logp_rollout"
        logp, mask_BL = batch[name].clone(), batch["mask"]
        for row, mask in enumerate(mask_BL):
            sampled = mask.nonzero().flatten()
            gaps = (sampled.diff() > 1).nonzero().flatten()
            if len(gaps):
                behind = sampled[int(gaps[0]) + 1 :]
                own = batch[name][row, behind]
                logp[row, behind] = torch.cat([own[1:], own[-1:]])
        return batch | {name: logp}


class CutsDiffer(Training):
    """Both sides compute within a cut: the engine in its top 0.95, the trainer in its top 0.8 or the top 10."""

    sampling = Sampling(top_p=0.95)
    declares = {"top_p": 0.95}  # noqa: RUF012  read only

    def trainer_processed(self, logits_BLV: Tensor, prompts: list[list[int]], ids_BL: Tensor) -> Tensor:
        own = Sampling(top_k=10) if self.kind % 2 else Sampling(top_p=0.8)
        return replayed(logits_BLV, own, prompts, ids_BL)


class PenaltyRaw(Training):
    sampling = Sampling(repetition=1.3, records="raw")


class PenaltyProcessed(Training):
    sampling = Sampling(presence=1.5)


class PaddedVocabulary(Training):
    """Rows that the trainer's output has beyond the words give all the same, or, with every other seed, as they were
    drawn at first. Where a model's other logits stand is free, so that 0 may be as much as this beside them.
    """

    def prepare(self) -> None:
        num = -(-self.shape.vocabulary // 256) * 256 - self.shape.vocabulary + 128
        self.padding = torch.full((num,), 10.0 if self.shape.experts else 2.0)
        self.padding += self.kind % 2 * torch.randn(num, generator=self.random)

    def trainer_processed(self, logits_BLV: Tensor, prompts: list[list[int]], ids_BL: Tensor) -> Tensor:
        return torch.cat([logits_BLV, self.padding.expand(*logits_BLV.shape[:2], -1)], -1)


class BeginsTwice(Engine):
    def tokens(self, prompts: Any) -> list[list[int]]:
        return [[prompt[0], *prompt] for prompt in prompts]


class BosTwice(Training):
    engine_class = BeginsTwice
    names_prompts = False


class TemperatureRaw(Training):
    sampling = Sampling(temperature=0.75, records="raw")


class CutProcessed(Training):
    sampling = Sampling(top_k=8)


class NeverLoaded(Engine):
    """The part of a layer of which the name matches nothing stays as it was at first."""

    parts = ("down", "k", "gate")
    kind = 0

    def taken(self, name: str, value: Tensor) -> Tensor:
        parts = ("experts_down", "k", "experts_up") if self.shape.experts else self.parts
        if name == self.shape.name(parts[self.kind % 3], self.kind % self.shape.layers) and name in self.params:
            return self.params[name]
        return super().taken(name, value)


class PartlySynced(Training):
    engine_class = NeverLoaded

    def prepare(self) -> None:
        self.engine.kind = self.kind


OPEN = (
    Fault(
        "prompt-cache-kept",
        "the engine keeps its cache of prompts over a sync",
        ("prompt-cache-stale",),
        PromptCacheStale,
    ),
    Fault(
        "fused-once",
        "the engine computes with matrices that it made of its weights when it was started",
        ("derived-weights-stale",),
        DerivedWeightsStale,
    ),
    Fault("base-alone", "adapters are trained, the engine has the base alone", ("adapter-not-sent",), AdapterNotSent),
    Fault(
        "shifted-after-tool",
        "of sequences with a tool's turn one side's log-probabilities are shifted from there on",
        ("row-shifted-from-a-token-on",),
        RowShifted,
    ),
    Fault(
        "cuts-differ",
        "the engine computes within its top 0.95, the trainer within another cut",
        ("normalised-over-a-cut",),
        CutsDiffer,
    ),
    Fault(
        "repetition-raw",
        "a repetition penalty of 1.3, log-probabilities recorded before it",
        ("penalties-not-in-trainer",),
        PenaltyRaw,
    ),
    Fault(
        "presence-processed",
        "a presence penalty of 1.5 in what the engine records, none in the trainer",
        ("penalties-not-in-trainer",),
        PenaltyProcessed,
    ),
    Fault(
        "vocabulary-padded",
        "the trainer normalises over rows beyond the vocabulary",
        ("padded-vocabulary",),
        PaddedVocabulary,
    ),
    Fault(
        "bos-twice",
        "the engine's prompts begin with two BOS; prompts are not recorded",
        ("prompt-differs",),
        BosTwice,
    ),
    Fault(
        "temperature-0.75-raw",
        "sampled at temperature 0.75, log-probabilities recorded before it",
        ("temperature-not-recorded",),
        TemperatureRaw,
    ),
    Fault(
        "top-k-processed",
        "sampled from the top 8 and recorded within it, the trainer's over all words",
        ("cut-not-in-trainer",),
        CutProcessed,
    ),
    Fault(
        "part-never-loaded",
        "one matrix of the engine, another from seed to seed, is never written again",
        ("weights-partly-synced",),
        PartlySynced,
    ),
)
