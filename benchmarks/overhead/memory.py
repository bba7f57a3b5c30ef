"""Peak memory of a rank with and without watching, in processes of their own, for a small model and a larger one."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import importlib
import resource
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil
import torch
from benchmarks import page
from benchmarks.overhead.model import WIDTH, LanguageModel, tokens
from torch import nn

from trueline.demo.ranks import Ranks

STEPS = {WIDTH: 8, 3 * WIDTH: 8, 11 * WIDTH // 2: 3}
"""By width of the model: the largest has 202M parameters, and its steps take seconds."""

Mode = Literal["bare", "libraries imported", "every step"]
MODES: tuple[Mode, ...] = ("bare", "libraries imported", "every step")
Heap = Literal["as it is", "gives back"]
CASES: tuple[tuple[int, Heap, int], ...] = (
    (WIDTH, "gives back", 1),
    (3 * WIDTH, "gives back", 1),
    (11 * WIDTH // 2, "gives back", 1),
    (WIDTH, "as it is", 3),
)
"""Width of the model, what the heap does, and runs whose median counts."""

LIBRARIES = ("pyarrow.parquet", "pydantic.main", "fsspec.implementations.local")
"""What a rank needs of other projects, beside torch and NumPy; ``pydantic`` by itself would load little of pydantic."""

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # glibc, malloc.h

INTRODUCTION = (
    f"Peak resident memory of the largest of 2 ranks, {STEPS[WIDTH]} steps ({min(STEPS.values())} of the largest "
    "model). By default glibc learns to keep what is freed on its heap, where a few small blocks in between stop it "
    "from being used again: the peak of an unmonitored run, too, then depends on the order of allocations. Where the "
    "heap gives back at once (`MALLOC_MMAP_THRESHOLD_=262144 "
    "MALLOC_TRIM_THRESHOLD_=131072`), what is left is what is really held. Code is pages of files, which the ranks of "
    "one machine share and each is charged for in full: of the same ranks, the private column is what no other process "
    "shares (unique set size), and the proportional one charges each of those that share a page with its part of it. "
    "Both are the largest of what is seen after each backward pass, after each update and at the end. An unmonitored "
    "rank is forked from a process that has torch imported, part of which is not private to it. "
    "Libraries are pyarrow, pydantic and fsspec."
)


@dataclass(frozen=True)
class Peak:
    """Bytes of one rank: the peak of resident memory, pages of files (code) in it, and the most that was seen of what
    is private to it, and of that with its part of what it shares.
    """

    resident: float
    code: float
    private: float
    proportional: float


def measure(*, ranks: int, rounds: int, folder: Path) -> str:
    """The table of peak resident memory, as Markdown."""
    rows = []
    for width, heap, repeats in CASES:
        bare, imported, watched = (_peak(width, heap, mode, repeats=repeats, folder=folder) for mode in MODES)
        numel = sum(param.numel() for param in LanguageModel(width).parameters())
        case = [f"{numel / 1e6:.1f}M", heap, f"{_mib(4.0 * numel)} MiB"]
        rows += [case + cells for cells in _cells(bare, imported, watched)]
    head = ["parameters", "heap", "gradients", "memory", "unmonitored", "libraries imported", "every step watched"]
    return "\n\n".join(["## Memory", INTRODUCTION, page.table([*head, "by watching itself"], rows)])


def _cells(bare: Peak, imported: Peak, watched: Peak) -> list[list[str]]:
    """The cells of each kind of memory. Ratios are to its own unmonitored value; code has no peak to compare."""
    rows: list[list[str]] = []
    for kind, of in (
        ("resident", lambda peak: peak.resident),
        ("private", lambda peak: peak.private),
        ("proportional", lambda peak: peak.proportional),
        ("code", lambda peak: peak.code),
    ):
        base, with_libraries, all_ = of(bare), of(imported), of(watched)
        rows.append(
            [
                kind,
                f"{_mib(base)} MiB",
                f"+{_mib(with_libraries - base)} MiB ({with_libraries / base:.3f})",
                f"+{_mib(all_ - base)} MiB ({all_ / base:.3f})",
                f"+{_mib(all_ - with_libraries)} MiB ({(all_ - with_libraries) / base:.1%} of unmonitored)",
            ]
        )
    return rows


def _mib(number: float) -> str:
    return f"{number / 2**20:.0f}"


def _peak(width: int, heap: Heap, mode: Mode, *, repeats: int, folder: Path) -> Peak:
    peaks: list[Peak] = []
    for repeat in range(repeats):
        with Ranks(2, timeout_s=600) as pool:
            out = str(folder / f"memory-{width}-{heap.replace(' ', '-')}-{repeat}")
            peaks.append(max(pool.run(train, width, heap, mode, out), key=lambda peak: peak.resident))
    return Peak(*(statistics.median(getattr(one, field.name) for one in peaks) for field in dataclasses.fields(Peak)))


def train(rank: int, world: int, width: int, heap: Heap, mode: Mode, out: str) -> Peak:
    """Peak resident memory of this rank after a few steps."""
    import trueline

    if heap == "gives back":
        give_back_at_once()
    if mode != "bare":
        for name in LIBRARIES:
            importlib.import_module(name)
    torch.manual_seed(0)
    ddp = nn.parallel.DistributedDataParallel(LanguageModel(width))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4)
    watch = trueline.watch(ddp, optimizer, out=out, plan={"every": 1}) if mode == "every step" else None
    seen = []
    for step in range(STEPS[width]):
        ddp(tokens(step, rank)).backward()
        seen.append(psutil.Process().memory_full_info())
        optimizer.step()
        seen.append(psutil.Process().memory_full_info())
        optimizer.zero_grad()
    if watch is not None:
        watch.close()
    seen.append(psutil.Process().memory_full_info())
    return Peak(
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0,
        code_bytes(),
        max(float(one.uss) for one in seen),
        max(float(one.pss) for one in seen),
    )


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
