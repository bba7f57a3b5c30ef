"""Measure what watching costs and rewrite the tables in benchmarks/overhead/README.md.

    python -m benchmarks.overhead [--ranks 4] [--rounds 40] [--part steps|reading|memory|samples|growth ...]

Steps: one process group trains one copy of a model per mode, and every round takes one step of every mode in rotating
order, between barriers, so that whatever else the machine does hits all modes alike. A mode's ratio is the median
over rounds of its step time over the bare step time of the same round; likewise of CPU time, which other work on the
machine disturbs less. On 2 cores that do nothing else all parts take about 10 minutes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.overhead import growth, memory, reading, samples, steps
from benchmarks.place import head

HERE = Path(__file__).parent
PARTS = {"steps": steps, "reading": reading, "memory": memory, "samples": samples, "growth": growth}


def main() -> None:
    """Run the chosen parts and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--part", choices=PARTS, action="append")
    chosen = parser.parse_args()
    sections = []
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.part or PARTS:
            print(f"measuring {name} …", file=sys.stderr, flush=True)
            sections.append(PARTS[name].measure(ranks=chosen.ranks, rounds=chosen.rounds, folder=Path(folder)))
    text = "\n\n".join(sections)
    print(text)
    if set(chosen.part or PARTS) == set(PARTS):
        command = f"python -m benchmarks.overhead --ranks {chosen.ranks} --rounds {chosen.rounds}"
        title = head("What watching costs", command=command)
        (HERE / "README.md").write_text(f"{title}\n\n{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
