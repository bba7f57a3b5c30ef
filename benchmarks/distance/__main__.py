"""Measure how differences are measured and how reliable floors are, and rewrite README.md beside this.

    python -m benchmarks.distance [--elements 30000000] [--runs 6]

Some minutes on one core, and 0.5 GB of disk.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from benchmarks.distance import estimates, floors, speed
from benchmarks.page import arguments, head, write

MAX_BYTES = 64 * 2**20

ABOUT_SPEED = f"""\
Float32, mapped from files, with `max_bytes` of {MAX_BYTES // 2**20} MiB: least CPU time of {speed.REPEATS} repeats, \
and the peak of memory taken for the first {speed.PIECE:,} elements."""

ABOUT_ESTIMATES = """\
A small causal LM, two steps, every value recorded with statistics and stored. Estimate from statistics over the \
distance of the stored values, for values that differ: 1 is exact, less is too low. "None seen" is the share of values \
for which statistics show no difference beyond what they are uncertain by. "Bound broken" counts values for which the \
certain lower bound is above the truth."""

ABOUT_FLOORS = f"""\
Runs of that model in float32 whose weights were nudged by a step each, at random: exchangeable ones. {floors.DRAWS} \
draws of which Runs calibrate; up to four further ones are compared with the floor of each site at each step. "At \
most" is what the Tolerance states. "Most times" is the largest quotient of a difference and the floor of its own \
site, without that of its kind. `compare` exits with 1 where it sees more than rounding in a further Run."""


def main() -> None:
    """Measure and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--elements", type=int, default=30_000_000, help="of each array")
    parser.add_argument("--runs", type=int, default=6, help="nudged Runs")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    title = head(
        "How differences are measured",
        command=f"python -m benchmarks.distance --elements {chosen.elements} --runs {chosen.runs}",
    )
    with tempfile.TemporaryDirectory() as folder:
        parts = [
            title,
            "## Distances of large arrays",
            ABOUT_SPEED,
            speed.table(Path(folder), num_elements=chosen.elements, max_bytes=MAX_BYTES),
            "## What statistics show",
            ABOUT_ESTIMATES,
            estimates.table(Path(folder)),
            "## Floors",
            ABOUT_FLOORS,
            floors.table(Path(folder), num_runs=chosen.runs),
        ]
    write(__file__, *parts)


if __name__ == "__main__":
    main()
