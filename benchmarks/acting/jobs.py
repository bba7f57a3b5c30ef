"""Trainings of two ranks into which a spike is planted, and healthy ones of one process."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import trueline
from trueline.schema.finding import UPDATE_SKIPPED

WIDTH, BATCH = 16, 32
PLAN: Mapping[str, Any] = {"on_finding": "skip", "most_skips": 20}


@dataclass(frozen=True)
class Spike:
    """``says`` what is planted, at ``at`` (0 to 1) of the training; with ``every`` again each so many steps."""

    name: str
    says: str
    at: float = 2 / 3
    every: int = 0

    def hits(self, step: int, steps: int) -> bool:
        """Whether it is there at ``step`` of ``steps``."""
        first = int(self.at * steps)
        return step >= first and (step == first or (self.every > 0 and (step - first) % self.every == 0))


SPIKES = (
    Spike("targets", "one batch of one rank whose targets are 1,000 times too large"),
    Spike("bit", "one bit of the exponent of one gradient of one rank, before ranks reduce"),
    Spike("nan", "one batch of one rank is NaN"),
    Spike("rate", "the learning rate is 100 times too large at one step"),
    Spike("recurring", "a batch of one rank with targets 1,000 times too large, each 50 steps", at=1 / 6, every=50),
)
CLEAN = Spike("", "", at=2.0)


def student(seed: int) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """The model, and what it is to learn."""
    torch.manual_seed(seed)
    teacher = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, 1)).requires_grad_(False)
    return nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)), teacher


def flip(gradient: Tensor) -> Tensor:
    """The gradient with the highest bit of the exponent of its first number the other way."""
    spoilt = gradient.clone()
    spoilt.view(-1)[:1].view(torch.int32).bitwise_xor_(1 << 30)
    return spoilt


def trained(rank: int, world: int, spike: Spike, seed: int, steps: int, out: str) -> dict[str, Any]:
    """The loss of the model after ``steps`` steps on what it has not seen, and the updates that were left out; watched
    where ``out`` is a path.
    """
    model, teacher = student(seed)
    net = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draw = torch.Generator().manual_seed(1000 * seed + rank)
    watch = trueline.watch(net, optimizer, out=out, plan=dict(PLAN)) if out else None
    for step in range(steps):
        x = torch.randn(BATCH, WIDTH, generator=draw)
        y = teacher(x) + 0.1 * torch.randn(BATCH, 1, generator=draw)
        hit = spike.hits(step, steps)
        here = hit and rank == world - 1
        if here and spike.name in ("targets", "recurring"):
            y = 1000 * y
        if here and spike.name == "nan":
            x = x * math.nan
        handle = model[2].weight.register_hook(flip) if here and spike.name == "bit" else None
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * (100 if hit and spike.name == "rate" else 1)
        optimizer.zero_grad()
        (net(x) - y).square().mean().backward()
        optimizer.step()
        for group, rate in zip(optimizer.param_groups, schedule.get_last_lr(), strict=True):
            group["lr"] = rate
        schedule.step()
        if handle is not None:
            handle.remove()
    if watch is not None:
        watch.close()
    x = torch.randn(4096, WIDTH, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        loss = float((model(x) - teacher(x)).square().mean())
    return {"loss": loss, "skipped": skipped(out) if out and rank == 0 else []}


def skipped(out: str) -> list[int]:
    """The steps before which an update was left out."""
    found = trueline.open_run(out).live_findings
    return [
        finding.step_first for finding in found if finding.code == UPDATE_SKIPPED and finding.step_first is not None
    ]


# -- healthy trainings -------------------------------------------------------------------------------------------------


class Tokens(nn.Module):
    """A language model of one block, of 32 words."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 24)
        self.block = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.0, batch_first=True)
        self.head = nn.Linear(24, 32)

    def forward(self, ids_BT: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(ids_BT.shape[1])
        return self.head(self.block(self.embed(ids_BT), src_mask=mask, is_causal=True))


Loss = Iterator[tuple[Tensor, ...]]


def regression(draw: torch.Generator, *, tail: float = 0.0) -> Loss:
    """Batches of a linear law with noise, of Student's t with so many degrees of freedom where ``tail`` is given."""
    weights = torch.randn(WIDTH, 1, generator=draw)
    while True:
        x = torch.randn(BATCH, WIDTH, generator=draw)
        noise = torch.randn(BATCH, 1, generator=draw)
        if tail:
            noise = noise / (torch.randn(BATCH, int(tail), generator=draw).square().mean(-1, keepdim=True)).sqrt()
        yield x, x @ weights + noise


def rarely_large(draw: torch.Generator) -> Loss:
    """Batches of ``regression``, one in 100 with inputs four times as large."""
    for x, y in regression(draw):
        factor = 4.0 if torch.rand((), generator=draw) < 0.01 else 1.0
        yield factor * x, factor * y


def words(draw: torch.Generator) -> Loss:
    """Batches of sequences of a Markov chain, of lengths of their own: the others are ignored."""
    odds = torch.softmax(2 * torch.randn(32, 32, generator=draw), -1)
    while True:
        ids = torch.zeros(8, 17, dtype=torch.long)
        ids[:, 0] = torch.randint(32, (8,), generator=draw)
        for t in range(16):
            ids[:, t + 1] = torch.multinomial(odds[ids[:, t]], 1, generator=draw)[:, 0]
        lengths = torch.randint(4, 17, (8, 1), generator=draw)
        yield ids[:, :-1], ids[:, 1:].masked_fill(torch.arange(16) >= lengths, -100)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 32), nn.ReLU(), nn.Linear(32, 1))


def squares(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(x) - y).square().mean()


def entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


@dataclass(frozen=True)
class Healthy:
    """A healthy training: ``make`` the model, ``data`` its batches, ``loss`` of a batch, the ``optimizer`` and how it
    is used.
    """

    says: str
    make: Callable[[], nn.Module]
    data: Callable[[torch.Generator], Loss]
    loss: Callable[..., Tensor]
    optimizer: Callable[..., torch.optim.Optimizer]
    clip: float = 0.0
    micro: int = 1
    warmup: int = 0


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, lr=0.02, momentum=0.9)


def adam(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=2e-3)


HEALTHY = (
    Healthy("regression, SGD with momentum", mlp, regression, squares, sgd),
    Healthy("regression, AdamW, clipped at 1", mlp, regression, squares, adam, clip=1.0),
    Healthy("regression, noise of Student's t (5)", mlp, lambda d: regression(d, tail=5), squares, adam),
    Healthy("regression, noise of Student's t (3)", mlp, lambda d: regression(d, tail=3), squares, adam),
    Healthy("regression, four micro-batches", mlp, regression, squares, adam, micro=4),
    Healthy("language model, AdamW with warm-up, clipped at 1", Tokens, words, entropy, adam, clip=1.0, warmup=100),
    Healthy("language model, SGD with momentum", Tokens, words, entropy, sgd),
)


RARELY = Healthy("regression, one batch in 100 is four times as large", mlp, rarely_large, squares, adam)


def healthy(job: Healthy, seed: int, steps: int, out: str) -> list[int]:
    """The steps before which an update of a healthy training was left out."""
    torch.manual_seed(seed)
    model = job.make()
    optimizer = job.optimizer(model.parameters())
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / max(job.warmup, 1), 1.0))
    data = job.data(torch.Generator().manual_seed(seed))
    with trueline.watch(model, optimizer, out=out, plan=dict(PLAN) | {"every": 100}):
        for _ in range(steps):
            optimizer.zero_grad()
            for _ in range(job.micro):
                (job.loss(model, *next(data)) / job.micro).backward()
            if job.clip:
                nn.utils.clip_grad_norm_(model.parameters(), job.clip)
            optimizer.step()
            schedule.step()
    return skipped(out)


def cost(on_finding: str, out: str, *, steps: int = 300, settles: int = 100) -> float:
    """Milliseconds of CPU of this thread per update, behind the first ones."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)])
    optimizer = adam(model.parameters())
    x = torch.randn(BATCH, 512)
    began = 0.0
    with trueline.watch(model, optimizer, out=out, plan=dict(PLAN) | {"on_finding": on_finding, "every": 10 * steps}):
        for step in range(settles + steps):
            if step == settles:
                began = time.thread_time()
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        return 1e3 * (time.thread_time() - began) / steps
