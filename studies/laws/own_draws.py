"""Measure what `rng-streams` says of healthy trainings that draw from generators of their own, when it sees one that
begins again, and what looking costs; writes own_draws.md.

    python -m studies.laws.own_draws

About five minutes on one core.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from studies.laws.constants import Job, of_loops, watched
from benchmarks.page import arguments, head, table, write
from gallery.scoring import upper_bound
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

import trueline
from trueline.capture.probes.own_draws import OwnDrawProbe
from trueline.schema.finding import Finding

STEPS, WIDTH = 24, 32
SIZES = (4, 7, 16)
SHARES, TRIALS = (0.0, 0.5, 0.75, 1.0), 4
KINDS = ("begins-again", "shared-draws")
Draw = Callable[[int, tuple[int, ...]], Tensor]
"""Of a step and a shape."""


def said(job: Job) -> list[Finding]:
    """What is said of draws in a training."""
    with watched(job) as out:
        report = trueline.check(out)
        assert trueline.open_run(out).measured("own_draws").any()
    return [each for each in report.findings if each.evidence.get("kind") in KINDS]


def seeded(seed: int) -> torch.Generator:
    """A generator of its own."""
    return torch.Generator().manual_seed(seed)


class Noisy(nn.Module):
    """An autoencoder that passes what it has encoded, or read, through ``spoil`` at each step."""

    def __init__(self, spoil: Callable[[int, Tensor], Tensor]) -> None:
        super().__init__()
        self.encode, self.decode, self.spoil, self.step = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), spoil, 0

    def forward(self, x: Tensor) -> Tensor:
        """Of [B, D]."""
        self.step += 1
        return self.decode(self.spoil(self.step, self.encode(x)))


def coded(
    rows: int, spoil: Callable[[int, Tensor], Tensor], before: Callable[[int, Tensor], Any] = lambda *_: 0
) -> Job:
    """Autoencoding of uniform numbers."""
    model = Noisy(spoil)

    def loss_of(step: int) -> Tensor:
        x = torch.rand(rows, WIDTH)
        before(step, x)
        return functional.mse_loss(model(x), x)

    return model, loss_of


def plain(step: int, h: Tensor) -> Tensor:
    """What it is given."""
    return h


def healthy(rows: int) -> dict[str, Job]:
    """Trainings that draw from generators of their own as they should, or the same at each step on purpose."""
    own = seeded(rows)

    def evaluates(step: int, x: Tensor) -> None:
        if step % 4 == 0:
            torch.randn(x.shape, generator=seeded(0))

    def by_index(step: int, x: Tensor) -> None:
        for row in range(len(x)):
            x[row] += torch.randn(WIDTH, generator=seeded(row))

    def perturbed(step: int, x: Tensor) -> None:
        for _ in range(2):
            torch.randn(WIDTH, WIDTH, generator=seeded(step))

    data = TensorDataset(torch.rand(64, WIDTH))
    with_order = DataLoader(data, rows, sampler=RandomSampler(data, replacement=True, generator=own))
    return {
        "a VAE": coded(rows, lambda step, h: h + torch.randn(h.shape, generator=own)),
        "a VAE, seeded by the step": coded(rows, lambda step, h: h + torch.randn(h.shape, generator=seeded(step))),
        "dropout by hand": coded(rows, lambda step, h: h * torch.bernoulli(torch.full_like(h, 0.9), generator=own)),
        "masks of samples": coded(rows, plain, lambda step, x: torch.rand(len(x), 9, generator=own)),
        "times of samples": coded(rows, plain, lambda step, x: torch.randint(1000, (len(x),), generator=own)),
        "a projection from one seed": coded(rows, lambda step, h: h @ torch.randn(WIDTH, WIDTH, generator=seeded(0))),
        "a mask of features from one seed": coded(
            rows, lambda step, h: h * torch.bernoulli(torch.full((WIDTH,), 0.9), generator=seeded(0))
        ),
        "an evaluation that seeds its own": coded(rows, plain, evaluates),
        "noise by the number of a sample": coded(rows, plain, by_index),
        "a perturbation that is drawn twice": coded(rows, plain, perturbed),
        "an order drawn with replacement": coded(rows, plain, lambda step, x: next(iter(with_order))),
        "torch's own generator, by name": coded(
            rows, lambda step, h: h + torch.randn(h.shape, generator=torch.default_generator)
        ),
    }


def faulty(rows: int, share: float) -> dict[str, Job]:
    """Trainings in which a step begins again with probability ``share``."""

    def drawn(again: Callable[[], torch.Generator]) -> Callable[[], torch.Generator]:
        own = seeded(99)
        return lambda: again() if float(torch.rand(())) < share else own

    noise, mask, time_of = drawn(lambda: seeded(0)), drawn(torch.Generator), drawn(lambda: seeded(7))
    outside = drawn(lambda: seeded(3))
    return {
        "a VAE makes its generator anew": coded(rows, lambda step, h: h + torch.randn(h.shape, generator=noise())),
        "dropout by hand, without a seed": coded(
            rows, lambda step, h: h * torch.bernoulli(torch.full_like(h, 0.9), generator=mask())
        ),
        "times of samples": coded(
            rows, lambda step, h: h * torch.randint(9, (len(h), 1), generator=time_of()).float() / 9
        ),
        "noise of a collator": coded(rows, plain, lambda step, x: x.add_(torch.randn(x.shape, generator=outside()))),
    }


def cost() -> str:
    """How many times as long dropout takes while draws are looked at: medians, by turns in one process."""
    probe, x = OwnDrawProbe(lambda name: torch.no_grad()), {n: torch.rand(n) for n in (2**10, 2**16, 2**20)}
    taken: dict[tuple[int, bool], list[float]] = {}
    for turn in range(60):
        looks = turn % 2 == 1
        if looks:
            probe.attach()
        for n, each in x.items():
            begin = time.thread_time()
            for _ in range(20):
                functional.dropout(each, 0.1)
            taken.setdefault((n, looks), []).append(time.thread_time() - begin)
        probe.detach()
    rows = [(f"{n:,}", f"{median(taken[n, True]) / median(taken[n, False]):.2f}") for n in x]
    return table(("elements", "times as long"), rows, right={0, 1})


def main() -> None:
    """Measure all and write the page."""
    arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    about = head("Generators that begin again", command="python -m studies.laws.own_draws")
    jobs = [(f"{name}, {rows} rows", job) for rows in SIZES for name, job in healthy(rows).items()]
    jobs += [(name, make()) for name, make in of_loops()]
    remarks: list[tuple[str, str, str]] = []
    num_alarms = 0
    for seed, (name, job) in enumerate(jobs):
        torch.manual_seed(seed)
        found = [each for each in said(job) if "called_at" in each.evidence]
        num_alarms += any(each.is_grave for each in found)
        remarks += [(name, each.severity, each.claim) for each in found]
        print(seed, name, [each.claim for each in found], flush=True)
    power: list[tuple[str, ...]] = []
    for name in faulty(4, 0.0):
        seen = [sum(_seen(name, share, trial) for trial in range(TRIALS)) for share in SHARES]
        power.append((name, *map(str, seen)))
        print(power[-1], flush=True)
    write(
        __file__,
        about,
        f"Of {len(jobs)} healthy trainings of {STEPS} steps {num_alarms} had an alarm about draws: at most "
        f"{upper_bound(num_alarms, len(jobs)):.1%} (Clopper-Pearson, 95 %, one-sided). The first "
        f"{len(SIZES) * len(healthy(4))} draw from generators of their own.",
        "Remarks and alarms:",
        table(("training", "severity", "claim"), remarks) if remarks else "None.",
        f"Of {TRIALS} trainings each, in how many a fault is reported that a step has with this probability:",
        table(("fault", *map(str, SHARES)), power, right=set(range(1, 1 + len(SHARES)))),
        "Dropout on the CPU, which draws by an operation that is looked at, in a step that is looked at:",
        cost(),
        name="own_draws.md",
    )


def _seen(name: str, share: float, trial: int) -> bool:
    torch.manual_seed(trial)
    return any(each.severity == "warning" for each in said(faulty(SIZES[trial % len(SIZES)], share)[name]))


if __name__ == "__main__":
    main()
