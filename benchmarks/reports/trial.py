"""A report's job and its repaired twin under ``trueline run --plan laws``, and what the first screen says of each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.reports.catalogue import PLACE, Report, said_of

TIMEOUT_S = 900.0
ACCUSING = ("error", "warning")


@dataclass(frozen=True)
class Programs:
    """What is started: an interpreter and a ``trueline``."""

    python: Sequence[str] = (sys.executable,)
    trueline: Sequence[str] = (sys.executable, "-m", "trueline")


@dataclass(frozen=True)
class Screen:
    """The first screen of ``trueline check`` of one Run."""

    exit_code: int
    verdict: str
    accused: list[str] = field(default_factory=list)
    """Of each incident its title, then the claims of its findings."""
    to_confirm: list[str] = field(default_factory=list)
    """Claims."""
    causes: list[str] = field(default_factory=list)
    """What `diagnose` says of each incident."""
    facts: list[str] = field(default_factory=list)
    """Sentences of what the training did, which are on no first screen."""
    broke: str = ""
    """How the job or a command failed."""

    @property
    def lines(self) -> list[str]:
        """All that a person reads there of what is wrong or to confirm."""
        return [self.verdict, *self.accused, *self.to_confirm]

    @property
    def first(self) -> str:
        """The line that a person reads first."""
        return (self.accused or self.to_confirm or [self.broke or self.verdict])[0]


@dataclass(frozen=True)
class Tried:
    """Both screens of one report."""

    id: str
    half: str
    fault: Screen
    twin: Screen
    said: list[str]
    """Lines of the first screen from which a reader knows the fault; empty: it is not said."""
    facts: list[str] = field(default_factory=list)
    """Those of `trueline facts` from which a reader would know it."""

    @property
    def accused_otherwise(self) -> bool:
        """True if errors or warnings about the faulty job are there, and none says it."""
        return bool(self.fault.accused) and not set(self.said) & {self.fault.verdict, *self.fault.accused}

    @property
    def twin_accused(self) -> bool:
        return self.twin.exit_code == 1

    @property
    def wrong_lines(self) -> list[str]:
        """All that the twin is accused of, or is to confirm."""
        return [*self.twin.accused, *self.twin.to_confirm]


def screen_of(document: dict[str, Any], *, exit_code: int, causes: Sequence[str] = ()) -> Screen:
    """The first screen, from what ``check --json`` prints."""
    findings = document["findings"]
    accused = []
    for incident in document["incidents"]:
        claims = [findings[place]["claim"] for place in incident["findings"]]
        accused += [incident["title"], *claims]
    accused += [finding["claim"] for finding in findings if finding["severity"] in ACCUSING]
    return Screen(
        exit_code=exit_code,
        verdict=document["verdict"],
        accused=list(dict.fromkeys(accused)),
        to_confirm=[finding["claim"] for finding in findings if finding["severity"] == "confirm"],
        causes=list(causes),
        facts=[fact["text"] for fact in document.get("facts", ())],
    )


def tried(report: Report, out: Path, programs: Programs) -> Tried:
    """What is said of the job of ``report`` and of its twin; they run below ``out``, which is emptied."""
    fault, twin = (_screen(report, out / report.id / name, programs, fix=name == "twin") for name in ("fault", "twin"))
    return Tried(report.id, report.half, fault, twin, said_of(report, fault.lines), said_of(report, fault.facts))


def bare(report: Report, out: Path, programs: Programs) -> str:
    """'' where the job shows its mechanism unwatched and the twin does not, or what is wrong."""
    printed = []
    for fix in (False, True):
        folder = _emptied(out / report.id / ("bare-twin" if fix else "bare"))
        text = ""
        for start in range(report.starts):
            done = _done(_job(report, start, programs, fix=fix), folder)
            if done.returncode:
                return f"{'twin' if fix else 'job'}: exit code {done.returncode}: {done.stderr[-600:]}"
            text += done.stdout + done.stderr
        printed.append(text)
    if report.shows and report.shows not in printed[0]:
        return f"the job does not print '{report.shows}'"
    return f"the twin prints '{report.shows}', too" if report.shows and report.shows in printed[1] else ""


def _screen(report: Report, folder: Path, programs: Programs, *, fix: bool) -> Screen:
    _emptied(folder)
    for start in range(report.starts):
        again = ["--resume"] if start else []
        watching = [*programs.trueline, "run", "--plan", "laws", "--out", "run", *again, "--"]
        done = _done([*watching, *_job(report, start, programs, fix=fix)], folder)
        if done.returncode:
            return Screen(-1, "", broke=f"the job ended with exit code {done.returncode}: {done.stderr[-600:]}")
    check = _done([*programs.trueline, "check", "run", "--json"], folder)
    try:
        document = json.loads(check.stdout)
    except ValueError:
        return Screen(-1, "", broke=f"check ended with exit code {check.returncode}: {check.stderr[-600:]}")
    causes = []
    if document["incidents"]:
        diagnosis = json.loads(_done([*programs.trueline, "diagnose", "run", "--json"], folder).stdout)
        causes = [verdict["says"] for verdict in diagnosis["verdicts"]]
    return screen_of(document, exit_code=check.returncode, causes=causes)


def _job(report: Report, start: int, programs: Programs, *, fix: bool) -> list[str]:
    words = [*programs.python, str(PLACE / report.script), *report.arguments[start], *["--fix"] * fix]
    if report.ranks == 1:
        return words
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(report.ranks), "--no-python"]
    return [*programs.python, *launcher, *words]


def _done(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    try:
        return subprocess.run(
            words, cwd=folder, env=environ, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, -1, "", f"not done after {TIMEOUT_S:.0f} s")


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
