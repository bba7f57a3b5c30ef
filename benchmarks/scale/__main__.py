"""Measure what opening and checking a Run of many ranks, or many steps, takes, and rewrite README.md beside this.

    python -m benchmarks.scale [--quick]

The Runs are written in the format of real writers (`benchmarks.durability.long_run`), and each is read in a process of
its own.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from pathlib import Path

from benchmarks.durability import long_run
from benchmarks.page import arguments, head, table, write
from benchmarks.scale.judging import judge

SIZES = ((64, 1_000), (256, 1_000), (1_024, 1_000), (64, 10_000))

ABOUT = """\
Rows as the default plan leaves them, of a model of 16 parameters in 4 groups: losses, norms, cosines and residuals at
every step, sketches at every 50th, digests at every 25th. CPU seconds and the peak of resident memory of a process
that opens the Run and runs every check. No rank is faulty."""


def main() -> None:
    """Write, read and forget one Run after the other, and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="the smallest one, printed and not kept")
    chosen = parser.parse_args()
    title = head("What judging a large Run takes", command="python -m benchmarks.scale")
    rows: list[list[str]] = []
    for ranks, steps in SIZES[:1] if chosen.quick else SIZES:
        with tempfile.TemporaryDirectory(prefix="trueline-scale-") as place:
            path = Path(place, "run")
            long_run.write(path, steps=steps, merges=True, ranks=ranks)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                took = pool.apply(judge, (str(path),))
        spent = [f"{took[name]:.1f}" for name in ("open", "check")]
        rows.append([f"{ranks:,}", f"{steps:,}", *spent, f"{took['MiB']:,.0f}"])
        print(rows[-1], flush=True)
    if not chosen.quick:
        header = ["ranks", "steps", "open, CPU s", "check, CPU s", "peak MiB"]
        write(__file__, title, ABOUT, table(header, rows, right=range(5)))


if __name__ == "__main__":
    main()
