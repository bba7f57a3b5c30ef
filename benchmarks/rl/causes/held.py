"""A fourth set of faults that was set aside: written down with the right causes before any of them was judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from benchmarks.rl.causes.decoder import Cache, Engine, History, Sampled, Sampling
from benchmarks.rl.causes.faults import Fault, PrefixCache
from benchmarks.rl.causes.training import GROUP, Adapters, Training
from torch import Tensor

SAMPLED = ("ids", "logp", "top", "odds", "mask")


class DerivesBeforeLoad(Engine):
    """Makes what it computes with before the new weights are copied: it is of the weights of the sync before."""

    parts = (("head",), ("qkv",), ("up", "down"))
    kind = 0
    before: dict[str, Any] | None = None

    def derive(self) -> dict[str, Any]:
        fresh = super().derive()
        before, self.before = self.before or fresh, fresh
        late = self.parts[self.kind % 3]
        return {name: before[name] if name.startswith(late) else fresh[name] for name in fresh}


class DerivedOneSyncLate(Training):
    """The transposed output, q, k and v of all layers, or all of their MLPs, from seed to seed."""

    engine_class = DerivesBeforeLoad

    def prepare(self) -> None:
        self.engine.kind = self.kind


class FlushRefused(PrefixCache):
    """Does not empty its cache of prompts while requests wait: ``waits`` says at which syncs."""

    kind = 0
    syncs = 0

    def load(self, weights: Any) -> None:
        self.keeps_over_syncs = self.waits()
        self.syncs += 1
        super().load(weights)

    def waits(self) -> bool:
        """At two of three syncs, at each from the third on, or at every other one."""
        if self.kind % 3 == 1:
            return self.syncs >= 2
        return bool(self.syncs % (3, 0, 2)[self.kind % 3])


class FlushNotDone(Training):
    """At some syncs, others from seed to seed."""

    engine_class = FlushRefused

    def prepare(self) -> None:
        self.engine.kind = self.kind


class Leftovers(Training):
    """More prompts are sampled than a batch takes; what is left over goes into a batch that comes one step later, or
    three. Their version is told as the one that they were sampled with, or, with every other seed, as that of the
    batch.
    """

    def prepare(self) -> None:
        self.age = (1, 3)[self.kind // 2 % 2]
        self.num = self.size // 4 * (1, 2)[self.kind % 2]
        self.kept: list[tuple[list[list[int]], Sampled]] = []

    def prompts(self, step: int) -> list[list[int]]:
        own = super().prompts(step)
        return [*self.kept[-self.age][0], *own[self.num :]] if len(self.kept) >= self.age else own

    def sample(self, step: int, prompts: list[list[int]]) -> Sampled:
        old = self.kept[-self.age][1] if len(self.kept) >= self.age else None
        extra = super().prompts(step)[: self.num]
        forced = torch.full((self.num, self.length), -1)
        self.kept.append((extra, self.engine.generate(extra, self.length, forced, self.ends)))
        sampled = super().sample(step, prompts)
        if old is None:
            return sampled
        return Sampled(*(torch.cat([getattr(old, name), getattr(sampled, name)[self.num :]]) for name in SAMPLED))

    def versions(self, step: int) -> Any:
        of_row = torch.full((self.size,), step)
        if step >= self.age and self.kind % 2 == 0:
            of_row[: self.num] = step - self.age
        return of_row, step


class OwnHead(Engine):
    """Took the checkpoint's copy of tied weights for the output, and gets the embedding alone since."""

    since = 0
    loads = 0
    own: Tensor | None = None

    def load(self, weights: Any) -> None:
        if self.own is None or self.loads < self.since:
            self.own = weights[self.shape.name("embed")].detach().clone()
        self.loads += 1
        super().load({**weights, self.shape.name("head"): self.own})


class TiedHeadCopied(Training):
    """From the start, or, with every other seed, from the second sync on, when deltas replace whole weights."""

    engine_class = OwnHead

    def prepare(self) -> None:
        self.engine.since = (0, 2)[self.kind % 2]


class SessionsWithoutAdapter(Adapters):
    """Requests of one kind name no adapter, and the base answers them: a quarter of the prompts, or half of them."""

    def prepare(self) -> None:
        super().prepare()
        self.plain = self.engine_class(self.shape, self.sampling, self.random)
        self.plain.load(super().weights(0))

    def weights(self, step: int) -> dict[str, Tensor]:
        return self.merged()

    def sample(self, step: int, prompts: list[list[int]]) -> Sampled:
        forced = self.forced(step)
        every = (4, 2)[self.kind % 2]
        own = self.engine.generate(prompts, self.length, forced, self.ends)
        plain = self.plain.generate(prompts, self.length, forced, self.ends)
        # the responses to one prompt are of one session
        session = torch.arange(self.size) // GROUP % every == 1
        parts: list[Tensor] = []
        for name in SAMPLED:
            mixed = getattr(own, name).clone()
            mixed[session] = getattr(plain, name)[session]
            parts.append(mixed)
        return Sampled(*parts)


class Windowed(Engine):
    """Attends to the last tokens alone, in all layers or in every other one."""

    window = 0
    every = 1
    layer = 0

    def attended(self, q: Tensor, k: Tensor, v: Tensor, seen_BT: Tensor, layer: int) -> Tensor:
        self.layer = layer
        return super().attended(q, k, v, seen_BT, layer)

    def visible(self, causal: Tensor) -> Tensor:
        new, known = causal.shape
        if self.layer % self.every:
            return causal
        return causal & torch.ones_like(causal).triu(known - new - self.window + 1)


class WindowLeftOut(Training):
    """The trainer's kernel has no window: of 14 tokens in the engine, of 22, or of 14 in every other layer."""

    engine_class = Windowed

    def prepare(self) -> None:
        self.engine.window = (14, 22, 14)[self.kind % 3]
        self.engine.every = (1, 1, 2)[self.kind % 3]


class BlockOverwritten(Engine):
    """A block of the cache of some requests is given to another request while they wait, and is that one's then."""

    block = 4
    share = 0.3
    decoded = 0
    places: Tensor | None = None

    def prefill(self, prompts: list[list[int]]) -> tuple[Tensor, Cache, Tensor]:
        logits, cache, position = super().prefill(prompts)
        num = len(prompts)
        hit = torch.rand(num, generator=self.generator) < self.share
        places = torch.randint(3, 15, (num,), generator=self.generator)
        self.decoded, self.places = 0, places.masked_fill(~hit, -1)
        return logits, cache, position

    def decode(self, ids_B: Tensor, position_B: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        assert self.places is not None
        for row in (self.places == self.decoded).nonzero().flatten().tolist():
            first = (cache.seen_BT.shape[1] // self.block - 1) * self.block
            other = (row + 7) % len(ids_B)
            for values in (*cache.keys, *cache.values):
                values[row, :, first : first + self.block] = values[other, :, first : first + self.block]
        self.decoded += 1
        return super().decode(ids_B, position_B, cache)


class Preempted(Training):
    """Blocks of four or eight tokens, from the start or from the second step on, when sequences are longer."""

    engine_class = BlockOverwritten

    def hand_over(self, step: int) -> None:
        self.engine.block = (4, 8)[self.kind % 2]
        self.engine.share = (0.5, 0.35)[self.kind % 2] if step >= self.kind // 2 % 2 * 2 else 0.0
        super().hand_over(step)


class NotReturned(Training):
    """The engine returns the likeliest words at each place, and 0 stands for a sampled word that is not among them; or,
    with every other seed, of requests that were aborted and taken up again it returns the second part alone.
    """

    def sample(self, step: int, prompts: list[list[int]]) -> Sampled:
        sampled = super().sample(step, prompts)
        if self.kind % 2 == 0:
            k = 20 if self.shape.experts else 5
            return replace(sampled, logp=sampled.logp.masked_fill(self.ranks(prompts, sampled) >= k, 0.0))
        place = torch.arange(self.length)
        begins = torch.randint(2, self.length // 2, (self.size, 1), generator=self.random)
        aborted = torch.rand(self.size, 1, generator=self.random) < 0.4
        return replace(sampled, logp=sampled.logp.masked_fill(aborted & (place < begins), 0.0))

    def ranks(self, prompts: list[list[int]], sampled: Sampled) -> Tensor:
        """[B, L] how many words are likelier than the sampled one; weights are the same on both sides."""
        logp = self.trainer_logits(prompts, sampled.ids).log_softmax(-1)
        return (logp > logp.gather(-1, sampled.ids[..., None])).sum(-1)


class EqualPromptsMerged(Training):
    """Groups are told apart by the text of their prompts, of which several are the same; or, with every other seed, all
    of a batch are one group, as reward lists of uneven groups are flattened.
    """

    def prompts(self, step: int) -> list[list[int]]:
        own = [self.pool[self.whole(5)] for _ in range(max(self.size // GROUP, 1))]
        return [prompt for prompt in own for _ in range(self.size // len(own))]

    def told(self, step: int, batch: dict[str, Any]) -> dict[str, Any]:
        reward, advantage = batch["reward"], batch["advantage"].clone()
        keys = [() if self.kind % 2 else tuple(prompt) for prompt in batch["prompt_ids"]]
        for key in set(keys):
            rows = torch.tensor([row for row, own in enumerate(keys) if own == key])
            advantage[rows] = (reward[rows] - reward[rows].mean()) / (reward[rows].std() + 1e-4)
        return batch | {"advantage": advantage}


class OutsideAutocast(Training):
    """One of two passes of the trainer is in bfloat16 by autocast: the update's, or, with every other seed, that of the
    log-probabilities before it.
    """

    def trainer_logits(self, prompts: list[list[int]], ids_BL: Tensor) -> Tensor:
        return self.cast(prompts, ids_BL, bool(self.kind % 2))

    def update_logits(self, prompts: list[list[int]], ids_BL: Tensor) -> Tensor | None:
        return self.cast(prompts, ids_BL, not self.kind % 2)

    def cast(self, prompts: list[list[int]], ids_BL: Tensor, on: bool) -> Tensor:
        """[B, L, V] of one pass."""
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            return super().trainer_logits(prompts, ids_BL).float()


class Grammar(Engine):
    """Within a call of a tool a grammar leaves one word at a place, or a few; log-probabilities are the model's."""

    share = 0.5
    span = 8
    place = 0
    begins: Tensor | None = None

    def prefill(self, prompts: list[list[int]]) -> tuple[Tensor, Cache, Tensor]:
        num = len(prompts)
        begins = torch.randint(0, 12, (num,), generator=self.generator)
        calls = torch.rand(num, generator=self.generator) < self.share
        self.place, self.begins = 0, begins.masked_fill(~calls, 1000)
        return super().prefill(prompts)

    def processed(self, logits_BV: Tensor, history: History) -> Tensor:
        assert self.begins is not None
        at = self.place - self.begins
        word = torch.arange(logits_BV.shape[1])
        first = self.shape.vocabulary // 2 + 3 * at[:, None]
        # structure and values take turns: one word, then one of six
        num = torch.where(at[:, None] % 3 == 2, 6, 1)
        left = (word >= first) & (word < first + num)
        inside = ((at >= 0) & (at < self.span))[:, None]
        self.place += 1
        return super().processed(logits_BV.masked_fill(inside & ~left, -torch.inf), history)


class GrammarCounted(Training):
    """Half of the responses have a call of eight tokens, or a quarter of them one of five."""

    engine_class = Grammar
    sampling = Sampling(records="raw")

    def prepare(self) -> None:
        self.engine.share, self.engine.span = ((0.5, 8), (0.25, 5))[self.kind % 2]


class PaddingBetween(Training):
    """The trainer pads prompts on their right, and positions of the response count that padding: up to the longest
    prompt of the batch, or, with every other seed, up to the longest that is allowed.
    """

    longest = 16

    def prompt_length(self) -> int:
        return 4 + self.whole(8)

    def trainer_logits(self, prompts: list[list[int]], ids_BL: Tensor) -> Tensor:
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        width = self.longest if self.kind % 2 else int(lengths.max())
        front = torch.tensor([prompt + [0] * (width - len(prompt)) for prompt in prompts])
        ids = torch.cat([front, ids_BL], 1)
        position = torch.arange(ids.shape[1]).expand_as(ids)
        seen = (position < lengths[:, None]) | (position >= width)
        logits = self.model.logits(ids, position, seen)
        first = logits[torch.arange(len(prompts)), lengths - 1][:, None]
        return torch.cat([first, logits[:, width:-1]], 1).float()


HELD: tuple[Fault, ...] = (
    Fault(
        "derived-one-sync-late",
        "what the engine computes with is made before the new weights are copied, from those of the sync before",
        ("derived-weights-stale",),
        DerivedOneSyncLate,
        "sgl-project/sglang#31937, vllm-project/vllm-ascend#16322",
    ),
    Fault(
        "flush-refused",
        "the engine does not empty its cache of prompts at syncs at which requests wait",
        ("prompt-cache-stale",),
        FlushNotDone,
        "areal-project/AReaL#140, sgl-project/sglang#32153, radixark/miles#2783",
    ),
    Fault(
        "leftovers",
        "a batch has responses that were left over one step before, or three, and no lag is declared",
        ("rollouts-lag",),
        Leftovers,
        "THUDM/slime#181, THUDM/slime#1800",
    ),
    Fault(
        "tied-head-copied",
        "the engine has a copy of the tied embedding for its output, which no sync reaches",
        ("weights-partly-synced", "derived-weights-stale"),
        TiedHeadCopied,
        "PrimeIntellect-ai/prime-rl#2823, vllm-project/vllm#51665",
        ("large",),
    ),
    Fault(
        "sessions-without-adapter",
        "requests of some prompts name no adapter, and the base answers them",
        ("adapter-not-sent",),
        SessionsWithoutAdapter,
        "radixark/miles#2075, vllm-project/vllm-omni#5369",
    ),
    Fault(
        "window-left-out",
        "the engine attends within a sliding window that the trainer leaves out",
        ("implementations-differ",),
        WindowLeftOut,
        "vllm-project/vllm#3385, huggingface/transformers#29623",
    ),
    Fault(
        "block-overwritten",
        "a block of the cache of some requests is another request's after they were preempted",
        ("decoding-differs",),
        Preempted,
        "vllm-project/vllm#52360, vllm-project/vllm#39146",
    ),
    Fault(
        "not-returned",
        "0 stands for log-probabilities of words beyond the first k, or of what came before an abort",
        ("logprobs-missing",),
        NotReturned,
        "fw-ai/cookbook#483, zhaochenyang20/Awesome-ML-SYS-Tutorial#201",
    ),
    Fault(
        "equal-prompts-merged",
        "groups with the same prompt are one, or all of a batch are",
        ("advantages-of-other-group",),
        EqualPromptsMerged,
        "NVIDIA-NeMo/RL#3882, THUDM/slime#1918",
    ),
    Fault(
        "outside-autocast",
        "one of two passes of the trainer is computed in bfloat16",
        ("trainer-passes-differ",),
        OutsideAutocast,
        "jingyaogong/minimind#814, huggingface/trl#7077",
    ),
    Fault(
        "grammar-counted",
        "tokens of calls that a grammar leaves no or little choice of count as sampled",
        ("forced-tokens-not-masked",),
        GrammarCounted,
        "huggingface/trl#2811, NVIDIA-NeMo/RL#827",
    ),
    Fault(
        "padding-between",
        "positions of the response count the padding between prompt and response in the trainer",
        ("prompt-differs",),
        PaddingBetween,
        "verl-project/verl#4243, OpenRLHF/OpenRLHF#217",
    ),
)
