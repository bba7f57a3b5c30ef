"""Peak memory of a rank with and without watching, in processes of their own."""

from __future__ import annotations

import resource
import statistics
from pathlib import Path

import torch
from benchmarks.overhead.model import LanguageModel, tokens
from torch import nn

from trueline.testing.ranks import Ranks

STEPS = 8
REPEATS = 3


def measure(*, ranks: int, rounds: int, folder: Path) -> str:
    """The table of peak resident memory, as Markdown."""
    peaks: dict[str, list[float]] = {"bare": [], "every step": []}
    for repeat in range(REPEATS):
        for mode in peaks:
            out = None if mode == "bare" else str(folder / f"memory-{repeat}")
            with Ranks(ranks, timeout_s=600) as pool:
                peaks[mode].append(max(pool.run(train, out)))
    bare, watched = (statistics.median(peaks[mode]) for mode in peaks)
    return "\n".join(
        [
            "## Memory",
            "",
            f"Peak resident memory of the largest rank, median of {REPEATS} runs of {STEPS} steps.",
            "",
            "| mode | peak RSS | ratio |",
            "|---|---|---|",
            f"| bare | {bare / 2**20:.0f} MiB | 1 |",
            f"| every step | {watched / 2**20:.0f} MiB | {watched / bare:.3f} |",
        ]
    )


def train(rank: int, world: int, out: str | None) -> float:
    """Peak resident bytes of this rank after a few steps."""
    import trueline

    torch.manual_seed(0)
    ddp = nn.parallel.DistributedDataParallel(LanguageModel())
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4)
    watch = trueline.watch(ddp, optimizer, out=out, plan={"every": 1}) if out is not None else None
    for step in range(STEPS):
        ddp(tokens(step, rank)).backward()
        optimizer.step()
        optimizer.zero_grad()
    if watch is not None:
        watch.close()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
