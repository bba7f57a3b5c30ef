"""Public configurations, as they stand in public repositories: is each read, and what is said first of a pair?

    python -m benchmarks.same_job.public --sources DIR [--half open|held|both]

DIR has a bare clone of each repository as OWNER+NAME/repo. ``public.toml`` has the files by repository, commit and
path, ``pairs_open.toml`` and ``pairs_held.toml`` pairs with what a careful engineer reads first, written down before
any of them was compared; none of the files' text is here. The held half was set aside before the work on its kinds.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.page import arguments, head, records, write

from trueline.same_job.diff import JobDiff, diff
from trueline.same_job.difference import Difference
from trueline.schema.errors import CannotTell, InputError
from trueline.store.job_files.config_files import SUFFIXES
from trueline.store.job_files.job import open_job

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Outcome:
    """What was said of a pair: ``said`` first, in words, or why nothing was; whether that is ``right``; of the options
    that cannot matter those that were ``named``, and of those that explain rounding alone those said to explain more;
    of what matters besides what was ``missed``.
    """

    said: str
    right: bool
    named: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--sources", type=Path, required=True)
    parser.add_argument("--half", choices=("open", "held", "both"), default="open")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        checkouts = Checkouts(options.sources, Path(folder))
        rows = files(checkouts)
        parts = [_told_of_files(rows)]
        for half in ("open", "held") if options.half == "both" else (options.half,):
            parts += _told_of_pairs(half, pairs(half, checkouts))
    write(
        __file__,
        head("Public configurations", command=f"python -m benchmarks.same_job.public {_words()}"),
        *parts,
        name="public.md",
    )


def _words() -> str:
    return " ".join("DIR" if word.startswith("/") else word for word in sys.argv[1:])


class Checkouts:
    """Configurations of repositories at commits, below ``folder``."""

    def __init__(self, sources: Path, folder: Path) -> None:
        self._sources, self._folder = sources, folder

    def path(self, repo: str, commit: str, path: str) -> Path:
        """Where a file is, with the configurations beside and above it that it may inherit from."""
        top = path.partition("/")[0]
        place = self._folder / repo.replace("/", "+") / commit
        if not (place / path).exists():
            place.mkdir(parents=True, exist_ok=True)
            git = ["git", "-C", str(self._sources / repo.replace("/", "+") / "repo")]
            listed = subprocess.run(
                [*git, "ls-tree", "-rz", "--name-only", commit, top + "/"], capture_output=True, check=True
            )
            names = [name for name in listed.stdout.decode().split("\0") if name.endswith(SUFFIXES)] or [path]
            for name in names:
                if name == path or path.startswith(f"{Path(name).parent}/"):
                    text = subprocess.run([*git, "show", f"{commit}:{name}"], capture_output=True, check=name == path)
                    (place / name).parent.mkdir(parents=True, exist_ok=True)
                    (place / name).write_bytes(text.stdout)
        return place / path


def files(checkouts: Checkouts) -> list[dict[str, Any]]:
    """Of each public file its framework, and what reading it gave."""
    rows = []
    sources = tomllib.loads((HERE / "public.toml").read_text(encoding="utf-8"))["source"]
    for entry in ({**source, "path": path} for source in sources for path in source["paths"]):
        path = checkouts.path(entry["repo"], entry["commit"], entry["path"])
        try:
            job = open_job(path)
            outcome = "read" if any(job.configs.values()) else "empty"
        except InputError as error:
            outcome = "refused" if str(error).count("\n") == 0 else "not one sentence"
        except Exception as error:  # what this measures: no file may end otherwise
            outcome = f"{type(error).__name__}"
        rows.append({**entry, "outcome": outcome})
    return rows


def pairs(half: str, checkouts: Checkouts) -> list[tuple[Mapping[str, Any], Outcome]]:
    """Each pair of a half with its outcome."""
    outcomes = []
    for pair in tomllib.loads((HERE / f"pairs_{half}.toml").read_text(encoding="utf-8"))["pair"]:
        paths = [checkouts.path(side["repo"], side["commit"], side["path"]) for side in (pair["a"], pair["b"])]
        if pair.get("edits"):
            paths[1] = _edited(paths[0], pair["edits"])
        outcomes.append((pair, outcome_of(pair, *paths)))
    return outcomes


def _edited(path: Path, edits: Sequence[str]) -> Path:
    text = path.read_text(encoding="utf-8")
    for edit in edits:
        old, new = edit.split(" -> ", 1)
        if old not in text:
            raise ValueError(f"{path} has no '{old}'")
        text = text.replace(old, new)
    folder = path.parent / "edited"
    folder.mkdir(exist_ok=True)
    (folder / path.name).write_text(text, encoding="utf-8")
    return folder / path.name


def outcome_of(pair: Mapping[str, Any], run: Path, ref: Path) -> Outcome:
    """What `trueline diff` says of a pair, and whether that is right."""
    try:
        result = diff(run, ref)
    except (InputError, CannotTell) as error:
        return Outcome(f"{type(error).__name__}: {error}", right=False)
    # of two frameworks an option may be spelt as either has it
    spelt = {
        name: [name, *(other for group in pair.get("aliases", ()) if name in group for other in group)]
        for name in (*pair.get("also", ()), *pair["first"])
    }
    named = [*_named(result.differences, pair.get("harmless", ())), *_named(result.telling, pair.get("rounding", ()))]
    missed = [name for name in pair.get("also", ()) if not _named(result.differences, spelt[name])]
    first = result.telling[0] if result.telling else None
    right = (
        first is None
        if not pair["first"]
        else first is not None and bool(_named([first], [name for wanted in pair["first"] for name in spelt[wanted]]))
    )
    return Outcome(_first_of(result), right, tuple(named), tuple(missed))


def _first_of(result: JobDiff) -> str:
    if not result.telling:
        return f"nothing beyond rounding (exit {result.exit_code})"
    first = result.telling[0]
    return f"{first.says}: {first.run} | {first.ref}"[:110]


def _named(differences: Iterable[Difference], options: Iterable[str]) -> list[str]:
    """Those of ``options`` that a difference names as its line: by the last part of the option, or all of it."""
    lines = {
        re.sub(r"[^a-z0-9.]", "_", where.rpartition(": ")[2].lower())
        for difference in differences
        for where in (f": {difference.name}", difference.run_where, difference.ref_where)
    }
    parts = {line.rpartition(".")[2] for line in lines} | {part for line in lines for part in line.split(".")} | lines
    return [option for option in options if re.sub(r"[^a-z0-9.]", "_", option.lower().lstrip("-")) in parts]


def _told_of_files(rows: Sequence[Mapping[str, Any]]) -> str:
    frameworks = sorted({row["framework"] for row in rows})
    counts = Counter((row["framework"], row["outcome"]) for row in rows)
    outcomes = ["read", "refused", *sorted({row["outcome"] for row in rows} - {"read", "refused"})]
    table = records(
        {"framework": framework, **{outcome: counts[framework, outcome] for outcome in outcomes}}
        for framework in frameworks
    )
    odd = "; ".join(f"{row['repo']} {row['path']}: {row['outcome']}" for row in rows if row["outcome"] != "read")
    return f"{len(rows)} files.\n\n{table}\n\nNot read: {odd or 'none'}."


def _told_of_pairs(half: str, outcomes: Sequence[tuple[Mapping[str, Any], Outcome]]) -> list[str]:
    right = sum(outcome.right for _, outcome in outcomes)
    options = sum(len(pair.get("harmless", ())) + len(pair.get("rounding", ())) for pair, _ in outcomes)
    named = sum(len(outcome.named) for _, outcome in outcomes)
    total = sum(len(pair.get("also", ())) for pair, _ in outcomes)
    missed = sum(len(outcome.missed) for _, outcome in outcomes)
    says = (
        f"Right first {right} of {len(outcomes)}; of {options} options that cannot matter, or explain rounding alone, "
        f"{named} are named, or said to explain more ({1 - named / max(options, 1):.1%} silent); of {total} further "
        f"options that matter {missed} are missing."
    )
    table = records(
        {
            "pair": pair["id"],
            "wanted first": ", ".join(pair["first"]) or "nothing",
            "right": "yes" if outcome.right else "**no**",
            "said first": outcome.said,
            "named though harmless": ", ".join(outcome.named),
            "missing": ", ".join(outcome.missed),
        }
        for pair, outcome in outcomes
    )
    return [f"## Pairs, {half} half", says, table]


if __name__ == "__main__":
    main()
