"""Measure how the judgement of workers performs, and rewrite studies/judgement/README.md.

    python -m studies.judgement [PART …] [--quick] [--cache DIR]

Each part leaves its numbers in a JSON file beside this one; the tables are written from all of them. Trainings are kept
under the cache directory and are not repeated. ``--quick`` runs a small piece of every part and writes nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from benchmarks import page
from studies.judgement import agreement, cache, curves, healthy, intervals, memory, onsets, power, simulated, tables

import trueline.judge

HERE = Path(__file__).parent
RESULTS = HERE / "results"
Part = Callable[[Path, bool], dict[str, Any]]
PARTS: dict[str, Part] = {
    "agreement": lambda folder, quick: agreement.measure(quick=quick),
    "healthy": lambda folder, quick: healthy.measure(folder, quick=quick),
    "memory": lambda folder, quick: memory.measure(folder, quick=quick),
    "simulated": lambda folder, quick: simulated.measure(quick=quick),
    "power": lambda folder, quick: power.measure(folder, quick=quick),
    "curves": lambda folder, quick: curves.measure(quick=quick),
    "intervals": lambda folder, quick: intervals.measure(quick=quick),
    "onsets": lambda folder, quick: onsets.measure(quick=quick),
}


def main() -> None:
    """Run the chosen parts, all by default, and write the page."""
    parser = page.arguments(__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}, or tables for the page alone")
    parser.add_argument("--quick", action="store_true", help="a small piece of each part, printed and not kept")
    parser.add_argument("--cache", type=Path, default=cache.DEFAULT, help="where trainings are kept")
    chosen = parser.parse_args()
    parts = chosen.parts or list(PARTS)
    if unknown := set(parts) - {*PARTS, "tables"}:
        parser.error(f"no part {sorted(unknown)}; there are {', '.join(PARTS)} and tables")
    torch.set_num_threads(1)
    measured: dict[str, dict[str, Any]] = {}
    for name in parts:
        if name == "tables":
            continue
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        made = _made(name)
        found = PARTS[name](chosen.cache / "quick" if chosen.quick else chosen.cache, chosen.quick)
        measured[name] = {"made": made} | found
        if not chosen.quick:
            (RESULTS / f"{name}.json").write_text(tables.compact(measured[name]), encoding="utf-8")
    if chosen.quick:
        print(tables.page(measured))
        return
    kept = {name: json.loads(path.read_text("utf-8")) for name in PARTS if (path := RESULTS / f"{name}.json").exists()}
    tables.write(HERE, kept)


def _made(part: str) -> dict[str, Any]:
    """Where and when a part is measured, and whether the analysis differs from its commit."""
    analysis = ["git", "status", "--porcelain", str(Path(trueline.judge.__path__[0]))]
    changed = subprocess.run(analysis, capture_output=True, text=True, check=False).stdout.strip()
    now = page.facts(f"python -m studies.judgement {part}")
    return now | {"commit": now["commit"] + (" with changes" if changed else "")}


if __name__ == "__main__":
    main()
