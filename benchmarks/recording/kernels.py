"""Measure what statistics and a fingerprint of one tensor in host memory cost, and rewrite kernels.md beside this.

    python -m benchmarks.recording.kernels [--repeats 300]

One thread. The calls take turns; the smallest CPU time of each is given, which leaves out what else the machine did.
"""

from __future__ import annotations

import math
import os
import sys
import time
import zlib
from collections.abc import Callable

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from benchmarks import page
from torch import Tensor

from trueline.schema.columns.records import STAT_NAMES
from trueline.tensor.measure import HostMeter, exponents_of
from trueline.tensor.native import NATIVE

SHAPES = {"scalar": (), "1,000": (1000,), "131,072": (512, 256), "350,000": (1000, 350), "524,288": (1024, 512)}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool)
LARGE = (512, 256)

ABOUT = """\
*kernel* is what was compiled with the package, *NumPy* what measures without it. *statistics*: the nine of
`tensor.measure`; *both*: with the fingerprint of `tensor.fingerprint`, in one pass by the kernel; *exponents*: their
histogram, which a Plan asks for. *four reductions*: `x.max().item()`, `min`, `mean` and `norm`, one after the other,
integers as float32. *crc32*: `zlib.crc32` of the bytes, bfloat16 as they are."""

SETS_ABOUT = "The kernel as compiled for other processors, on this one. `baseline` is what every x86-64 has."

CASES: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "half zeros (ReLU)": lambda x: x.relu(),
    "every 7th -inf": lambda x: x.flatten().index_fill(0, torch.arange(0, x.numel(), 7), -math.inf),
    "below 1e-12": lambda x: x * 1e-15,
    "transposed": lambda x: x.t(),
    "every other column of twice as many": lambda x: x.repeat(1, 2)[:, ::2],
    "expanded scalar": lambda x: x[0, 0].expand(x.shape),
}


def four_reductions(x: Tensor) -> tuple[float, float, float, float]:
    x = x if x.is_floating_point() else x.float()
    return x.max().item(), x.min().item(), x.mean().item(), x.norm().item()


def crc32(x: Tensor) -> int:
    x = x.contiguous()
    return zlib.crc32((x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy().tobytes())


def fastest_us(calls: dict[str, Callable[[Tensor], object]], x: Tensor, *, repeats: int) -> dict[str, float]:
    """Smallest CPU time of each call in µs, over so many turns of as many calls as take about 50 µs or more."""
    best_ns = dict.fromkeys(calls, math.inf)
    times = max(20_000 // (x.numel() + 400), 1)
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.thread_time_ns()
            for _ in range(times):
                call(x)
            best_ns[name] = min(best_ns[name], (time.thread_time_ns() - start) / times)
    return {name: value / 1e3 for name, value in best_ns.items()}


def readers(**meters: HostMeter) -> dict[str, Callable[[Tensor], object]]:
    """Statistics, and both, by each of them."""
    out_S = np.zeros(len(STAT_NAMES))
    calls: dict[str, Callable[[Tensor], object]] = {}
    for what in ("statistics", "both"):
        for name, meter in meters.items():
            read = meter.stats_into if what == "statistics" else meter.all_into
            calls[f"{what}, {name}"] = lambda x, read=read: read(x, out_S)
    return calls


def calls() -> dict[str, Callable[[Tensor], object]]:
    """What is compared."""
    return readers(kernel=HostMeter(), NumPy=HostMeter(None)) | {
        "four reductions": four_reductions,
        "crc32": crc32,
        "exponents, kernel": exponents_of,
        "exponents, NumPy": lambda x: exponents_of(x, None),
    }


def by_instruction_set(name: str) -> dict[str, Callable[[Tensor], object]]:
    """The kernel as compiled for one of them."""
    kernel = NATIVE.kernel

    def switched(read: Callable[[Tensor], object]) -> Callable[[Tensor], object]:
        def call(x: Tensor) -> None:
            kernel.use(name)
            read(x)

        return call

    return {what: switched(read) for what, read in readers(**{name: HostMeter()}).items()}


def table(title: str, rows: dict[str, Tensor], calls: dict[str, Callable[[Tensor], object]], *, repeats: int) -> str:
    """µs of every call for every row, as Markdown."""
    cells = []
    for name, x in rows.items():
        taken_us = fastest_us(calls, x, repeats=max(repeats // (1 + x.numel() // 10**6), 5))
        cells.append([name, *(f"{value:.1f}" for value in taken_us.values())])
    return page.table([title, *calls], cells)


def main() -> None:
    """Measure, print and write the page."""
    repeats = page.arguments(__doc__, repeats=300).parse_args().repeats
    if NATIVE is None:
        sys.exit("The kernel is not there to be measured: install the package where there is a C compiler.")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {
        f"{str(dtype).removeprefix('torch.')}, {size}": (torch.randn(shape) * 3).to(dtype)
        for dtype in DTYPES
        for size, shape in SHAPES.items()
    }
    cases = {name: make(torch.randn(LARGE)) for name, make in CASES.items()}
    parts = [
        page.head(
            "What measuring one tensor costs, in µs",
            command=f"python -m benchmarks.recording.kernels --repeats {repeats}",
        ),
        ABOUT,
        table("dtype, elements", sizes, calls(), repeats=repeats),
        table("131,072 float32", cases, calls(), repeats=repeats),
    ]
    sets = NATIVE.kernel.instruction_sets()
    compiled = {what: call for name in sets for what, call in by_instruction_set(name).items()}
    some = {name: x for name, x in sizes.items() if name.startswith("float32")}
    parts += [SETS_ABOUT, table("dtype, elements", some, compiled, repeats=repeats)]
    NATIVE.kernel.use(sets[-1])
    page.write(__file__, *parts, name="kernels.md")


if __name__ == "__main__":
    main()
