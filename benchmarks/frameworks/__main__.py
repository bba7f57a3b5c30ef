"""Train under each framework, in each of its modes, watched and not, with and without faults, and rewrite README.md.

    python -m benchmarks.frameworks [NAME...] [--mode WORDS] [--part WORDS] [--try] [--page]

A framework is one file of jobs/ with PACKAGE, MODES and ``train(job)``. One that is not installed is "not installed",
and keeps its results, of which each part writes its own to results/NAME.json when it is done. Some minutes a mode, on
two cores; without a name all are run.
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

RESULTS = Path(__file__).with_name("results")


def main() -> None:
    """Run the chosen ones and write the page."""
    parser = arguments(__doc__, mode="", part="")
    parser.add_argument("name", nargs="*", help=f"some of {', '.join(FRAMEWORKS)}")
    parser.add_argument("--try", dest="trying", action="store_true", help="print only; write nothing")
    parser.add_argument("--page", action="store_true", help="run nothing; write the page of the results that there are")
    chosen = parser.parse_args()
    for name in () if chosen.page else chosen.name or FRAMEWORKS:
        try:
            module: Any = importlib.import_module(f"benchmarks.frameworks.jobs.{name}")
            version = importlib.metadata.version(module.PACKAGE)
        except ModuleNotFoundError as missing:
            print(f"{name}: {missing.name} is not installed", file=sys.stderr)
            continue
        preload(*getattr(module, "IMPORTS", (module.PACKAGE,)))
        about = {"version": f"{module.PACKAGE} {version}", "facts": facts(f"python -m benchmarks.frameworks {name}")}
        for mode in (mode for mode in module.MODES if not chosen.mode or chosen.mode == mode):
            _try(name, mode, part=chosen.part, about=None if chosen.trying else about)
    if not chosen.trying:
        found = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))}
        Path(__file__).with_name("README.md").write_text(page(found), encoding="utf-8")


def _try(name: str, mode: str, *, part: str, about: dict[str, Any] | None) -> None:
    """Show and, with ``about``, keep what each part of one mode says."""
    with tempfile.TemporaryDirectory(prefix="trueline-frameworks-") as place:
        trial = Trial(name, mode, Path(place))
        for what, said in cells(trial, part=part):
            print(f"{name}, {mode}: {what}: {said or 'right'}", file=sys.stderr, flush=True)
            if about is not None:
                _keep(name, mode, {what: said}, trial.said, about)


def _keep(name: str, mode: str, cell: dict[str, str], said: dict[str, Any], about: dict[str, Any]) -> None:
    """Add to what is kept of the same version."""
    file = RESULTS / f"{name}.json"
    file.parent.mkdir(exist_ok=True)
    kept = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    modes = kept.get("modes", {}) if kept.get("version") == about["version"] else {}
    before = modes.get(mode, {"cells": {}})
    when = before.get("when", {}) | dict.fromkeys(cell, f"commit {about['facts']['commit']}, {about['facts']['date']}")
    modes[mode] = {**before, **said, "cells": before["cells"] | cell, "when": when}
    file.write_text(json.dumps({**about, "modes": modes}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
