"""The runs of a trial: each is one way to run the job once, written to ``trial.json`` as it ends.

A trial decides what to run next from the seed and the outcomes so far. So after a kill it is begun anew, and outcomes
that are on disk take the place of runs, in their order.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from trueline.schema.errors import InputError
from trueline.schema.text.documents import finite
from trueline.trials.frame.chance import Counts
from trueline.trials.frame.same_fault import Outcome
from trueline.trials.frame.trial import SCHEMA, Arm, TrialAnswer, Undecided

FILE = "trial.json"
FAILURES = 3
"""Runs of an arm, none of which tells anything, after which the job is not run any more."""
_RUN = re.compile(r"\bRUN\b")


@dataclass(frozen=True)
class Way:
    """One way to run the job: what its environment has besides, another command line (None: as it was given), what is
    changed in its processes (``capture.trial.changes``), and where it runs (None: here). ``arm`` is what it counts for.
    """

    arm: str
    environ: Mapping[str, str] = field(default_factory=dict[str, str])
    words: Sequence[str] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    folder: Path | None = None


class Runner(Protocol):
    """Runs the job one way, with what it leaves in an empty ``place``."""

    job: Any
    """A ``Job``, whose ``end`` ends all runs."""

    def __call__(self, way: Way, place: Path) -> Outcome:
        """Raises ``OSError`` where the command cannot be started."""
        ...


class OutOfRuns(Undecided):
    """No run is left of the ``most`` that were allowed."""

    def __init__(self, most: int) -> None:
        runs = f"All {most} runs that were allowed were made."
        super().__init__(runs, "Go on with the same command and a larger --runs.")


class JobFails(Undecided):
    """The job does not come to an outcome in ``arm``: ``why``, of its last run, and what to do."""

    def __init__(self, why: str, *then: str, arm: str = "") -> None:
        super().__init__(f"The job comes to no outcome: {why}.", *then)
        self.why, self.arm = why, arm


@dataclass
class Runs:
    """Runs ``runner`` at most ``most`` times, in ``folder``. ``asked`` is what decides about the trial: only a trial
    that was asked the same goes on with what is there. ``progress`` is told what is run now and the number of runs. The
    rule needs outcomes only, so of runs alike what the first left is kept, unless ``keeps_all``. ``about`` is the path
    of the Run that a trial is about: commands of an answer that say RUN mean that one.
    """

    trial: str
    folder: Path
    runner: Runner
    asked: Mapping[str, Any]
    most: int = 200
    progress: Callable[[str, int], None] = lambda arm, runs: None
    keeps_all: bool = False
    about: str = ""
    log: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _known: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _begun: bool = False

    def begin(self) -> None:
        """Take up what is there. Raises ``InputError`` where that is another trial."""
        if self._begun:
            return
        self._begun = True
        path = self.folder / FILE
        if not path.exists():
            if self.folder.exists() and any(self.folder.iterdir()):
                raise InputError(f"'{self.folder}' holds something that is no trial. Pass another --out.")
            self._write({})
            return
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            known, asked = document["log"], document["asked"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"'{path}' cannot be read as a trial: {error}. Pass another --out.") from None
        if document.get("trial") != self.trial or asked != _plain(self.asked):
            raise InputError(
                f"'{self.folder}' holds a trial that was asked something else (trial {document.get('trial')}). Pass "
                "another --out, or the same command and options to go on with it."
            )
        self._known = known

    def outcome(self, way: Way) -> bool | None:
        """Whether a run showed the finding; None where it told nothing. Raises ``OutOfRuns``, ``JobFails``, and
        ``InputError`` where another trial is in the folder.
        """
        self.begin()
        entry = self._again(way.arm) if len(self.log) < len(self._known) else self._new(way, len(self.log))
        self.log.append(entry)
        self._write({})
        self._require_told(way.arm)
        return entry["showed"]

    def _require_told(self, arm: str) -> None:
        told = [each["showed"] is not None for each in self.log if each["arm"] == arm]
        if len(told) >= FAILURES and not any(told):
            last = next(each for each in reversed(self.log) if each["arm"] == arm)
            command = shlex.join(self.asked.get("command", ()))
            then = last.get("then") or f"See what it prints by itself{f': {command}' if command else ''}."
            raise JobFails(last["why"], then, arm=arm)

    def outcomes(self, ways: Sequence[Way], *, at_once: int) -> list[bool | None]:
        """Those of several runs, ``at_once`` of which take place together; else as ``outcome`` of each. Where it is
        interrupted all that run are ended, and none of them counts.
        """
        found: list[bool | None] = []
        while len(found) < len(ways):
            self.begin()
            chunk = ways[len(found) : len(found) + at_once]
            room = self.most - len(self.log)
            if at_once == 1 or len(self.log) < len(self._known) or room < 2:
                found.append(self.outcome(chunk[0]))
                continue
            made = self._together(chunk[:room])
            self.log += made
            self._write({})
            found += [entry["showed"] for entry in made]
            for arm in {way.arm for way in chunk}:
                self._require_told(arm)
        return found

    def _together(self, ways: Sequence[Way]) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(len(ways)) as pool:
            running = [pool.submit(self._new, way, len(self.log) + place) for place, way in enumerate(ways)]
            try:
                return [each.result() for each in running]
            except BaseException:
                self.runner.job.end()  # and so the threads
                raise

    def counts(self, *arms: str) -> Counts:
        """Of all runs of these arms that told something."""
        told = [entry["showed"] for entry in self.log if entry["arm"] in arms and entry["showed"] is not None]
        return Counts(len(told), sum(told))

    @property
    def arms(self) -> tuple[Arm, ...]:
        """In the order of their first run."""
        names = dict.fromkeys(entry["arm"] for entry in self.log)
        every = {name: [entry for entry in self.log if entry["arm"] == name] for name in names}
        return tuple(Arm(name, len(of), sum(entry["showed"] is True for entry in of)) for name, of in every.items())

    @property
    def seconds(self) -> float:
        """That all runs took."""
        return sum(entry["seconds"] for entry in self.log)

    def last_why(self) -> str:
        """Why the last run that told nothing did not."""
        return next((entry["why"] for entry in reversed(self.log) if entry["showed"] is None), "")

    def end(self, answer: TrialAnswer) -> TrialAnswer:
        """Write the answer, with commands that can be run as they are."""
        if self.about:
            answer = replace(answer, next=tuple(_RUN.sub(shlex.quote(self.about), line) for line in answer.next))
        self._write(answer.to_json())
        return answer

    def _again(self, arm: str) -> dict[str, Any]:
        entry = self._known[len(self.log)]
        if entry["arm"] != arm:
            raise InputError(
                f"Run {len(self.log)} of the trial in '{self.folder}' was '{entry['arm']}', where this version would "
                f"run '{arm}'. Pass another --out."
            )
        return entry

    def _new(self, way: Way, number: int) -> dict[str, Any]:
        if number >= self.most:
            raise OutOfRuns(self.most)
        self.progress(way.arm, number)
        place = self.folder / f"{number:03d}-{_as_file(way.arm)}"
        _remove(place)
        place.mkdir(parents=True)
        began = time.monotonic()
        outcome = self.runner(way, place)
        seconds = round(time.monotonic() - began, 3)
        if not self.keeps_all and any(_alike(entry, way.arm, outcome) for entry in self.log):
            _remove(place)
        return {"arm": way.arm, **asdict(outcome), "seconds": seconds, "place": place.name if place.exists() else ""}

    def _write(self, answer: Mapping[str, Any]) -> None:
        """All of it, in place of what was there: a reader, or a trial that goes on, sees one or the other."""
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.log if len(self.log) >= len(self._known) else self._known
        document = {"schema": SCHEMA, "trial": self.trial, **answer, "asked": _plain(self.asked), "log": log}
        part = self.folder / f"{FILE}.part"
        with part.open("w", encoding="utf-8") as file:
            json.dump(finite(document), file, allow_nan=False, ensure_ascii=False, indent=1)
            file.flush()
            os.fsync(file.fileno())
        part.replace(self.folder / FILE)


def _alike(entry: Mapping[str, Any], arm: str, outcome: Outcome) -> bool:
    """Whether what an earlier run left stands for that of another with this outcome."""
    return entry["place"] and entry["showed"] == outcome.showed and _kind(entry["arm"]) == _kind(arm)


def _kind(arm: str) -> str:
    """Of the arm ``off: a, b`` it is ``off``."""
    return arm.partition(":")[0]


def _as_file(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)[:60].strip("-")


def _remove(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)


def _plain(value: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(value))
