"""Measure what statistics and a fingerprint of one tensor in host memory cost, and rewrite kernels.md beside this.

    python -m benchmarks.recording.kernels [--repeats 300]

One thread. The calls take turns; the smallest time of each is given, which leaves out what else the machine did.
"""

from __future__ import annotations

import argparse
import math
import os
import time
import zlib
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from benchmarks.place import head
from torch import Tensor

from trueline.tensor.fingerprint import HostFingerprint
from trueline.tensor.measure import HostMeter, exponents_of

SHAPES = {"scalar": (), "256": (256,), "4,096": (4096,), "131,072": (512, 256), "1,048,576": (1024, 1024)}
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool)
LARGE = (512, 256)

ABOUT = """\
*statistics*: the nine of `tensor.measure`. *four reductions*: `x.max().item()`, `min`, `mean` and `norm`, one after the
other, integers as float32. *fingerprint*: that of `tensor.fingerprint`. *crc32*: `zlib.crc32` of the bytes, bfloat16 as
they are."""

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
    """Smallest time of each call in µs, over so many turns."""
    best_ns = dict.fromkeys(calls, math.inf)
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.perf_counter_ns()
            call(x)
            best_ns[name] = min(best_ns[name], time.perf_counter_ns() - start)
    return {name: value / 1e3 for name, value in best_ns.items()}


def calls() -> dict[str, Callable[[Tensor], object]]:
    """What is compared."""
    meter, fingerprint, out_S = HostMeter(), HostFingerprint(), np.zeros(9)
    return {
        "statistics": lambda x: meter.stats_into(x, out_S),
        "four reductions": four_reductions,
        "fingerprint": fingerprint.of,
        "crc32": crc32,
    }


def table(title: str, rows: dict[str, Tensor], *, repeats: int) -> str:
    """µs of every call for every row, as Markdown."""
    lines: list[str] = []
    for name, x in rows.items():
        taken_us = fastest_us(
            calls() | {"exponents": exponents_of}, x, repeats=max(repeats // (1 + x.numel() // 10**6), 5)
        )
        lines = lines or [f"| {title} | " + " | ".join(taken_us) + " |", "|---|" + "---|" * len(taken_us)]
        lines.append(f"| {name} | " + " | ".join(f"{value:.1f}" for value in taken_us.values()) + " |")
    return "\n".join(lines)


def main() -> None:
    """Measure, print and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=300)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    torch.manual_seed(0)
    sizes = {
        f"{str(dtype).removeprefix('torch.')}, {size}": (torch.randn(shape) * 3).to(dtype)
        for dtype in DTYPES
        for size, shape in SHAPES.items()
    }
    cases = {name: make(torch.randn(LARGE)) for name, make in CASES.items()}
    parts = [
        head(
            "What measuring one tensor costs, in µs",
            command=f"python -m benchmarks.recording.kernels --repeats {repeats}",
        ),
        ABOUT,
        table("dtype, elements", sizes, repeats=repeats),
        table("131,072 float32", cases, repeats=repeats),
    ]
    page = "\n\n".join(parts) + "\n"
    Path(__file__).with_name("kernels.md").write_text(page)
    print(page)


if __name__ == "__main__":
    main()
