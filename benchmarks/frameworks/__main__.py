"""Train under each framework, in each of its modes, watched and not, with and without faults, and rewrite README.md.

    python -m benchmarks.frameworks [NAME...] [--mode WORDS] [--part WORDS]

A framework is one file here with PACKAGE, MODES and ``train(job)``. One that is not installed is "not installed", and
keeps no result. Without a name all are run; what is not run stays as it is in results.json. Some minutes a mode, on two
cores, and one after the other.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.frameworks.ranks import preload
from benchmarks.frameworks.table import FRAMEWORKS, page
from benchmarks.frameworks.trial import Trial, cells
from benchmarks.page import arguments, facts

RESULTS = Path(__file__).with_name("results.json")


def main() -> None:
    """Run the chosen ones and write the page."""
    parser = arguments(__doc__, mode="", part="")
    parser.add_argument("name", nargs="*", help=f"some of {', '.join(FRAMEWORKS)}")
    parser.add_argument("--try", dest="trying", action="store_true", help="print only; write no page")
    chosen = parser.parse_args()
    results: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for name in chosen.name or FRAMEWORKS:
        module: Any = importlib.import_module(f"benchmarks.frameworks.{name}")
        try:
            version = importlib.metadata.version(module.PACKAGE)
        except importlib.metadata.PackageNotFoundError:
            print(f"{name}: {module.PACKAGE} is not installed", file=sys.stderr)
            results.setdefault(name, {"version": "not installed", "modes": {}})
            continue
        preload(*getattr(module, "IMPORTS", (module.PACKAGE,)))
        now = facts(f"python -m benchmarks.frameworks {name}")
        modes = [mode for mode in module.MODES if not chosen.mode or chosen.mode == mode]
        of = results[name] = {"modes": {}, **results.get(name, {}), "version": version, "facts": now}
        for mode in modes:
            of["modes"][mode] = _tried(name, mode, part=chosen.part)
            if not (chosen.trying or chosen.part):
                RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if not (chosen.trying or chosen.part):
        Path(__file__).with_name("README.md").write_text(page(results), encoding="utf-8")


def _tried(name: str, mode: str, *, part: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="trueline-frameworks-") as place:
        trial, seen = Trial(name, mode, Path(place)), {}
        for what, said in cells(trial, part=part):
            seen[what] = said
            print(f"{name}, {mode}: {what}: {said or 'right'}", file=sys.stderr, flush=True)
        return {"cells": seen, **trial.said}


if __name__ == "__main__":
    main()
