"""Train the three settings of arXiv 2602.14462 on a Llama of 1.1 billion parameters, and rewrite README.md beside this.

    python -m benchmarks.paper_size [--data FILE] [--steps 4] [--reading READING] [--results FILE] [--quick]

It takes 10 GB of memory and, on two cores without bfloat16 units, four minutes a step of the eight workers; a run cut
short goes on. Text is the standard library's, or an Alpaca-format file. ``--quick`` is a tenth of the size, printed and
not kept: two minutes.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.page import arguments, facts
from benchmarks.paper.cells import PAPER, READINGS, job_of, setting_of
from benchmarks.paper.cells import Size as Trained
from benchmarks.paper_size.page import page
from benchmarks.paper_size.sizes import FULL, TENTH, Size, read
from benchmarks.paper_size.workers import Played, peak_bytes

from trueline.demo.fine_tune import Material

HERE = Path(__file__).parent


def main() -> None:
    """Train what the results lack, cell by cell, and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, help="an Alpaca-format JSON or JSONL file")
    parser.add_argument("--steps", type=int, help=f"of each cell ({FULL.steps} if not given)")
    parser.add_argument("--reading", choices=READINGS, help="train only its three cells; what was kept is shown beside")
    parser.add_argument("--results", type=Path, default=HERE / "results.json", help="where they are kept")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, printed and not kept")
    chosen = parser.parse_args()
    size = TENTH if chosen.quick else FULL
    size = size if chosen.steps is None else dataclasses.replace(size, steps=chosen.steps)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "quick.json") if chosen.quick else chosen.results
        results = _kept(path, size, chosen.data)
        material = read(chosen.data, size)
        results["rows"] = len(material.samples)
        readings = [*READINGS] if chosen.reading is None else [chosen.reading]
        for reading, setting in itertools.product(readings, (each.name for each in PAPER)):
            if not any((cell["reading"], cell["setting"]) == (reading, setting) for cell in results["cells"]):
                _train(results, reading, setting, material, size)
                path.write_text(json.dumps(results), encoding="utf-8")
    text = page(results)
    print(text)
    if not chosen.quick:
        (HERE / "README.md").write_text(text, encoding="utf-8")


def _kept(path: Path, size: Size, data: Path | None) -> dict[str, Any]:
    """The results in ``path`` where they are of this size and text, else none yet."""
    same = {"size": dataclasses.asdict(size), "text": "the standard library" if data is None else data.name}
    option = "" if data is None else f" --data {data.name}"
    about = facts(f"python -m benchmarks.paper_size --steps {size.steps}{option}")
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        kept = {}
    if all(kept.get(name) == value for name, value in same.items()):
        return kept
    return {"about": about, **same, "cells": [], "spent": {}, "peak_bytes": 0}


def _train(results: dict[str, Any], reading: str, setting: str, material: Material, size: Size) -> None:
    job = job_of(setting_of(reading, setting), material, Trained(steps=size.steps, batch_size=1), seed=0)
    played = Played(job, size)
    steps: list[dict[str, Any]] = []
    for step in played.steps(size.steps):
        steps.append(step)
        print(f"{reading} {setting} step {len(steps)} of {size.steps}: {step}", file=sys.stderr, flush=True)
    layout = played.layout
    results["layout"] = {"parameters": sum(layout.numels), "groups": len(layout.groups), "k": layout.k}
    results["cells"].append({"reading": reading, "setting": setting, "steps": steps})
    for name, seconds in played.spent.seconds.items():
        results["spent"].setdefault(name, []).extend(seconds)
    results["peak_bytes"] = max(results["peak_bytes"], peak_bytes())


if __name__ == "__main__":
    main()
