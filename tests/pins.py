"""What Trueline says of fixed Runs, as files: written before a change that may change nothing, and after it.

    python -m tests.pins RUNS OUT

RUNS holds Runs, at any depth (those of ``python -m benchmarks.gallery --runs RUNS``, say); the made-up ones of
``tests/run_kinds.py`` are added where they are missing. A Run named ``reference`` is what the others of its folder are
compared with. OUT gets, by Run, what ``check``, ``diagnose`` and ``compare`` print, on the screen and as JSON, and
``explain`` of every code (its JSON has the manuals). ``diff -r`` of two such folders then says what changed.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.run_kinds import CHANGES, write_kind
from typer.testing import CliRunner

from trueline.cli.main import app

WIDTH = {"COLUMNS": "120", "NO_COLOR": "1"}


def main(runs: Path, out: Path) -> None:
    """Write all documents of the Runs below ``runs`` into ``out``."""
    for kind in CHANGES:
        if not (runs / "kinds" / kind).exists():
            write_kind(runs / "kinds" / kind, kind)
    for manifest in sorted(runs.rglob("manifest.json")):
        run = manifest.parent
        name, reference = "-".join(run.relative_to(runs).parts), run.parent / "reference"
        for verb in ("check", "diagnose"):
            _pin(out / f"{name}.{verb}", verb, str(run))
        if run != reference and reference.exists():
            _pin(out / f"{name}.compare", "compare", str(run), str(reference))
    _pin(out / "codes", "explain")


def _pin(out: Path, *args: str) -> None:
    for suffix, options in ((".txt", ()), (".json", ("--json",))):
        result = CliRunner().invoke(app, [*args, *options], env=WIDTH)
        out.parent.mkdir(parents=True, exist_ok=True)
        out.with_name(out.name + suffix).write_text(f"{result.output}\nexit {result.exit_code}\n", encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
