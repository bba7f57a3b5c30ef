"""Train the three settings of arXiv 2602.14462 on eight workers under two readings, and write what was measured.

    python -m benchmarks.paper run [--data FILE] [--quick]     trains; leaves results.json (a run cut short goes on)
    python -m benchmarks.paper write                           makes README.md and dispersions.svg from it

Without ``--data``, an Alpaca-format file, the standard-library set stands alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.page import arguments, head
from benchmarks.paper.cells import QUICK, Size
from benchmarks.paper.figure import figure
from benchmarks.paper.measure import describe, measure
from benchmarks.paper.results import Results, read_results
from benchmarks.paper.tables import legend, sections

HERE = Path(__file__).parent
LASTING = ("workers", "steps", "batch_size", "max_length", "warm_steps")
"""Sizes that must be equal for runs to stand in one table."""

FIGURE = "dispersions.svg"


def main() -> None:
    parser = arguments(__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    run = verbs.add_parser("run", help="train, and keep the results")
    run.add_argument("--data", type=Path, help="an Alpaca-format JSON or JSONL file to train on as well")
    run.add_argument("--quick", action="store_true", help="few steps and seeds, kept apart: a minute, no evidence")
    run.add_argument("--seeds", type=int, help="repetitions of each cell (default: 5; 3 from random weights)")
    run.add_argument("--results", type=Path, help="where to keep them (default: results.json beside this file)")
    write = verbs.add_parser("write", help="make page and figure from the results")
    write.add_argument("--results", type=Path, default=HERE / "results.json")
    chosen = parser.parse_args()
    if chosen.verb == "write":
        _write(read_results(chosen.results))
    else:
        _run(chosen)


def _run(chosen: argparse.Namespace) -> None:
    size = QUICK if chosen.quick else Size()
    if chosen.seeds is not None:
        size = dataclasses.replace(size, seeds=chosen.seeds, seeds_random=min(chosen.seeds, size.seeds_random))
    default = Path(tempfile.gettempdir()) / "trueline-paper-quick.json" if chosen.quick else HERE / "results.json"
    path = chosen.results or default
    data = chosen.data
    if data is None or not data.exists():
        print("No Alpaca-format file (--data): the standard-library set alone.", file=sys.stderr)
        data = None
    head_now = head("The paper's three settings, on eight workers", command=_command(chosen, data))
    about = {"head": head_now, "size": describe(size)}
    results = _kept(path, about)
    measure(results, path, size, data, quick=chosen.quick)
    print(path)


def _kept(path: Path, about: dict[str, Any]) -> Results:
    """The results in ``path`` with a new ``about``, if runs were as long and as wide there; else none yet."""
    try:
        results = read_results(path)
    except (OSError, ValueError):
        return Results(about=about)
    if any(results.about["size"][key] != about["size"][key] for key in LASTING):
        return Results(about=about)
    results.about |= about
    return results


def _write(results: Results) -> None:
    (HERE / "README.md").write_text(_page(results), encoding="utf-8")
    (HERE / FIGURE).write_text(figure(results), encoding="utf-8")


def _page(results: Results) -> str:
    about, size = results.about, results.about["size"]
    warm = ", ".join(f"{loss} ({text})" for text, loss in about.get("warm_loss", {}).items())
    rows = " and ".join(f"{count:,} rows ({text})" for text, count in about["rows"].items())
    return f"""{about["head"]}
- one process and one thread, {about.get("minutes", 0):.0f} minutes of one core for the trainings
- figure: `benchmarks/paper/{FIGURE}`

{size["workers"]} workers, {size["batch_size"]} samples each of at most {size["max_length"]} tokens, {size["steps"]} \
optimizer steps, AdamW at the demo's learning rate, the demo's small Llama ({about["parameters"]:,} parameters), \
response-only loss, {rows}. Trained weights: {size["warm_steps"]} steps of ordinary training on the same rows with \
another seed, one set for all seeds; mean loss at its end {warm}. Every number is a mean over steps, then over seeds, \
± half of its 95 % interval over seeds (Student's t; none for a single seed). A gradient norm is that of one worker \
before any averaging.

{legend()}

In the differences to S1-1 a DistributedSampler deals, seeds are paired, and bold marks an interval without zero. In \
"Caught by coverage" a cell says in how many of the seeds, after how many steps in the median, and at most; \
`shard-overlap` counts as an error, with what the samplers declare, or from digests alone.

{sections(results)}
"""


def _command(chosen: argparse.Namespace, data: Path | None) -> str:
    words = ["python -m benchmarks.paper run"]
    words += ["--quick"] if chosen.quick else []
    words += [f"--seeds {chosen.seeds}"] if chosen.seeds is not None else []
    words += [f"--data {data.name}"] if data is not None else []
    return " ".join([*words, "&& python -m benchmarks.paper write"])


if __name__ == "__main__":
    main()
