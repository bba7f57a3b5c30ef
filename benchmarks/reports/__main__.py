"""Try what `trueline check` says of publicly reported faults that no training stops at, and rewrite README.md.

    python -m benchmarks.reports [--half HALF | --set SET] [--only ID,…] [--out DIR] [--bare] [--page]

Each report of log/ is a job of jobs/ and its repaired twin, both under ``trueline run --plan laws``. What was tried is
kept in results/; the page is of all that is there. ``--bare`` watches nothing and says of each job whether it shows its
mechanism and its twin does not. Half a minute a report on two idle cores. ``--out`` keeps the Runs, and a list of what
is not said.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.page import arguments, head
from benchmarks.reports.catalogue import HALVES, PLACE, SETS, Report, catalogue, peer
from benchmarks.reports.table import page, unsaid
from benchmarks.reports.trial import Programs, Screen, Tried, bare, tried

RESULTS = PLACE / "results"


def main() -> None:
    """Try the chosen ones and write the page."""
    parser = arguments(__doc__, only="", out="")
    parser.add_argument("--half", choices=HALVES, help="those of one half; all if not given")
    parser.add_argument("--set", choices=SETS, help="those of this set; none of a half")
    parser.add_argument("--bare", action="store_true", help="watch nothing: does each job show its mechanism?")
    parser.add_argument("--page", action="store_true", help="run nothing; write the page of the results that there are")
    chosen = parser.parse_args()
    reports = catalogue()
    picked = [
        report
        for report in reports
        if chosen.half in (None, report.half)
        and chosen.set in (None, report.set)
        and (not chosen.only or report.id in chosen.only.split(","))
        and not chosen.page
    ]
    with _folder(chosen.out) as out, _programs() as programs:
        if chosen.bare:
            sys.exit(_say_bare(picked, out, programs))
        kept = _kept()
        for report in picked:
            kept[report.id] = tried(report, out, programs)
            _say(kept[report.id])
            (out / "unsaid.md").write_text(unsaid(reports, _of(picked, kept)), encoding="utf-8")
            _keep(kept[report.id])
    title = head("What is said of reported faults", command="python -m benchmarks.reports")
    text = page(reports, kept.values(), title, peer())
    (PLACE / "README.md").write_text(text, encoding="utf-8")


def _say(trial: Tried) -> None:
    answer = "said" if trial.said else "accused of something else" if trial.accused_otherwise else "not said"
    twin = trial.twin.broke or ("silent" if not trial.wrong_lines else trial.wrong_lines[0])
    print(
        f"{trial.id}: {answer}: {(trial.said or [trial.fault.first])[0]}\n    twin: {twin}", file=sys.stderr, flush=True
    )


def _say_bare(picked: list[Report], out: Path, programs: Programs) -> int:
    failed = 0
    for report in picked:
        seen = bare(report, out, programs)
        failed += bool(seen)
        print(f"{report.id}: {seen or 'right'}", flush=True)
    return min(failed, 1)


def _of(picked: list[Report], kept: dict[str, Tried]) -> list[Tried]:
    return [kept[report.id] for report in picked if report.id in kept]


def _kept() -> dict[str, Tried]:
    rows = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("*.json"))]
    return {row["id"]: Tried(**row | {name: Screen(**row[name]) for name in ("fault", "twin")}) for row in rows}


def _keep(trial: Tried) -> None:
    row = dataclasses.asdict(trial)
    for screen in (row["fault"], row["twin"]):
        del screen["facts"]
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{trial.id}.json").write_text(json.dumps(row, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _folder(out: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="trueline-reports-") as temporary:
        place = Path(out or temporary).absolute()
        place.mkdir(parents=True, exist_ok=True)
        yield place


@contextlib.contextmanager
def _programs() -> Iterator[Programs]:
    """Programs that are forks of one that has imported torch, which saves five seconds a start."""
    from tests.warm_python import warm_python

    with tempfile.TemporaryDirectory(prefix="trueline-warm-") as folder, warm_python(Path(folder)) as python:
        yield Programs(python=(python,), trueline=(str(Path(folder) / "trueline"),))


if __name__ == "__main__":
    main()
