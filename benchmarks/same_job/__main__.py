"""How many planted differences are found and named, and how many harmless ones stay silent; rewrites README.md.

    python -m benchmarks.same_job [--examples FOLDER] [--keep]

With ``--examples``, a folder of configurations that nobody here wrote, each of their options is changed in turn too,
and it is counted how often that is named in the vocabulary, by the option's own name, or not at all. ``--keep`` prints
and writes nothing.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from tests.unit.same_job.cases import HARMLESS, PLANTED, Case
from tests.unit.same_job.configs import CONFIGS, SOURCES

from trueline.same_job.compare_settings import compare_settings, is_harmless_option
from trueline.same_job.derived import derive
from trueline.same_job.diff import JobDiff, diff
from trueline.same_job.settings import is_open, read_settings
from trueline.schema.errors import InputError
from trueline.store.job_files.config_files import SUFFIXES, read_config

HERE = Path(__file__).parent


def main() -> None:
    """Count, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=Path)
    parser.add_argument("--keep", action="store_true")
    asked = parser.parse_args()
    lines = [*_planted(), *(_changed(asked.examples) if asked.examples else [])]
    print("\n".join(lines))
    if not asked.keep:
        (HERE / "README.md").write_text("\n".join([*_head(asked.examples is not None), *lines, ""]), encoding="utf-8")


def _head(with_examples: bool) -> list[str]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    command = "python -m benchmarks.same_job" + (" --examples FOLDER" if with_examples else "")
    when = datetime.datetime.now(datetime.UTC).date().isoformat()
    return [
        "# Is it the same job?",
        "",
        f"`{command}`, {platform.machine()}, Python {platform.python_version()}, commit {commit.stdout.strip()}, "
        f"{when}.",
        "When the cases were first run, the planted term was named first in 37 of 40, and 39 of 40 harmless ones were "
        "silent; vocabulary and reading were corrected by that.",
        "",
        "Configurations follow public examples: " + "; ".join(f"{name}: {url}" for name, url in SOURCES.items()) + ".",
        "",
    ]


def _compared(folder: Path, case: Case) -> JobDiff:
    sides = [folder / name / case.config for name in ("run", "ref")]
    texts = (CONFIGS[case.config].replace(case.before, case.after, 1), CONFIGS[case.config])
    for side, text in zip(sides, texts, strict=True):
        side.parent.mkdir(exist_ok=True)
        side.write_text(text, encoding="utf-8")
    return diff(*sides)


def _planted() -> list[str]:
    """A table by framework, and each case that failed."""
    named, silent, first = Counter[str](), Counter[str](), Counter[str]()
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        for case in (*PLANTED, *HARMLESS):
            found = [each.name for each in _compared(Path(scratch), case).differences]
            good = case.term in found if case.term else not found
            (named if case.term else silent)[case.config] += good
            first[case.config] += bool(case.term) and found[:1] == [case.term]
            if not good:
                wrong.append(f"- {case.config}: {case.before!r} to {case.after!r}: {', '.join(found) or 'nothing'}")
    planted, harmless = (Counter(case.config for case in cases) for cases in (PLANTED, HARMLESS))
    lines = [
        "| configuration | planted | found and named | named first | harmless | silent |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {planted[name]} | {named[name]} | {first[name]} | {harmless[name]} | {silent[name]} |"
        for name in CONFIGS
    ]
    totals = (planted.total(), named.total(), first.total(), harmless.total(), silent.total())
    return [*lines, f"| **all** | {' | '.join(map(str, totals))} |", *wrong, ""]


def _changed(folder: Path) -> list[str]:
    """For configurations in a folder, what becomes of a change of each of their options."""
    counts: dict[str, Counter[str]] = {}
    missed: Counter[str] = Counter()
    unread = files = 0
    for path in sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file()):
        try:
            options = read_config(path)
        except InputError:
            unread += 1
            continue
        files += bool(options)
        settings = read_settings({path.name: options})
        for option, value in options.items():
            outcome = _outcome(settings, path.name, options, option, value)
            framework = settings.frameworks[0]
            counts.setdefault(framework, Counter())[outcome] += 1
            missed[option] += outcome == "not found"
    kinds = ("in the vocabulary", "by its own name", "harmless", "not known (shell)", "not found")
    lines = [
        f"Each option of {files} configurations changed in turn ({unread} could not be read as configurations), and "
        "what became of the difference:",
        "",
        f"| framework | {' | '.join(kinds)} |",
        f"|---|{'---|' * len(kinds)}",
        *(f"| {name} | {' | '.join(str(found[kind]) for kind in kinds)} |" for name, found in sorted(counts.items())),
        "",
    ]
    often = [f"`{name}` ({count})" for name, count in missed.most_common(8) if count]
    return [*lines, *([f"Not found most often: {', '.join(often)}.", ""] if often else [])]


def _outcome(settings: Any, name: str, options: dict[str, Any], option: str, value: Any) -> str:
    """What a change of one option is taken for."""
    if is_open(value):
        return "not known (shell)"
    other = read_settings({name: {**options, option: _other(value)}})
    found, _ = compare_settings(other, settings, (derive(other), derive(settings)))
    if not found:
        return "harmless" if option in settings.other_options and is_harmless_option(option) else "not found"
    return "by its own name" if any(each.name == option for each in found) else "in the vocabulary"


def _other(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value * 2 if value else 1
    if isinstance(value, list):
        return [*value, "another"]
    return "another" if value is None else f"{value}-another"


if __name__ == "__main__":
    sys.exit(main())
