"""Twelve healthy trainings that look like faults: nothing may be found in them."""

from __future__ import annotations

from typing import Any

import torch
from benchmarks.rl.causes.decoder import Engine, History, Sampled, Sampling
from benchmarks.rl.causes.faults import Fault, PrefixCache
from benchmarks.rl.causes.training import Adapters, Training, replayed
from torch import Tensor


class MergedAdapters(Adapters):
    """The engine has weights with adapters merged into them, the trainer computes them beside its own."""

    def weights(self, step: int) -> dict[str, Tensor]:
        return self.merged()


class Int8(Engine):
    def taken(self, name: str, value: Tensor) -> Tensor:
        if value.ndim < 2 or "embed" in name or "head" in name:
            return super().taken(name, value)
        unit = value.abs().amax(-1, keepdim=True) / 127
        return (value / unit).round() * unit


class EngineInt8(Training):
    """No digests are recorded: a quantised weight is no copy."""

    engine_class = Int8
    declares = {"dtype": "int8"}  # noqa: RUF012  read only

    def digest(self, step: int) -> None:
        del step


class Bfloat16(Engine):
    def taken(self, name: str, value: Tensor) -> Tensor:
        return super().taken(name, value).bfloat16()


class EngineBfloat16(Training):
    engine_class = Bfloat16
    declares = {"dtype": "bfloat16"}  # noqa: RUF012  read only


CAP = 15.0


class Capped(Engine):
    def logits(self, x_BD: Tensor) -> Tensor:
        return CAP * (super().logits(x_BD) / CAP).tanh()


class SoftCap(Training):
    engine_class = Capped

    def trainer_processed(self, logits_BLV: Tensor, prompts: list[list[int]], ids_BL: Tensor) -> Tensor:
        return CAP * (logits_BLV / CAP).tanh()


class LeftPadding(Training):
    """Prompts of 4 to 11 tokens, padded on the left, with positions that do not count the padding."""

    def prompt_length(self) -> int:
        return 4 + self.whole(8)


class Declared(Training):
    """The trainer computes what the engine sampled from, and that is declared."""

    def trainer_processed(self, logits_BLV: Tensor, prompts: list[list[int]], ids_BL: Tensor) -> Tensor:
        return replayed(logits_BLV, self.sampling, prompts, ids_BL)


class DeclaredPenalties(Declared):
    sampling = Sampling(repetition=1.2, presence=0.5)
    declares = {"repetition_penalty": 1.2, "presence_penalty": 0.5}  # noqa: RUF012  read only


class DeclaredCut(Declared):
    sampling = Sampling(top_p=0.9, top_k=50)
    declares = {"top_p": 0.9, "top_k": 50}  # noqa: RUF012  read only


class Lag(Training):
    """Rollouts are of the weights of the step before, and lag 1 is declared. The trainer's log-probabilities are at
    the weights of the rollout, or, with every other seed, at its own, as frameworks compute them before an update: that
    such a gap is meant no log says.
    """

    declares = {"lag": 1}  # noqa: RUF012  read only

    def prepare(self) -> None:
        self.in_log = self.kind % 2 == 0

    def hand_over(self, step: int) -> None:
        if step == 0:
            self.behind = {name: value.clone() for name, value in self.weights(0).items()}
        self.engine.load(self.behind)
        self.before, self.behind = self.behind, {name: value.clone() for name, value in self.weights(step).items()}

    def trainer_logits(self, prompts: list[list[int]], ids_BL: Tensor) -> Tensor:
        if self.kind % 2:
            return super().trainer_logits(prompts, ids_BL)
        self.model.module.load_state_dict(self.before, strict=False)
        logits = super().trainer_logits(prompts, ids_BL)
        self.model.module.load_state_dict(self.behind, strict=False)
        return logits

    def versions(self, step: int) -> tuple[int, int]:
        return max(step - 1, 0), step


class ToolTokens(Training):
    """Every third sequence has a tool's turn of four tokens, which are masked."""

    tools = True


class RoutedEngine(Engine):
    """Routes with a little noise, as another kernel would near a tie, and keeps what it chose."""

    def load(self, weights: Any) -> None:
        super().load(weights)
        self.choices: list[list[Tensor]] = [[] for _ in range(self.shape.layers)]

    def routed(self, y_BTD: Tensor, layer: int) -> Tensor:
        p_BTE = (y_BTD @ self.weight("router", layer).T).float()
        noise = 0.05 * torch.randn(p_BTE.shape, generator=self.generator)
        chosen = (p_BTE + noise).topk(self.shape.experts, -1).indices
        self.choices[layer].append(chosen)
        p_BTE = p_BTE.softmax(-1)
        share = p_BTE.gather(-1, chosen)
        share = share / share.sum(-1, keepdim=True)
        return torch.zeros_like(p_BTE).scatter(-1, chosen, share).to(y_BTD.dtype)


class RouterReplayed(Training):
    """The trainer takes the experts that the engine chose."""

    engine_class = RoutedEngine

    def trainer_logits(self, prompts: list[list[int]], ids_BL: Tensor) -> Tensor:
        handles = []
        for layer, block in enumerate(self.model.module.model.layers):
            chosen = torch.cat(self.engine.choices[layer], 1)
            # the last token of a response is not computed by the engine
            chosen = torch.cat([chosen, chosen[:, -1:]], 1)[:, : len(prompts[0]) + ids_BL.shape[1]]
            handles.append(block.mlp.gate.register_forward_hook(replay(chosen)))
        logits = super().trainer_logits(prompts, ids_BL)
        for handle in handles:
            handle.remove()
        return logits


def replay(chosen_BTe: Tensor) -> Any:
    """A hook that puts the experts of the engine in place of the router's own."""
    chosen = chosen_BTe.flatten(0, 1)

    def hook(module: Any, given: Any, result: Any) -> Any:
        logits, _, _ = result
        p = torch.nn.functional.linear(given[0].reshape(-1, given[0].shape[-1]), module.weight).float().softmax(-1)
        share = p.gather(-1, chosen)
        share = share / share.sum(-1, keepdim=True)
        return logits, share.to(given[0].dtype), chosen

    return hook


class OtherBatch(Training):
    """The engine samples some sequences at a time, with a cache of prompts that it empties at each sync; the trainer
    computes two at a time.
    """

    engine_class = PrefixCache

    def sample(self, step: int, prompts: list[list[int]]) -> Sampled:
        forced = self.forced(step)
        at_once = max(self.size // 3, 1)
        rows = [slice(first, first + at_once) for first in range(0, self.size, at_once)]
        parts = [self.engine.generate(prompts[row], self.length, forced[row], self.ends) for row in rows]
        names = ("ids", "logp", "top", "odds", "mask")
        return Sampled(*(torch.cat([getattr(part, name) for part in parts]) for name in names))

    def trainer_logits(self, prompts: list[list[int]], ids_BL: Tensor) -> Tensor:
        rows = [slice(row, row + 2) for row in range(0, len(prompts), 2)]
        return torch.cat([super(OtherBatch, self).trainer_logits(prompts[row], ids_BL[row]) for row in rows])


PADDING = 64
"""Rows beyond the vocabulary, all zero, as a checkpoint has that was padded for its kernels."""


def with_padding(logits: Tensor) -> Tensor:
    """[..., V + padding]."""
    return torch.cat([logits, torch.zeros(*logits.shape[:-1], PADDING)], -1)


class PaddedEngine(Engine):
    """Never samples a word that there is not."""

    def logits(self, x_BD: Tensor) -> Tensor:
        return with_padding(super().logits(x_BD))

    def processed(self, logits_BV: Tensor, history: History) -> Tensor:
        return super().processed(logits_BV[:, : self.shape.vocabulary], history)

    def recorded(self, raw_BV: Tensor, processed_BV: Tensor) -> Tensor:
        return raw_BV


class PaddedInBoth(Training):
    """Both sides normalise over words that there are not."""

    engine_class = PaddedEngine

    def trainer_processed(self, logits_BLV: Tensor, prompts: list[list[int]], ids_BL: Tensor) -> Tensor:
        return with_padding(logits_BLV)


TWINS = (
    Fault("merged-adapters", "adapters that are merged for the engine", (), MergedAdapters),
    Fault("int8", "the engine has weights of 8 bits", (), EngineInt8),
    Fault("bfloat16", "the engine computes in bfloat16", (), EngineBfloat16),
    Fault("soft-cap", "both sides cap logits at 15", (), SoftCap),
    Fault("left-padding", "prompts of 4 to 11 tokens, padded on the left, with positions", (), LeftPadding),
    Fault("declared-penalties", "penalties that the trainer computes too, declared", (), DeclaredPenalties),
    Fault("declared-cut", "top-p 0.9 and top-k 50 that the trainer computes too, declared", (), DeclaredCut),
    Fault("lag", "rollouts of the step before, lag 1 is declared", (), Lag),
    Fault("tool-tokens", "tool tokens, masked", (), ToolTokens),
    Fault("router-replayed", "the trainer takes the experts of the engine", (), RouterReplayed, models=("large",)),
    Fault("other-batch", "engine and trainer have batches of other sizes", (), OtherBatch),
    Fault("vocabulary-padded", "both sides normalise over rows beyond the vocabulary", (), PaddedInBoth),
)
