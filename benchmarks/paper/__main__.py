"""Train the three settings of arXiv 2602.14462 on eight workers under two readings, and write what was measured.

    python -m benchmarks.paper run [--data FILE] [--quick]     trains; leaves results.json (a run cut short goes on)
    python -m benchmarks.paper write                           makes README.md and docs/img/paper.svg from it

Without ``--data``, an Alpaca-format file, the standard-library set stands alone.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from benchmarks.paper.cells import QUICK, Size
from benchmarks.paper.figure import figure
from benchmarks.paper.measure import describe, measure
from benchmarks.paper.results import Results, read_results
from benchmarks.paper.tables import legend, sections

HERE = Path(__file__).parent
LASTING = ("workers", "steps", "batch_size", "max_length", "warm_steps")
"""Sizes that must be equal for runs to stand in one table."""

FIGURE = HERE.parents[1] / "docs" / "img" / "paper.svg"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
    about = {"command": _command(chosen, data), "size": describe(size), **_place()}
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
    (HERE / "README.md").write_text(f"{_head(results)}\n\n{sections(results)}\n", encoding="utf-8")
    FIGURE.write_text(figure(results), encoding="utf-8")


def _head(results: Results) -> str:
    about, size = results.about, results.about["size"]
    warm = ", ".join(f"{loss} ({text})" for text, loss in about.get("warm_loss", {}).items())
    rows = " and ".join(f"{count:,} rows ({text})" for text, count in about["rows"].items())
    return f"""# The paper's three settings, on eight workers

- command: `{about["command"]}`, then `python -m benchmarks.paper write`
- machine: {about["machine"]}
- commit {about["commit"]}, {about["date"]}; {about.get("minutes", 0):.0f} minutes of one core for the trainings

{size["workers"]} workers, {size["batch_size"]} samples each of at most {size["max_length"]} tokens, {size["steps"]} \
optimizer steps, AdamW at the demo's learning rate, the demo's small Llama ({about["parameters"]:,} parameters), \
response-only loss, {rows}. Trained weights: \
{size["warm_steps"]} steps of ordinary training on the same rows with another seed, one set for all seeds; mean loss \
at its end {warm}. Every number is a mean over steps, then over seeds, ± half of its 95 % interval over seeds \
(Student's t). A gradient norm is that of one worker before any averaging.

{legend()}

The paper expects of the distance between workers: S1-1 low, S1-2 slightly higher, S1-3 large.

In "Difference to S1-1" seeds are paired, a DistributedSampler deals, and bold marks an interval without zero. In \
"Caught by coverage" a cell says in how many of the seeds, after how many steps in the median, and at most."""


def _command(chosen: argparse.Namespace, data: Path | None) -> str:
    words = ["python -m benchmarks.paper run"]
    words += ["--quick"] if chosen.quick else []
    words += [f"--data {data.name}"] if data is not None else []
    return " ".join(words)


def _place() -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "machine": f"one core of {os.cpu_count()}, {platform.machine()}, torch {torch.__version__}, one thread",
        "commit": commit.stdout.strip(),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


if __name__ == "__main__":
    main()
