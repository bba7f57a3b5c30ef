"""The loop of ``examples/grpo_two_engines.py``, CTranslate2 against transformers with real updates, with what people
got wrong planted in it. What is inside the engine (its cache) cannot be reached.

B sequences, L tokens, V vocabulary.
"""

from __future__ import annotations

import copy
from typing import Any
from unittest import mock

import torch
from examples.grpo_two_engines import Engine, Grpo, tiny
from gallery.rollouts.loop import FAULTS
from torch import Tensor
from transformers import PreTrainedModel, logging

import trueline

PLANTED = tuple(case for case in FAULTS if case != "cache-drift")
TWINS = {
    "plain": "CTranslate2 in float32; the policy learns until it is sharp",
    "int8": "the same in int8",
    "batch": "CTranslate2 samples four sequences at a time, the trainer sees all at once",
}
_RECORD, _RECORD_SYNC = trueline.rl.record, trueline.rl.record_sync


class PlantedEngine(Engine):
    """The engine, with what is wrong about its weights and its sampling."""

    def __init__(self, case: str, seed: int, other: PreTrainedModel, temperature: float) -> None:
        super().__init__("int8" if case == "int8" else "float32", 1000 * seed)
        self.case, self.other = case, other
        self.behind: PreTrainedModel | None = None
        self.first: Tensor | None = None
        if case == "temperature-raw":
            self.options["sampling_temperature"] = temperature
        if case.startswith("top-p"):
            self.options["sampling_topp"] = 0.9
        if case == "batch":
            self.options["max_batch_size"] = 4

    def load(self, model: PreTrainedModel) -> None:
        handed = model
        if self.case == "dummy-weights":
            handed = self.other
        elif self.case == "lag":
            handed, self.behind = self.behind or model, copy.deepcopy(model)
        elif self.case == "tensor-stale":
            handed = copy.deepcopy(model)
            tensor = handed.model.layers[1].mlp.down_proj.weight.data
            self.first = tensor.clone() if self.first is None else self.first
            tensor.copy_(self.first)
        elif self.case == "temperature-processed":  # CTranslate2 itself records what is before its temperature
            handed = copy.deepcopy(model)
            handed.lm_head.weight.data /= 0.7
        super().load(handed)
        if self.case == "temperature-processed":
            self.weights["lm_head.weight"] = model.lm_head.weight


class Planted(Grpo):
    """The loop with one of ``PLANTED`` or ``TWINS``; ``spread`` is the standard deviation of the first output weights,
    which makes the policy as sharp as a language model.
    """

    def __init__(
        self,
        case: str,
        seed: int,
        out: str,
        *,
        family: str,
        vocabulary: int,
        spread: float,
        size: int,
        lr: float = 3e-3,
        temperature: float = 0.7,
    ) -> None:
        logging.set_verbosity_error()
        torch.manual_seed(seed)
        model, other = (_sharp(family, vocabulary, spread) for _ in range(2))
        super().__init__(model, PlantedEngine(case, seed, other, temperature), out, prompts=size // 4, group=4, lr=lr)
        self.case = case

    def run(self, steps: int) -> None:
        """So many steps, recorded."""
        patches = {"record": self._record, "record_sync": self._record_sync}
        with mock.patch.multiple(trueline.rl, **patches):
            for step in range(steps):
                self.step(step)
        trueline.rl.close()

    def logits(self, prompts: Tensor, ids: Tensor) -> Tensor:
        drops = self.case == "dropout"
        self.model.train(drops)
        for layer in self.model.model.layers:
            layer.self_attn.attention_dropout = 0.1 if drops else 0.0
        return super().logits(prompts[:, 1:] if self.case == "template" else prompts, ids)

    def _record_sync(self, *given: Any, **more: Any) -> bool:
        return self.case == "lag" or _RECORD_SYNC(*given, **more)  # a sync after sampling is right, but late

    @torch.no_grad()
    def _record(
        self, step: int, prompts: Tensor, ids: Tensor, mask: Tensor, rollout: Tensor, train: Tensor, **more: Any
    ) -> bool:
        if self.case == "lag":
            more["versions"] = (max(step - 1, 0), step)
        if self.case == "dropout":
            more["logp_update"] = trueline.rl.of_logits(self.logits(prompts, ids), ids).logp
        if self.case == "shifted":
            train = train.roll(-1, dims=1)
        if self.case == "top-p-processed":
            rollout = rollout - _log_kept(self.logits(prompts, ids), 0.9)
        if self.case == "tokenised-again":
            seen = _tokenised_again(ids, self.model.config.vocab_size)
            told = trueline.rl.of_logits(self.logits(prompts, seen), seen)
            train = told.logp
            more |= {name: getattr(told, name) for name in ("entropy", "varentropy", "mass_above")}
        return _RECORD(step, prompts, ids, mask, rollout, train, **more)


def _sharp(family: str, vocabulary: int, spread: float) -> PreTrainedModel:
    model = tiny(family, vocabulary)
    model.lm_head.weight.data.normal_(std=spread)
    return model


def _log_kept(logits_BLV: Tensor, top_p: float) -> Tensor:
    """[B, L] the logarithm of what the likeliest tokens that hold ``top_p`` have in all."""
    ordered = logits_BLV.softmax(-1).sort(-1, descending=True).values
    before = ordered.cumsum(-1) - ordered
    return (ordered * (before < top_p)).sum(-1).log()


def _tokenised_again(ids: Tensor, vocabulary: int) -> Tensor:
    """The same but that a token somewhere in the middle became two, and the last one is cut off."""
    length = ids.shape[1]
    place = int(torch.randint(length // 4, max(length // 2, length // 4 + 1), (1,)))
    two = torch.randint(2, vocabulary, (len(ids), 2))
    return torch.cat([ids[:, :place], two, ids[:, place + 1 : -1]], 1)
