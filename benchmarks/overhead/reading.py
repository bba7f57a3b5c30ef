"""What it costs to read all gradients once for their norms and sketches, against the least that reading them takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from benchmarks import page
from benchmarks.overhead.model import LanguageModel

from trueline.capture.model.layout import make_layout

CHUNK = 131_072
OTHER = 24_000_000
"""Float32 numbers that are written before each reading, so that it finds nothing of the gradients in a cache."""


def measure(*, ranks: int, rounds: int, folder: Path) -> str:
    """The table, as Markdown."""
    model = LanguageModel()
    layout = make_layout(model, patterns=("*",), max_groups=16)
    gradients = [(index, torch.randn_like(param)) for index, param in enumerate(layout.params)]
    chunks = [chunk for _, gradient in gradients for chunk in gradient.view(-1).split(CHUNK)]
    seconds = _interleaved(
        {
            "a dot product of each chunk with itself": lambda: [chunk.dot(chunk) for chunk in chunks],
            "norms and sketches": lambda: layout.sketcher.measure(gradients),
        },
        rounds=2 * rounds,
    )
    floor = min(next(iter(seconds.values())))
    about = (
        f"CPU time of one thread over the gradients of the same {sum(layout.numels) / 1e6:.1f}M parameters, not in any "
        f"cache, {2 * rounds} times in turn. A sampled step reads its own gradient and what the optimizer receives."
    )
    rows = []
    for name, values in seconds.items():
        least, middle = min(values), statistics.median(values)
        rows.append([name, f"{1000 * least:.2f} ms", f"{1000 * middle:.2f} ms", f"{least / floor:.2f}"])
    found = page.table(["reading", "least", "median", "least against a dot product"], rows)
    return f"## One reading\n\n{about}\n\n{found}"


def _interleaved(readings: dict[str, Callable[[], object]], *, rounds: int) -> dict[str, list[float]]:
    other = torch.ones(OTHER)
    seconds: dict[str, list[float]] = {name: [] for name in readings}
    for round_ in range(rounds + 1):
        for name, read in readings.items():
            other.mul_(1.0)
            begin = time.thread_time()
            read()
            if round_:
                seconds[name].append(time.thread_time() - begin)
    return seconds
