"""Measure what it costs to look at what a model is called on, and at random streams; writes readings.md.

    python -m studies.laws.readings

About two minutes on one core. CPU times of this process, one thread: what else runs on the machine has little part in
them.
"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from statistics import median
from typing import Any
from unittest.mock import patch

import torch
from benchmarks.overhead.model import BATCH, LENGTH, LanguageModel, tokens
from benchmarks.page import arguments, head, table, write
from torch import Tensor, nn

import trueline
from trueline.capture.probes.arguments import ArgumentProbe
from trueline.capture.probes.around_update.sampling import EARLY, LEAST_GAP, RAREST
from trueline.capture.probes.batch import BatchProbe
from trueline.capture.probes.surroundings import StreamProbe
from trueline.laws.inputs.probe import InputProbe
from trueline.laws.targets.probe.places import TargetPlaceProbe

STEPS = EARLY
"""In each of the first steps all of these probes look."""
TURNS = 3
ALWAYS = "every sampled step"
NOW_AND_THEN = f"the first {EARLY}, then every {LEAST_GAP}th to {RAREST}th step"
PROBES: dict[type[Any], tuple[str, str]] = {
    BatchProbe: ("digests of samples, features of the first input and labels", ALWAYS),
    ArgumentProbe: ("features of the other arguments", ALWAYS),
    StreamProbe: ("states of random streams", ALWAYS),
    InputProbe: ("whether inputs vary", NOW_AND_THEN),
    TargetPlaceProbe: ("places of targets, operations of the loss", NOW_AND_THEN),
}


class Told(nn.Module):
    """The language model, called as one of transformers is."""

    def __init__(self) -> None:
        super().__init__()
        self.model = LanguageModel()

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor, labels: Tensor) -> Tensor:
        return self.model(input_ids)


class Diffusion(nn.Module):
    """Convolutions over images of noise, told of time, class and another image."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.into, self.kind, self.time = (
            nn.Conv2d(6, width, 3, padding=1),
            nn.Embedding(10, width),
            nn.Linear(1, width),
        )
        self.layers = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(4)])
        self.out = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor, *, kind: Tensor, beside: Tensor) -> Tensor:
        told = self.kind(kind) + self.time(time[:, None])
        x = self.into(torch.cat([x, beside], 1)) + told[..., None, None]
        for layer in self.layers:
            x = x + layer(torch.relu(x))
        return self.out(x).square().mean()


def plain(step: int) -> dict[str, Tensor]:
    """Of the language model."""
    return {"input_ids": tokens(step, 0)}


def told(step: int) -> dict[str, Tensor]:
    """The same with all that usual collators make."""
    ids = tokens(step, 0)
    places = torch.arange(LENGTH + 1).expand(BATCH, -1)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": places, "labels": ids.clone()}


def images(step: int) -> dict[str, Tensor]:
    """Sixteen of 32 by 32."""
    x, beside = torch.randn(2, 16, 3, 32, 32).unbind()
    return {"x": x, "time": torch.rand(16), "kind": torch.randint(0, 10, (16,)), "beside": beside}


JOBS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], dict[str, Tensor]]]] = {
    "8.4M parameters, 512 tokens, one argument": (LanguageModel, plain),
    "the same, four arguments": (Told, told),
    "convolutions, 16 images, four arguments": (Diffusion, images),
}


def measured(make: Callable[[], nn.Module], batch: Callable[[int], dict[str, Tensor]]) -> dict[type[Any] | None, float]:
    """Median CPU seconds of a step of each probe, and of an unmonitored step (None)."""
    every: defaultdict[type[Any] | None, list[float]] = defaultdict(list)
    for _ in range(TURNS):
        trained(make(), batch, lambda took: every[None].append(took))
        with ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
            spent = _counted(stack)

            def ended(took: float, spent: dict[type[Any], float] = spent) -> None:
                for kind in spent:
                    every[kind].append(spent[kind])
                    spent[kind] = 0.0

            trained(make(), batch, ended, out=f"{folder}/run")
    return {kind: median(times) for kind, times in every.items()}


def trained(
    model: nn.Module,
    batch: Callable[[int], dict[str, Tensor]],
    ended: Callable[[float], None],
    *,
    out: str = "",
) -> None:
    """Train, watched into ``out`` if that is given, and tell ``ended`` the CPU seconds of each step."""
    updates = torch.optim.AdamW(model.parameters(), lr=1e-4)
    watch = trueline.watch(model, updates, out=out, plan={"every": 1}) if out else None
    for step in range(STEPS):
        read, begin = batch(step), time.process_time()
        model(**read).backward()
        updates.step()
        updates.zero_grad()
        ended(time.process_time() - begin)
    if watch is not None:
        watch.close()


def _counted(stack: ExitStack) -> dict[type[Any], float]:
    """CPU seconds that probes take, by their class, counted as long as ``stack`` is open."""
    spent = dict.fromkeys(PROBES, 0.0)

    def counting(kind: type[Any], call: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            begin = time.process_time()
            try:
                return call(*args, **kwargs)
            finally:
                spent[kind] += time.process_time() - begin

        return run

    for kind in PROBES:
        for name in ("begin", "take", "columns", "_at_backward"):
            if hasattr(kind, name):
                stack.enter_context(patch.object(kind, name, counting(kind, getattr(kind, name))))
    return spent


def main() -> None:
    """Measure and write the page."""
    arguments(__doc__).parse_args()
    top = head("What a model is called on, and random streams: costs", command="python -m studies.laws.readings")
    torch.set_num_threads(1)
    rows: list[list[str]] = []
    steps: list[str] = []
    for job, (make, batch) in JOBS.items():
        found = measured(make, batch)
        bare = found.pop(None)
        steps.append(f"{job}: {1e3 * bare:.0f} ms")
        for kind, (what, often) in PROBES.items():
            rows.append([job, what, f"{1e3 * found[kind]:.2f}", f"{found[kind] / bare:.2%}", often])
    write(
        __file__,
        top,
        f"Medians of CPU times over {TURNS} times {STEPS} steps, one thread: of a step of forward, backward and AdamW "
        f"that nobody watches ({'; '.join(steps)}), and of what each probe does in a step in which it looks, watched "
        "and not by turns in one process. A probe is due in sampled steps only, of which the budget of time takes as "
        "few as it must.",
        table(["job", "what is looked at", "ms", "share of a step", "how often"], rows, right=(2, 3)),
        name="readings.md",
    )


if __name__ == "__main__":
    main()
