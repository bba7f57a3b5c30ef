"""Faults that were set aside a third time, and are open since they were run once; written down with the right causes
before any of them was judged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from benchmarks.rl.causes.decoder import Cache, Engine, History, Sampled, Sampling
from benchmarks.rl.causes.faults import Fault
from benchmarks.rl.causes.training import GROUP, Training, replayed
from torch import Tensor

SAMPLED = ("ids", "logp", "top", "odds", "mask")


class GatherNotWaitedFor(Training):
    """Weights are copied into the buffer that is sent while shards are still gathered: of some matrices of the layers,
    others at each sync, the second half is what stood there before. That is the matrix of the sync before, or, with
    every other seed, where one buffer serves all of a shape, the matrix that was gathered last.
    """

    before: dict[str, Tensor] | None = None

    def weights(self, step: int) -> dict[str, Tensor]:
        now = {name: value.detach().clone() for name, value in super().weights(step).items()}
        sent, last = dict(now), dict[torch.Size, Tensor]()
        for name, value in now.items():
            if value.ndim < 2 or "layers." not in name:
                continue
            stood = None if self.before is None else self.before[name]
            if self.kind % 2:
                stood = last.get(value.shape, stood)
            if step and stood is not None and self.whole(10) < (4, 2)[self.kind % 2]:
                half = len(value) // 2
                sent[name] = torch.cat([value[:half], stood[half:]])
            last[value.shape] = value
        self.before = now
        return sent


class Restarted(Training):
    """One of two engines dies and is started anew with the checkpoint; weights go on to the one that it was. Of two
    engines the one that is looked at is the other, or that one; with each third seed the other is gone, and all come
    from the new one.
    """

    def prepare(self) -> None:
        self.other = self.engine_class(self.shape, self.sampling, self.random)
        self.new = self.other if self.kind % 3 == 0 else self.engine
        self.dies = 2 + self.kind % 2
        self.checkpoint = {name: value.detach().clone() for name, value in self.weights(0).items()}

    def hand_over(self, step: int) -> None:
        for engine in (self.engine, self.other):
            if engine is not self.new or step < self.dies:
                engine.load(self.weights(step))
            elif step == self.dies:
                engine.load(self.checkpoint)
        self.digest(step)

    def sample(self, step: int, prompts: list[list[int]]) -> Sampled:
        forced, half = self.forced(step), self.size // (2 * GROUP) * GROUP
        second = self.new if self.kind % 3 == 2 and step >= self.dies else self.other
        parts = [
            engine.generate(prompts[rows], self.length, forced[rows], self.ends)
            for engine, rows in ((self.engine, slice(half)), (second, slice(half, None)))
        ]
        return Sampled(*(torch.cat([getattr(part, name) for part in parts]) for name in SAMPLED))


class TemperatureInTrainer(Training):
    """The engine's log-probabilities are from before its temperature; the trainer divides by it, as it should."""

    temperatures = (0.6, 1.2, 0.8, 0.7)

    def prepare(self) -> None:
        self.temperature = self.temperatures[self.kind % 4]
        self.engine.sampling = Sampling(temperature=self.temperature, records="raw")
        self.declares = {"temperature": self.temperature}

    def trainer_processed(self, logits_BLV: Tensor, prompts: list[list[int]], ids_BL: Tensor) -> Tensor:
        return logits_BLV / self.temperature


class PackedLeak(Training):
    """One pass of the trainer packs two sequences into one row by a kernel that knows no borders, so that the second
    sees the first. It is the update's, or, with every other seed, the one before.
    """

    def trainer_logits(self, prompts: list[list[int]], ids_BL: Tensor) -> Tensor:
        return self.packed(prompts, ids_BL) if self.kind % 2 else super().trainer_logits(prompts, ids_BL)

    def update_logits(self, prompts: list[list[int]], ids_BL: Tensor) -> Tensor | None:
        return super().trainer_logits(prompts, ids_BL) if self.kind % 2 else self.packed(prompts, ids_BL)

    def packed(self, prompts: list[list[int]], ids_BL: Tensor) -> Tensor:
        """[B, L, V] of two sequences in a row, each with positions of its own, behind one token of padding."""
        front = len(prompts[0])
        whole = torch.cat([torch.tensor(prompts), ids_BL], 1)
        each = whole.shape[1]
        ids = torch.nn.functional.pad(whole.reshape(-1, 2 * each), (1, 0))
        position = torch.nn.functional.pad(torch.arange(each).repeat(2), (1, 0)).expand_as(ids)
        seen = torch.ones_like(ids, dtype=torch.bool)
        seen[:, 0] = False
        logits = self.model.logits(ids, position, seen)[:, 1:].unflatten(1, (2, each)).flatten(0, 1)
        return logits[:, front - 1 : -1].float()


class RewardOfBatch(Training):
    """A model scores: the mean over tokens has the padding of its micro-batch in it, or, with every other seed, dropout
    is on.
    """

    def prompt_length(self) -> int:
        return 4 + self.whole(16)

    def told(self, step: int, batch: dict[str, Any]) -> dict[str, Any]:
        reward, again = self.scored(batch), self.scored(batch)
        groups = reward.reshape(int(batch["group"].max()) + 1, -1)
        advantage = (groups - groups.mean(-1, keepdim=True)) / (groups.std(-1, keepdim=True) + 1e-4)
        return batch | {"reward": reward, "reward_again": again, "advantage": advantage.flatten()}

    def scored(self, batch: dict[str, Any]) -> Tensor:
        """[B] rewards, in micro-batches of four in another order each time."""
        score = batch["reward"]
        if self.kind % 2:
            kept = (torch.rand(self.size, 16, generator=self.random) > 0.1).float() / 0.9
            return score * kept.mean(-1)
        num = batch["mask"].sum(-1) + torch.tensor([len(prompt) for prompt in batch["prompt_ids"]])
        reward = torch.zeros_like(score)
        for rows in torch.randperm(self.size, generator=self.random).split(4):
            reward[rows] = score[rows] * num[rows] / num[rows].max()
        return reward


class GroupsByStride(Training):
    """Groups are taken to be each four rows in turn, after some episodes failed and were left out, or, with every other
    seed, after rows were put in order of their lengths.
    """

    def told(self, step: int, batch: dict[str, Any]) -> dict[str, Any]:
        if self.kind % 2:
            order = batch["mask"].sum(-1).argsort(stable=True)
        else:
            failed = torch.rand(self.size, generator=self.random) < 0.12
            failed[self.whole(GROUP)] = True
            order = (~failed).nonzero().flatten()
        own = {name: value[order] if isinstance(value, Tensor) else value for name, value in batch.items()}
        own["prompt_ids"] = [batch["prompt_ids"][row] for row in order.tolist()]
        advantage = own["reward"].clone()
        for first in range(0, len(order) - GROUP + 1, GROUP):
            of_group = own["reward"][first : first + GROUP]
            advantage[first : first + GROUP] = (of_group - of_group.mean()) / (of_group.std() + 1e-4)
        return own | {"advantage": advantage}


class AcceptedUnlogged(Training):
    """The engine decodes speculatively, and a token that was accepted from the draft has the log-probability 0. Drafts
    are of a small model, or, with every other seed, n-grams that are accepted less often.
    """

    def sample(self, step: int, prompts: list[list[int]]) -> Sampled:
        sampled = super().sample(step, prompts)
        share = (0.2 if self.kind % 2 else 0.7) * (sampled.logp / 2).exp()
        accepted = torch.rand(share.shape, generator=self.random) < share
        # the first token is of the prefill, and after three drafts comes one of the engine itself
        accepted[:, ::4] = False
        return replace(sampled, logp=sampled.logp.masked_fill(accepted, 0.0))


class Behind(Training):
    """Weights that are published are taken over after the next rollout was sampled, though it is told as of these; or
    every other hand-over is left out; or a queue holds three batches, and a lag of one is declared.
    """

    def prepare(self) -> None:
        self.kept: list[dict[str, Tensor]] = []
        self.sent = 0
        if self.kind % 3 == 2:
            self.declares = {"lag": 1}

    def hand_over(self, step: int) -> None:
        self.kept.append({name: value.detach().clone() for name, value in self.weights(step).items()})
        if self.kind % 3 != 1:
            self.sent = max(step - (1, 0, 3)[self.kind % 3], 0)
            self.engine.load(self.kept[self.sent])
        elif step % 2 == 0:
            self.sent = step
            super().hand_over(step)

    def versions(self, step: int) -> tuple[int, int]:
        return step if self.kind % 3 == 0 else self.sent, step


class RenderedAgain(Training):
    """The trainer has the tokens of the answer's text: the two arguments of a tool call are in another order there, or,
    with every other seed, tokens that are no text by themselves are replacement characters. Their number is the same.
    """

    def sample(self, step: int, prompts: list[list[int]]) -> Sampled:
        sampled = super().sample(step, prompts)
        ids = sampled.ids.clone()
        if self.kind % 2:
            broken = (ids >= self.ends) & ((ids * 7 + 3) % 31 == 0) & (sampled.mask > 0)
            return replace(sampled, ids=ids.masked_fill(broken, self.bos - 1))
        for row, num in enumerate(sampled.mask.sum(-1).tolist()):
            start = 1 + self.whole(self.length // 2)
            if start + 6 < num and self.whole(4):
                own = sampled.ids[row]
                ids[row, start : start + 6] = torch.cat([own[start + 3 : start + 6], own[start : start + 3]])
        return replace(sampled, ids=ids)


class WiderHead(Engine):
    """The output has rows beyond the words, as they were drawn at first. None of them is sampled, and log-probabilities
    are over all rows.
    """

    rows: Tensor | None = None

    def logits(self, x_BD: Tensor) -> Tensor:
        assert self.rows is not None
        beyond = (x_BD @ self.rows.T).float() * self.shape.scale
        return torch.cat([super().logits(x_BD), beyond], -1)

    def processed(self, logits_BV: Tensor, history: History) -> Tensor:
        return super().processed(logits_BV[:, : self.shape.vocabulary], history)

    def recorded(self, raw_BV: Tensor, processed_BV: Tensor) -> Tensor:
        return raw_BV[:, : self.shape.vocabulary]


class HeadPaddedInEngine(Training):
    """The head is as wide as a power of two on each device, or, with every other seed, padded for its kernels alone."""

    engine_class = WiderHead

    def prepare(self) -> None:
        head = self.weights(0).get(self.shape.name("head"), self.weights(0)[self.shape.name("embed")]).detach()
        num = len(head) // (16 if self.kind % 2 else 3)
        self.engine.rows = head.std() * torch.randn(num, head.shape[1], generator=self.random)


class CutInTrainerAlone(Training):
    """The engine samples from a cut and records log-probabilities from before it; the trainer normalises over the cut,
    as it was declared.
    """

    cuts = ({"top_p": 0.9}, {"top_k": 20}, {"top_p": 0.8})

    def prepare(self) -> None:
        self.declares = self.cuts[self.kind % 3]
        self.cut = Sampling(**self.declares)
        self.engine.sampling = replace(self.cut, records="raw")

    def trainer_processed(self, logits_BLV: Tensor, prompts: list[list[int]], ids_BL: Tensor) -> Tensor:
        return replayed(logits_BLV, self.cut, prompts, ids_BL)


class PositionsOff(Engine):
    """Adds to the positions of tokens that are decoded what belongs to other requests, or one, and not at prefill."""

    kind = 0

    def prefill(self, prompts: list[list[int]]) -> tuple[Tensor, Cache, Tensor]:
        logits, cache, position = super().prefill(prompts)
        row = torch.arange(len(prompts))
        return logits, cache, position + (1 if self.kind % 2 else (row % 3 == 0) * 12 * (1 + row % 4))


class DecodePositions(Training):
    """A third of the requests have an offset, or, with every other seed, all are one too far."""

    engine_class = PositionsOff

    def prepare(self) -> None:
        self.engine.kind = self.kind


SEEN_THIRD = (
    Fault(
        "gather-not-waited-for",
        "of some matrices, others at each sync, half is what stood in the buffer before",
        ("weights-partly-synced",),
        GatherNotWaitedFor,
        "ms-swift#9060, ms-swift#10204",
    ),
    Fault(
        "engine-restarted",
        "an engine was started anew with the checkpoint, and no weights reach it since",
        ("engine-weights-not-loaded",),
        Restarted,
        "radixark/miles#1724, NVIDIA-NeMo/RL#3944",
    ),
    Fault(
        "temperature-in-trainer",
        "log-probabilities from before the engine's temperature, by which the trainer divides",
        ("temperature-not-recorded",),
        TemperatureInTrainer,
        "trl#4159, prime-rl#679, vime#69",
    ),
    Fault(
        "packed-leak",
        "in one of two passes of the trainer each second sequence sees the one that it is packed with",
        ("trainer-passes-differ",),
        PackedLeak,
        "unsloth-zoo#840, async-grpo#4",
    ),
    Fault(
        "reward-of-batch",
        "a reward model scores with the padding of its micro-batch, or with dropout",
        ("reward-not-a-function",),
        RewardOfBatch,
        "reward-bench#137, trlx#474, trl#3234",
    ),
    Fault(
        "groups-by-stride",
        "groups are each four rows in turn, after some were left out or all were sorted",
        ("advantages-of-other-group",),
        GroupsByStride,
        "AReaL#1419, radixark/miles#1573",
    ),
    Fault(
        "accepted-unlogged",
        "tokens that were accepted from a draft have the log-probability 0",
        ("logprobs-missing",),
        AcceptedUnlogged,
        "vllm#17876, llama.cpp#27972, sglang#14046",
    ),
    Fault(
        "weights-behind",
        "weights are taken over too late, hand-overs are left out, or the queue is longer than declared",
        ("rollouts-lag",),
        Behind,
        "prime-rl#3050, verl#5698, radixark/miles#1962",
    ),
    Fault(
        "rendered-again",
        "the text is tokenised again for the trainer, and some tokens are others",
        ("response-tokenised-again",),
        RenderedAgain,
        "tokenspeed#736, slime#117, verifiers#1068",
    ),
    Fault(
        "head-padded-in-engine",
        "the engine normalises over rows beyond the vocabulary",
        ("padded-vocabulary",),
        HeadPaddedInEngine,
        "tt-metal#38881, mlx-vlm#1917",
    ),
    Fault(
        "cut-in-trainer-alone",
        "sampled from a cut and recorded before it, the trainer normalises over the cut",
        ("normalised-over-a-cut", "cut-not-recorded"),
        CutInTrainerAlone,
        "NVIDIA-NeMo/RL#69, NVIDIA-NeMo/RL#773",
    ),
    Fault(
        "decode-positions",
        "positions of decoded tokens are off by another request's offset, or by one",
        ("decoding-differs",),
        DecodePositions,
        "sglang#8219, vllm#10403",
    ),
)
