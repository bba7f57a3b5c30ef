"""A loop of rollouts and updates: what is right, and each of the things that people got wrong.

The update is a seeded step into a random direction: what matters here is that the weights move, and by how much.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

import trueline
from gallery.rollouts.policy import Policy, Sampling, generate, processed_logp
from gallery.witness import digest

FAULTS: dict[str, str] = {
    "temperature-raw": "sampled at temperature 0.7, log-probabilities recorded before it, the trainer's without it",
    "temperature-processed": "sampled and recorded at temperature 0.7, the trainer's log-probabilities without it",
    "top-p-raw": "sampled from the top 0.9, log-probabilities recorded before the cut",
    "top-p-processed": "sampled from the top 0.9 and recorded within it, the trainer's over all tokens",
    "lag": "the engine has the weights of the step before, and no lag is declared",
    "tensor-stale": "one tensor of the engine is never written again",
    "cache-drift": "values in the cache lose precision with every token",
    "template": "the trainer leaves out the first token of each prompt",
    "tokenised-again": "from some token on the trainer has others",
    "shifted": "the trainer's log-probabilities are those of the next token",
    "dropout": "dropout is on where the trainer computes log-probabilities",
    "dummy-weights": "the engine has random weights",
}
TWINS: dict[str, str] = {
    "plain": "float32 on both sides",
    "bfloat16": "the engine computes in bfloat16",
    "int8": "the engine has weights of 8 bits",
    "batch": "the engine samples four sequences at a time, the trainer sees all at once",
    "lag-declared": "rollouts of the step before, and lag 1 is declared",
    "top-p-reproduced": "top-p 0.9, and the trainer computes within the same cut",
    "tool-tokens": "30 % of the tokens are a tool's, and masked",
    "sharp": "a policy of very low entropy",
}


@dataclass
class Loop:
    """``case`` is a fault or a twin; ``size`` sequences of ``length`` tokens a step. With ``per_sampling`` so many
    steps are sampled at once, from the same weights, which is quicker. ``told`` are things that the loop
    records besides log-probabilities: ``entropy``, ``odds``, ``mass``, ``syncs``, ``versions``, ``updates``.
    """

    case: str
    seed: int = 0
    vocabulary: int = 256
    size: int = 16
    length: int = 64
    prompt: int = 8
    step_size: float = 0.03
    per_sampling: int = 1
    told: tuple[str, ...] = ("entropy", "odds", "mass", "syncs", "versions", "updates")
    policy: Policy = field(init=False)
    seen: list[list[str]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        torch.manual_seed(self.seed)
        self.generator = torch.Generator().manual_seed(1000 + self.seed)
        self.policy = Policy(vocabulary=self.vocabulary, scale=12.0 if self.case == "sharp" else 2.5)
        self.behind = copy.deepcopy(self.policy)
        self.first = copy.deepcopy(self.policy)
        self.other = Policy(vocabulary=self.vocabulary)
        top_p = 0.9 if self.case.startswith("top-p") else 1.0
        temperature = 0.7 if self.case.startswith("temperature") else 1.0
        self.sampling = Sampling(temperature, top_p, processed=not self.case.endswith("-raw"))

    def run(self, steps: int, out: str | None) -> None:
        """Record ``steps`` steps into a Run at ``out``; ``seen`` are digests of what was recorded of each sequence."""
        for step in range(0, steps, self.per_sampling):
            self.step(step, out)
        trueline.rl.close()

    @torch.no_grad()
    def step(self, step: int, out: str | None) -> None:
        """One step: hand over weights, sample, compute log-probabilities, record, update."""
        engine = self._engine()
        if out is not None and "syncs" in self.told and self.case not in ("lag", "lag-declared"):
            rollout = engine if self.case not in ("bfloat16", "int8") else self.policy
            trueline.rl.record_sync(step, self.policy.named_parameters(), rollout.named_parameters(), out=out)
        given = self._rollouts(engine)
        lags = self.case in ("lag", "lag-declared") and step > 0
        for place in range(self.per_sampling):
            own = {name: values[place * self.size : (place + 1) * self.size] for name, values in given.items()}
            if "versions" in self.told:
                own["versions"] = (step - 1 if lags else step, step)
            self.seen.append(
                [digest(torch.cat(pair)) for pair in zip(own["logp_rollout"], own["logp_train"], strict=True)]
            )
            if out is not None:
                trueline.rl.record(step + place, sampling=self._declared(), out=out, **own)
        self.behind.load_state_dict(self.policy.state_dict())
        for param in self.policy.parameters():
            scale = self.step_size * float(param.std(unbiased=False)) if param.ndim > 1 else 0.0
            param.add_(scale * torch.randn(param.shape, generator=self.generator))

    def _engine(self) -> Policy:
        if self.case in ("lag", "lag-declared"):
            return copy.deepcopy(self.behind)
        if self.case == "dummy-weights":
            return self.other
        engine = copy.deepcopy(self.policy)
        if self.case == "tensor-stale":
            engine.layers[1].down_proj.weight.copy_(self.first.layers[1].down_proj.weight)
        if self.case == "bfloat16":
            engine = engine.bfloat16()
        if self.case == "int8":
            for param in engine.parameters():
                if param.ndim > 1:
                    unit = param.abs().amax(-1, keepdim=True) / 127
                    param.copy_((param / unit).round() * unit)
        return engine

    def _declared(self) -> dict[str, Any]:
        declared: dict[str, Any] = {"dtype": self.case if self.case in ("bfloat16", "int8") else "float32"}
        if self.case == "lag-declared":
            declared["lag"] = 1
        if self.case == "top-p-reproduced":
            declared["top_p"] = 0.9
        return declared

    def _rollouts(self, engine: Policy) -> dict[str, Any]:
        size = self.size * self.per_sampling
        prompt = torch.randint(self.vocabulary, (size, self.prompt), generator=self.generator)
        mask = torch.ones(size, self.length, dtype=torch.long)
        forced = None
        if self.case == "tool-tokens":
            mask = (torch.rand(mask.shape, generator=self.generator) > 0.3).long()
            anything = torch.randint(self.vocabulary, mask.shape, generator=self.generator)
            forced = torch.where(mask == 0, anything, -1)
        drift = 2e-3 if self.case == "cache-drift" else 0.0
        at_once = 4 if self.case == "batch" else size
        rows = [slice(first, first + at_once) for first in range(0, size, at_once)]
        parts = [
            generate(
                engine,
                prompt[row],
                length=self.length,
                sampling=self.sampling,
                generator=self.generator,
                cache_drift=drift,
                forced_BL=None if forced is None else forced[row],
            )
            for row in rows
        ]
        ids, logp, top, odds = (
            torch.cat([getattr(part, name) for part in parts]) for name in ("ids", "logp", "top", "odds")
        )
        given: dict[str, Any] = {"prompt_ids": prompt, "response_ids": ids, "mask": mask, "logp_rollout": logp}
        return given | self._trained(prompt, ids, top, odds)

    def _trained(self, prompt: Tensor, ids: Tensor, top: Tensor, odds: Tensor) -> dict[str, Any]:
        """What the trainer computes of the same tokens."""
        seen = self._retokenised(ids) if self.case == "tokenised-again" else ids
        judge = copy.deepcopy(self.behind) if self.case == "lag-declared" else self.policy
        logits = self._logits(judge, prompt, seen)
        if self.case == "top-p-reproduced":
            logits = processed_logp(logits, self.sampling)
        taken = trueline.rl.of_logits(logits, seen, pair=top)
        logp = taken.logp
        if self.case == "shifted":
            logp = torch.cat([logp[:, 1:], logp[:, :1]], 1)
        given: dict[str, Any] = {"logp_train": logp}
        if "entropy" in self.told:
            given |= {"entropy": taken.entropy, "varentropy": taken.varentropy}
        if "odds" in self.told:
            given |= {"odds_rollout": odds, "odds_train": taken.odds}
        if "mass" in self.told:
            given["mass_above"] = taken.mass_above
        if "updates" in self.told and self.case == "dropout":
            given["logp_update"] = trueline.rl.of_logits(self._logits(judge, prompt, seen), seen).logp
        return given

    def _logits(self, judge: Policy, prompt: Tensor, ids: Tensor) -> Tensor:
        """[B, L, V] before each token of the responses."""
        if self.case == "template":
            prompt = prompt[:, 1:]
        for layer in judge.layers:
            layer.dropout = 0.1 if self.case == "dropout" else 0.0
        logits = judge(torch.cat([prompt, ids], 1))[:, prompt.shape[1] - 1 : -1]
        for layer in judge.layers:
            layer.dropout = 0.0
        return logits

    def _retokenised(self, ids: Tensor) -> Tensor:
        """The same but that a token somewhere in the middle became two, and the last one is cut off."""
        place = int(torch.randint(self.length // 4, self.length // 2, (1,), generator=self.generator))
        two = torch.randint(self.vocabulary, (len(ids), 2), generator=self.generator)
        return torch.cat([ids[:, :place], two, ids[:, place + 1 : -1]], 1)
