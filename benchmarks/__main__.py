"""Run the benchmarks that take minutes and rewrite their pages.

    python -m benchmarks [overhead] [store] [exact_checks] [rounding] [distance] [gallery]
    python -m benchmarks compare recording durability gpt2 frameworks layouts monitor scale paper-size many-ranks
    python -m benchmarks rl trials precheck operators same-job view harm reports facts
    python -m benchmarks acting
The latter run only where they are named. compare, recording and monitor need msProbe: pip install -e '.[bench]';
frameworks takes those that are installed. gpt2 and paper-size need transformers, view a Chromium.
Each can be run by itself, with options: ``python -m benchmarks.overhead --help``.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

QUICK = ("overhead", "store", "exact_checks", "rounding", "distance", "gallery")
NAMED = (
    "compare",
    "recording",
    "durability",
    "gpt2",
    "frameworks",
    "layouts",
    "monitor",
    "scale",
    "paper-size",
    "many-ranks",
    "rl",
    "trials",
    "same-job",
    "view",
    "precheck",
    "operators",
    "harm",
    "reports",
    "facts",
    "acting",
)


def main() -> None:
    """Run the chosen ones, one after the other: they measure time."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "name", nargs="*", help=f"one of {', '.join(QUICK + NAMED)}; the first {len(QUICK)} if none is given"
    )
    chosen = parser.parse_args().name
    unknown = [name for name in chosen if name not in QUICK + NAMED]
    if unknown:
        parser.error(f"there is no benchmark '{unknown[0]}' here; there are {', '.join(QUICK + NAMED)}")
    for name in chosen or QUICK:
        print(f"benchmarks.{name}", file=sys.stderr, flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name.replace('-', '_')}"], check=False)
        if done.returncode:
            sys.exit(done.returncode)


if __name__ == "__main__":
    main()
