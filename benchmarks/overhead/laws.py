"""What each law of the update costs where it looks at a step, and at the steps between."""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from benchmarks import page
from torch import nn

import trueline
from trueline.capture.probes.around_update import sampling
from trueline.capture.probes.base import Probe
from trueline.capture.step import recorder
from trueline.capture.step.probing import Probing
from trueline.capture.step.working_parts import WorkingParts

TENSORS, WIDTH, CLASSES = 150, 361, 32
LAWS = ("updates", "kept gradients", "clipping", "token weights", "schedules", "averages")
WARMUP = 5

INTRODUCTION = (
    f"One process, one thread, {TENSORS} tensors and 9.8M parameters, AdamW (foreach), cross-entropy, clipping by the "
    "norm, a schedule and an average of the weights; medians of CPU times of three trainings, in which laws look at "
    "every step with all that they have, at every step but for the norms of all gradients, and at none. The share is "
    "that of an optimizer step at "
    f"the default schedule after the first {sampling.EARLY} steps: every {sampling.LEAST_GAP}th step is looked at, and "
    f"the norms are taken at every {sampling.RAREST}th."
)


def measure(*, ranks: int, rounds: int, folder: Path) -> str:
    """The table, as Markdown."""
    torch.set_num_threads(1)
    whole, step_s = train(f"{folder}/whole", rounds, early=10**9)
    looked, _ = train(f"{folder}/looked", rounds, every=1)
    idle, _ = train(f"{folder}/idle", rounds)
    rows, total = [], 0.0
    for law in LAWS:
        rarely = max(whole[law] - looked[law], 0) if law == "clipping" else 0
        spent = (looked[law] + (sampling.LEAST_GAP - 1) * idle[law]) / sampling.LEAST_GAP + rarely / sampling.RAREST
        total += spent
        times = (f"{1000 * each[law]:.3f} ms" for each in (whole, looked, idle))
        rows.append([law, *times, f"{spent / step_s:.2%}"])
    rows.append(["together", "", "", "", f"{total / step_s:.2%}"])
    found = page.table(["law", "all", "without norms", "a step that is not looked at", "share"], rows)
    return f"## Laws of the update\n\n{INTRODUCTION} A step of AdamW took {1000 * step_s:.1f} ms.\n\n{found}"


def train(out: str, rounds: int, *, early: int = 0, every: int = 10**9) -> tuple[dict[str, float], float]:
    """Median seconds of each law in a step, and of the optimizer's own. The first ``early`` steps are looked at, then
    one in ``every``.
    """
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(TENSORS // 2 - 1)), nn.Linear(WIDTH, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    average = copy.deepcopy(model)
    spent: defaultdict[str, list[float]] = defaultdict(list)
    steps: list[float] = []
    with (
        patch.object(sampling, "EARLY", early),
        patch.object(sampling, "LEAST_GAP", every),
        timed() as now,
        trueline.watch(model, optimizer, out=out, plan={"every": 1}, averages=[average]),
    ):
        for _ in range(rounds + WARMUP):
            now.clear()
            loss = nn.functional.cross_entropy(model(torch.randn(16, WIDTH)), torch.randint(CLASSES, (16,)))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            begin, inside = time.process_time(), sum(now.values())
            optimizer.step()
            steps.append(time.process_time() - begin - (sum(now.values()) - inside))
            scheduler.step()
            optimizer.zero_grad()
            with torch.no_grad():
                torch._foreach_lerp_([*average.parameters()], [*model.parameters()], 0.001)
            for law in LAWS:
                spent[law].append(now[law])
    return {law: statistics.median(spent[law][WARMUP:]) for law in LAWS}, statistics.median(steps[WARMUP:])


@contextlib.contextmanager
def timed() -> Iterator[defaultdict[str, float]]:
    """CPU seconds of each part of watching since the last ``clear``, by name."""
    now: defaultdict[str, float] = defaultdict(float)
    inside: set[str] = set()

    @contextlib.contextmanager
    def within(name: str) -> Iterator[None]:
        outermost = name not in inside
        inside.add(name)
        begin = time.process_time()
        try:
            yield
        finally:
            if outermost:
                now[name] += time.process_time() - begin
                inside.discard(name)

    guarded = WorkingParts.guarded

    @contextlib.contextmanager
    def around(self: WorkingParts, part: str) -> Iterator[None]:
        with within(part), guarded(self, part):
            yield

    class Timed(Probing):
        """Probing that times what each probe does."""

        def __init__(self, probes: Sequence[Probe], parts: WorkingParts) -> None:
            for probe in probes:
                for method in ("begin", "take", "columns"):
                    setattr(probe, method, counting(probe.name, getattr(probe, method)))
            super().__init__(probes, parts)

    def counting(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def asked(*args: Any) -> Any:
            with within(name):
                return plain(*args)

        return asked

    with patch.object(WorkingParts, "guarded", around), patch.object(recorder, "Probing", Timed):
        yield now
