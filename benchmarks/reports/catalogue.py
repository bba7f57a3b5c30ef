"""The log: one file of log/ a report, written down before anything was tried on it."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

PLACE = Path(__file__).parent
HALVES = ("open", "held")
PEER = "traincheck"
"""The set of reports that another tool was evaluated on. They are of no half: no digest chooses them."""
SECOND = "second"
"""The set of reports that were written down after the held half had been tried, and before what it missed was built."""
THIRD = "third"
"""The set of reports that were written down by somebody who knew no law, and looked at after ``SECOND`` was open."""
SETS = (PEER, SECOND, THIRD)
PEER_REPORTS = tuple(
    f"traincheck-{name}"
    for name in (
        "baichuan2-86", "deepspeed-1801", "deepspeed-5794", "lightning-thunder-725", "mmpretrain-702", "pytorch-51800",
        "pytorch-84803", "pytorch-96600", "pytorch-104336", "pytorch-115607", "pytorch-forum-84911",
        "stackoverflow-60335387", "stackoverflow-67180955", "transformers-17877", "transformers-23723",
        "transformers-33844", "transformers-34204", "x-jxmnop-ddp-out-of-sync",
    )
)  # fmt: skip
"""The 18 silent errors that TrainCheck (OSDI '25) names as detected, in its order; five are of a half."""


@dataclass(frozen=True)
class Report:
    """What a person reported, a job of our own that has its mechanism, and what a good first screen would say of it."""

    id: str
    title: str
    url: str
    """Of the public issue, thread or page."""
    seen: str
    """By the person."""
    mechanism: str
    script: str
    """The job, below this directory; with ``--fix`` it is the repaired twin."""
    ranks: int
    starts: int
    arguments: list[list[str]]
    """Of each start."""
    good: str
    """The line of a good first screen, in prose."""
    words: list[list[str]]
    """Regular expressions, whatever the case: of each list one must occur in one and the same line."""
    shows: str = ""
    """What the faulty job prints and its twin does not, where nobody watches."""
    set: str = ""
    """One of ``SETS``, or '' for a report of a half."""

    @property
    def half(self) -> str:
        """Which of ``HALVES`` it is of, or its set."""
        return self.set or half(self.id)


@dataclass(frozen=True)
class Peer:
    """What `traincheck.toml` keeps of the set ``PEER`` beside its reports."""

    commit: str
    """At which the set was tried first."""
    tried: int
    said: list[str]
    """Ids of those that were said then."""
    not_looked_at: dict[str, str]
    """Of each that is not said, what would have to be looked at and is not."""


def peer(place: Path = PLACE) -> Peer:
    """What is kept of the set ``PEER``."""
    return Peer(**tomllib.loads((place / f"{PEER}.toml").read_text(encoding="utf-8")))


def half(name: str) -> str:
    """One of ``HALVES``: held where the last digit of the SHA-256 of ``name`` is odd."""
    return HALVES[int(hashlib.sha256(name.encode()).hexdigest()[-1], 16) % 2]


def catalogue(place: Path = PLACE) -> list[Report]:
    """All reports, by their id."""
    return [_report(file) for file in sorted((place / "log").glob("*.toml"))]


def wrong(report: Report, *, place: Path = PLACE) -> Iterator[str]:
    """What is not as it must be in ``report``."""
    if not (place / report.script).is_file():
        yield f"there is no {report.script}"
    if not report.url.startswith("https://"):
        yield f"the source is '{report.url}'"
    if report.ranks not in (1, 2) or report.starts not in (1, 2) or len(report.arguments) != report.starts:
        yield f"{report.ranks} ranks, {report.starts} starts, arguments of {len(report.arguments)}"
    if report.set not in ("", *SETS):
        yield f"the set is '{report.set}'"
    if not report.words or not all(report.words):
        yield "no words"
    broken = [f"'{word}': {error}" for words in report.words for word in words if (error := _error(word))]
    yield from broken
    if not broken and not said_of(report, [report.good]):
        yield "the words do not occur in the good line"


def said_of(report: Report, lines: list[str]) -> list[str]:
    """Those of ``lines`` that have a word of each list."""
    return [
        line
        for line in lines
        if all(any(re.search(word, line, re.IGNORECASE) for word in group) for group in report.words)
    ]


def _error(word: str) -> str:
    try:
        re.compile(word)
    except re.error as error:
        return str(error)
    return ""


def _report(file: Path) -> Report:
    values: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
    known = {field.name for field in fields(Report)}
    unknown = sorted(values.keys() - known - {"half"})
    if unknown or values.get("id") != file.stem:
        raise ValueError(f"{file.name}: id '{values.get('id')}', unknown keys {unknown}")
    return Report(**{name: value for name, value in values.items() if name in known})
