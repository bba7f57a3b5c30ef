"""Twelve more faults that were set aside once, and are open since."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from benchmarks.rl.causes.decoder import Cache, Engine, Sampled, Sampling
from benchmarks.rl.causes.faults import Fault
from benchmarks.rl.causes.training import Adapters, Training
from torch import Tensor

import trueline
from trueline.rl.logits import TokenStatistics


class LabelsShifted(Training):
    """The trainer's values are those of the token behind, or, with every other seed, of the token before, of which the
    first is the prompt's last.
    """

    def score(self, prompts: list[list[int]], sampled: Sampled, logits_BLV: Tensor) -> TokenStatistics:
        own = super().score(prompts, sampled, logits_BLV)
        if self.kind % 2:
            last = torch.tensor([[prompt[-1]] for prompt in prompts])
            before = self.trainer_logits([prompt[:-1] for prompt in prompts], last)
            first = trueline.rl.of_logits(before, last, pair=sampled.top[:, :1])
            parts = {one.name: (getattr(first, one.name), getattr(own, one.name)[:, :-1]) for one in fields(own)}
        else:
            parts = {one.name: (getattr(own, one.name)[:, 1:], getattr(own, one.name)[:, -1:]) for one in fields(own)}
        return TokenStatistics(**{name: torch.cat(part, 1) for name, part in parts.items()})


class TemperatureLeftOut(Training):
    """The engine samples and records at a temperature of the configuration, or, with every other seed, of the model's
    own file, which is not declared; the trainer computes without it.
    """

    temperatures = (0.7, 0.6, 1.2, 0.9)

    def prepare(self) -> None:
        temperature = self.temperatures[self.kind % 4]
        self.engine.sampling = Sampling(temperature=temperature)
        if self.kind % 2 == 0:
            self.declares = {"temperature": temperature}


class TokenisedAgain(Training):
    """The trainer has the tokens of the text again, in which some pairs of tokens have become one. What the engine
    returned of each token is put beside them by place, and cut off at their number.
    """

    def sample(self, step: int, prompts: list[list[int]]) -> Sampled:
        sampled = super().sample(step, prompts)
        ids, mask = torch.zeros_like(sampled.ids), torch.zeros_like(sampled.mask)
        for row, length in enumerate(sampled.mask.sum(-1).tolist()):
            own = self.merged_pairs(sampled.ids[row, :length].tolist())
            ids[row, : len(own)] = torch.tensor(own)
            mask[row, : len(own)] = 1
        return replace(sampled, ids=ids, mask=mask)

    def merged_pairs(self, ids: Sequence[int]) -> list[int]:
        """The ids with each pair that is one word put together."""
        every = (29, 61)[self.kind % 2]
        own: list[int] = []
        for word in ids:
            pair = (own[-1], word) if own else (0, 0)
            if min(pair) >= self.ends and (31 * pair[0] + 17 * pair[1]) % every == 0:
                own[-1] = self.ends + (7 * pair[0] + 13 * pair[1]) % (self.bos - self.ends)
            else:
                own.append(word)
        return own


class VerifierTimesOut(Training):
    """A reward is 0 where the verifier ran out of time, which does not depend on the text."""

    def told(self, step: int, batch: dict[str, Any]) -> dict[str, Any]:
        share = (0.1, 0.25)[self.kind % 2]
        late = torch.rand(self.size, generator=self.random) < share
        reward = batch["reward"].masked_fill(late, 0.0)
        groups = reward.reshape(int(batch["group"].max()) + 1, -1)
        advantage = (groups - groups.mean(-1, keepdim=True)) / (groups.std(-1, keepdim=True) + 1e-4)
        return batch | {"reward": reward, "advantage": advantage.flatten()}


class StageNames(Training):
    """Layers of the last stage of a pipeline are sent under their numbers within the stage, so that they meet the
    first layers' names, and the engine's last layers keep the checkpoint. Of two tensors of one name the later one
    stays, or the first one, or, with each third seed, now one and now the other.
    """

    def prepare(self) -> None:
        self.checkpoint = {name: value.detach().clone() for name, value in self.model.module.named_parameters()}

    def weights(self, step: int) -> dict[str, Tensor]:
        own = super().weights(step)
        last = self.shape.layers - 1
        sent: dict[str, Tensor] = {}
        for number, (name, value) in enumerate(own.items()):
            if f"layers.{last}." not in name:
                sent[name] = value
                continue
            first = self.kind % 3 == 1 or (self.kind % 3 == 2 and number % 2 == 0)
            local = name.replace(f"layers.{last}.", "layers.0.")
            sent[local] = own[local] if first else value
        return self.checkpoint | sent


class KnowsAdapters(Engine):
    """Keeps adapters beside its weights, each under its number; one whose number is known is not read again."""

    def add_adapter(self, number: int, pairs: dict[str, tuple[Tensor, Tensor]]) -> None:
        """Take over the adapter, if its number is new."""
        if not hasattr(self, "adapters"):
            self.adapters: dict[int, dict[str, Tensor]] = {}
        if number not in self.adapters:
            self.adapters[number] = {name: up @ down for name, (down, up) in pairs.items()}

    def weight(self, part: str, layer: int = 0) -> Tensor:
        name = self.shape.name(part, layer)
        weight = super().weight(part, layer)
        return weight + self.adapters[1][name] if name in self.adapters[1] else weight


class AdapterOfSameNumber(Adapters):
    """Training goes on with an adapter that was trained before; the engine keeps what it read first."""

    engine_class = KnowsAdapters

    @torch.no_grad()
    def prepare(self) -> None:
        super().prepare()
        for _ in range((4, 10)[self.kind % 2]):
            super().update(0)

    def hand_over(self, step: int) -> None:
        self.engine.add_adapter(1, self.pairs)
        super().hand_over(step)


SYSTEM = 6
"""Tokens that all prompts begin with."""


class Cascade(Engine):
    """Attends to the part that all sequences begin with for all at once, then to the rest, and puts both together by
    their sums of exponentials; those of the first part are another head's.
    """

    begins = 0

    def attended(self, q: Tensor, k: Tensor, v: Tensor, seen_BT: Tensor, layer: int) -> Tensor:
        if q.shape[2] > 1 or k.shape[2] < self.begins:
            return super().attended(q, k, v, seen_BT, layer)
        each = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
        scores = (q @ k.transpose(-1, -2)).float() * self.shape.head_width**-0.5
        front, rest = scores[..., :SYSTEM], scores[..., SYSTEM:].masked_fill(~seen_BT[:, None, None, SYSTEM:], -1e9)
        share = (front.logsumexp(-1).roll(1, 1) - rest.logsumexp(-1)).sigmoid()[..., None]
        mixed = share * (front.softmax(-1) @ v[:, :, :SYSTEM])
        mixed = mixed + (1 - share) * (rest.softmax(-1) @ v[:, :, SYSTEM:])
        return mixed.transpose(1, 2).flatten(-2)


class CascadeAttention(Training):
    """From the first decoded token on, or, with every other seed, in longer sequences alone."""

    engine_class = Cascade

    def prepare(self) -> None:
        self.engine.begins = self.kind % 2 * (self.prompt_length() + self.length // 3)

    def prompt_length(self) -> int:
        return SYSTEM + 6

    def prompt(self) -> list[int]:
        system = [self.bos, *range(self.ends + 20, self.ends + 20 + SYSTEM - 1)]
        return [*system, *super().prompt()[SYSTEM:]]


class Graph(Engine):
    """Decodes by a graph that was captured once, in which a matrix is the one that there was then: a load makes a new
    one in another place.
    """

    stale = ("qkv", "head")
    kind = 0
    captured: dict[str, Any] | None = None

    def decode(self, ids_B: Tensor, position_B: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        fresh = self.derived
        if self.captured is None:
            self.captured = {name: made for name, made in fresh.items() if name.startswith(self.stale[self.kind % 2])}
        self.derived = fresh | self.captured
        result = super().decode(ids_B, position_B, cache)
        self.derived = fresh
        return result


class GraphOfOldWeights(Training):
    """The matrix is that of q, k and v, or, with every other seed, the transposed output."""

    engine_class = Graph

    def prepare(self) -> None:
        self.engine.kind = self.kind


class OtherScores(Engine):
    """Caps the scores of attention softly, or leaves out a factor of them that comes with scaled rotary positions."""

    cap = 0.0

    def attended(self, q: Tensor, k: Tensor, v: Tensor, seen_BT: Tensor, layer: int) -> Tensor:
        if not self.cap:
            return super().attended(q / 1.59, k, v, seen_BT, layer)
        each = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
        scores = (q @ k.transpose(-1, -2)).float() * self.shape.head_width**-0.5
        new, known = q.shape[2], k.shape[2]
        causal = torch.ones(new, known, dtype=torch.bool).tril(known - new)
        visible = causal & seen_BT[:, None, None, :]
        scores = (self.cap * (scores / self.cap).tanh()).masked_fill(~visible, -1e9)
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)


class OtherAttention(Training):
    """The trainer's kernel has no cap, or, with every other seed, has the factor. Scores of the mixture are larger."""

    engine_class = OtherScores

    def prepare(self) -> None:
        if self.kind % 2 == 0:
            self.engine.cap = 2.5 if self.shape.experts else 0.4


class BudgetOfThinking(Training):
    """Where the budget of thinking is used up, the engine puts two tokens that end it in place of what it would sample;
    they count as sampled. Their log-probabilities are the model's, or 0, as they are after the logits were overridden.
    """

    def forced(self, step: int) -> Tensor:
        forced_BL = super().forced(step)
        over = torch.rand(self.size, generator=self.random) < 0.6
        budget = self.length // 3 + self.whole(self.length // 3)
        forced_BL[over, budget], forced_BL[over, budget + 1] = self.bos - 2, self.ends + 1
        self.put = forced_BL >= 0
        return forced_BL

    def sample(self, step: int, prompts: list[list[int]]) -> Sampled:
        sampled = super().sample(step, prompts)
        stops = ((sampled.ids < self.ends) & (sampled.mask > 0)).long()
        counts = self.put & (stops.cumsum(-1) == 0)
        logp = sampled.logp.masked_fill(counts, 0.0) if self.kind % 2 else sampled.logp
        return replace(sampled, mask=sampled.mask.masked_fill(counts, 1), logp=logp)


class CutOfModelsFile(Training):
    """Cuts that no one asked for come from the model's own file; log-probabilities are from before them."""

    cuts = (
        Sampling(top_k=20, records="raw"),
        Sampling(top_p=0.8, records="raw"),
        Sampling(top_k=20, top_p=0.95, records="raw"),
    )

    def prepare(self) -> None:
        self.engine.sampling = self.cuts[self.kind % 3]


class RendersAnew(Engine):
    """Renders the prompt from its messages: without the tools at its beginning, or without what opens the answer."""

    kind = 0

    def tokens(self, prompts: Any) -> list[list[int]]:
        return [prompt[:-3] if self.kind % 2 else [prompt[0], *prompt[5:]] for prompt in prompts]


class TemplatesDiffer(Training):
    """The trainer has the prompt of its own template, and that is recorded."""

    engine_class = RendersAnew

    def prepare(self) -> None:
        self.engine.kind = self.kind

    def prompt(self) -> list[int]:
        prompt = super().prompt()
        if self.kind % 2:
            return [*prompt, self.ends + 7, self.ends + 8, self.ends + 7]
        return [prompt[0], *range(self.ends + 30, self.ends + 34), *prompt[1:]]


SEEN_SECOND = (
    Fault(
        "labels-shifted",
        "the trainer's log-probabilities are those of the token beside",
        ("logprobs-shifted",),
        LabelsShifted,
        "prime-rl#1525, ms-swift#8196",
    ),
    Fault(
        "temperature-left-out",
        "the engine samples and records at a temperature that the trainer leaves out",
        ("temperature-not-in-trainer",),
        TemperatureLeftOut,
        "trl#3029, ms-swift#8427",
    ),
    Fault(
        "tokenised-again",
        "the text is tokenised again for the trainer, and some pairs of tokens become one",
        ("response-tokenised-again", "row-shifted-from-a-token-on"),
        TokenisedAgain,
        "trl#5224, rllm#816",
    ),
    Fault(
        "verifier-times-out",
        "rewards are 0 where the verifier ran out of time",
        ("reward-not-a-function",),
        VerifierTimesOut,
        "NVIDIA-NeMo/RL#2207, compose-rl#87",
    ),
    Fault(
        "stage-names",
        "layers of the last stage of a pipeline are sent under the names of the first ones",
        ("weights-partly-synced",),
        StageNames,
        "NVIDIA-NeMo/RL#3259",
    ),
    Fault(
        "adapter-of-same-number",
        "the engine keeps the adapter that it read first under its number",
        ("adapter-not-sent",),
        AdapterOfSameNumber,
        "vllm-metal#351, SkyRL#1606",
    ),
    Fault(
        "cascade",
        "decoding puts attention to a shared beginning and to the rest together with another head's weights",
        ("decoding-differs",),
        CascadeAttention,
        "vllm#17652, vllm#22103",
    ),
    Fault(
        "graph-of-old-weights",
        "decoding replays a graph in which a matrix is the one of the first weights",
        ("derived-weights-stale", "decoding-differs"),
        GraphOfOldWeights,
        "sglang#4961, vllm-ascend#15666",
    ),
    Fault(
        "attention-scores",
        "the engine caps or scales the scores of attention otherwise than the trainer",
        ("implementations-differ",),
        OtherAttention,
        "vllm-metal#665, transformers#32309, Megatron-LM#1429",
    ),
    Fault(
        "budget-of-thinking",
        "tokens that end thinking at its budget count as sampled",
        ("forced-tokens-not-masked",),
        BudgetOfThinking,
        "vllm#54864, prime-rl#393",
    ),
    Fault(
        "cut-of-models-file",
        "sampled within cuts of the model's generation_config.json, log-probabilities recorded before them",
        ("cut-not-recorded",),
        CutOfModelsFile,
        "vime#6, OpenPipe/ART#140",
    ),
    Fault(
        "templates-differ",
        "the engine renders its prompts by another template than the trainer, whose prompts are recorded",
        ("prompt-differs",),
        TemplatesDiffer,
        "trl#6515, trl#5824",
    ),
)
