"""Peak memory of a rank with and without watching, in processes of their own, for a small model and a larger one."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import resource
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from benchmarks.overhead.model import WIDTH, LanguageModel, tokens
from torch import nn

from trueline.testing.ranks import Ranks

STEPS = 8
Mode = Literal["bare", "libraries imported", "every step"]
MODES: tuple[Mode, ...] = ("bare", "libraries imported", "every step")
Heap = Literal["as it is", "gives back"]
CASES: tuple[tuple[int, Heap, int], ...] = (
    (WIDTH, "gives back", 1),
    (3 * WIDTH, "gives back", 1),
    (WIDTH, "as it is", 3),
)
"""Width of the model, what the heap does, and runs whose median counts."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc, malloc.h

INTRODUCTION = (
    f"Peak resident memory of the largest of 2 ranks, {STEPS} steps. By default glibc learns to keep what is freed "
    "on its heap, where a few small blocks in between stop it from being used again: the peak of a bare run, too, then "
    "depends on the order of allocations. Where the heap gives back at once (`MALLOC_MMAP_THRESHOLD_=262144 "
    "MALLOC_TRIM_THRESHOLD_=131072`), what is left is what is really held. Code is pages of files, which the ranks of "
    "one machine share and each is charged for."
)


@dataclass(frozen=True)
class Peak:
    """Bytes: the peak of resident memory, and pages of files (code) in it."""

    resident: float
    code: float


def measure(*, ranks: int, rounds: int, folder: Path) -> str:
    """The table of peak resident memory, as Markdown."""
    lines = [
        "## Memory",
        "",
        INTRODUCTION,
        "",
        "| parameters | heap | bare | pyarrow and pydantic imported | every step watched | by watching itself "
        "| of that, code | gradients |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for width, heap, repeats in CASES:
        bare, imported, watched = (_peak(width, heap, mode, repeats=repeats, folder=folder) for mode in MODES)
        numel = sum(param.numel() for param in LanguageModel(width).parameters())
        lines.append(
            f"| {numel / 1e6:.1f}M | {heap} | {_mib(bare.resident)} MiB "
            f"| +{_mib(imported.resident - bare.resident)} MiB ({imported.resident / bare.resident:.3f}) "
            f"| +{_mib(watched.resident - bare.resident)} MiB ({watched.resident / bare.resident:.3f}) "
            f"| +{_mib(watched.resident - imported.resident)} MiB "
            f"({(watched.resident - imported.resident) / bare.resident:.1%} of bare) "
            f"| {_mib(watched.code - imported.code)} MiB | {_mib(4.0 * numel)} MiB |"
        )
    return "\n".join(lines)


def _mib(number: float) -> str:
    return f"{number / 2**20:.0f}"


def _peak(width: int, heap: Heap, mode: Mode, *, repeats: int, folder: Path) -> Peak:
    peaks: list[Peak] = []
    for repeat in range(repeats):
        with Ranks(2, timeout_s=600) as pool:
            out = str(folder / f"memory-{width}-{heap.replace(' ', '-')}-{repeat}")
            peaks.append(max(pool.run(train, width, heap, mode, out), key=lambda peak: peak.resident))
    return Peak(statistics.median(one.resident for one in peaks), statistics.median(one.code for one in peaks))


def train(rank: int, world: int, width: int, heap: Heap, mode: Mode, out: str) -> Peak:
    """Peak resident memory of this rank after a few steps."""
    import trueline

    if heap == "gives back":
        give_back_at_once()
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
    return Peak(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0, code_bytes())


def give_back_at_once() -> None:
    """Fix glibc's thresholds, which it otherwise raises as large blocks are freed; other heaps are left alone."""
    with contextlib.suppress(AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, 262_144)
        mallopt(_M_TRIM_THRESHOLD, 131_072)


def code_bytes() -> float:
    """Resident pages of files of this process."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(float(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile:"))
