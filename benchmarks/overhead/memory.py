"""Peak memory of a rank with and without watching, in processes of their own, for a small model and a larger one."""

from __future__ import annotations

import importlib
import resource
import statistics
from pathlib import Path
from typing import Literal

import torch
from benchmarks.overhead.model import WIDTH, LanguageModel, tokens
from torch import nn

from trueline.testing.ranks import Ranks

STEPS = 8
REPEATS = 3
WIDTHS = (WIDTH, 3 * WIDTH)
Mode = Literal["bare", "libraries imported", "every step"]
MODES: tuple[Mode, ...] = ("bare", "libraries imported", "every step")


def measure(*, ranks: int, rounds: int, folder: Path) -> str:
    """The table of peak resident memory, as Markdown."""
    lines = [
        "## Memory",
        "",
        f"Peak resident memory of the largest rank, median of {REPEATS} runs of {STEPS} steps. What watching "
        "itself adds grows by less than a quarter of what gradients do: nothing holds a copy of them, but what grows "
        "was not taken apart. Most of the rest is the code of pyarrow and pydantic, whose pages the ranks of one "
        "machine share and each is charged for.",
        "",
        "| parameters | bare | pyarrow and pydantic imported | every step watched | by watching itself | gradients |",
        "|---|---|---|---|---|---|",
    ]
    for width in WIDTHS:
        peaks = {mode: _peak(width, mode, ranks=ranks, folder=folder) for mode in MODES}
        bare, imported, watched = (peaks[mode] / 2**20 for mode in MODES)
        numel = sum(param.numel() for param in LanguageModel(width).parameters())
        lines.append(
            f"| {numel / 1e6:.1f}M | {bare:.0f} MiB | +{imported - bare:.0f} MiB ({imported / bare:.3f}) "
            f"| +{watched - bare:.0f} MiB ({watched / bare:.3f}) | +{watched - imported:.0f} MiB "
            f"({(watched - imported) / bare:.1%} of bare) | {4 * numel / 2**20:.0f} MiB |"
        )
    return "\n".join(lines)


def _peak(width: int, mode: Mode, *, ranks: int, folder: Path) -> float:
    peaks: list[float] = []
    for repeat in range(REPEATS):
        with Ranks(ranks, timeout_s=600) as pool:
            peaks.append(max(pool.run(train, width, mode, str(folder / f"memory-{width}-{repeat}"))))
    return statistics.median(peaks)


def train(rank: int, world: int, width: int, mode: Mode, out: str) -> float:
    """Peak resident bytes of this rank after a few steps."""
    import trueline

    if mode != "bare":
        for name in ("pyarrow.compute", "pyarrow.parquet", "pydantic"):
            importlib.import_module(name)
    torch.manual_seed(0)
    ddp = nn.parallel.DistributedDataParallel(LanguageModel(width))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4)
    watch = trueline.watch(ddp, optimizer, out=out, plan={"every": 1}) if mode == "every step" else None
    for step in range(STEPS):
        ddp(tokens(step, rank)).backward()
        optimizer.step()
        optimizer.zero_grad()
    if watch is not None:
        watch.close()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
