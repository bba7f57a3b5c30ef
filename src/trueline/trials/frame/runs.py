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

    def __call__(self, way: Way, run_folder: Path) -> Outcome:
        """Raises ``OSError`` where the command cannot be started."""
        ...


class OutOfRuns(Undecided):
    """No run is left of the ``max_runs`` that were allowed."""

    def __init__(self, max_runs: int) -> None:
        runs = f"All {max_runs} runs that were allowed were made."
        super().__init__(runs, "Go on with the same command and a larger --runs.")


class JobFails(Undecided):
    """The job does not come to an outcome in ``arm``: ``why``, of its last run, and what to do."""

    def __init__(self, why: str, *then: str, arm: str = "") -> None:
        super().__init__(f"The job comes to no outcome: {why}.", *then)
        self.why, self.arm = why, arm


@dataclass
class Runs:
    """Runs ``runner`` at most ``max_runs`` times, in ``folder``. ``request`` is what decides about the trial: only a
    trial that was asked the same goes on with what is there. ``progress`` is told what is run now and the number of
    runs. The rule needs outcomes only, so of runs alike what the first left is kept, unless ``keeps_all``. ``about`` is
    the path of the Run that a trial is about: commands of an answer that say RUN mean that one.
    """

    trial: str
    folder: Path
    runner: Runner
    request: Mapping[str, Any]
    max_runs: int = 200
    progress: Callable[[str, int], None] = lambda arm, runs: None
    keeps_all: bool = False
    about: str = ""
    log: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _stored_log: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    _log_texts: list[str] = field(default_factory=list[str])
    _has_begun: bool = False

    def begin(self) -> None:
        """Take up what is there. Raises ``InputError`` where that is another trial."""
        if self._has_begun:
            return
        self._has_begun = True
        path = self.folder / FILE
        if not path.exists():
            if self.folder.exists() and any(self.folder.iterdir()):
                raise InputError(f"'{self.folder}' holds something that is no trial. Pass another --out.")
            self._write({})
            return
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
            stored_log, request = document["log"], document["asked"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(f"'{path}' cannot be read as a trial: {error}. Pass another --out.") from None
        if document.get("trial") != self.trial or request != _plain(self.request):
            raise InputError(
                f"'{self.folder}' holds a trial that was asked something else (trial {document.get('trial')}). Pass "
                "another --out, or the same command and options to go on with it."
            )
        self._stored_log = stored_log

    def outcome(self, way: Way) -> bool | None:
        """Return whether a run showed the finding; None where it told nothing. Raises ``OutOfRuns``, ``JobFails``, and
        ``InputError`` where another trial is in the folder.
        """
        self.begin()
        # after a kill the rule is replayed: outcomes on disk take the place of runs, in their order
        entry = self._again(way.arm) if len(self.log) < len(self._stored_log) else self._new(way, len(self.log))
        self.log.append(entry)
        self._write({})
        self._require_told(way.arm)
        return entry["showed"]

    def entry_with_outcome(self, way: Way) -> Mapping[str, Any]:
        """The entry of a run that told something, after as many as that takes; raises as ``outcome`` does."""
        while self.outcome(way) is None:
            continue  # it raises ``JobFails`` in the end
        return self.log[-1]

    def _require_told(self, arm: str) -> None:
        is_told = [entry["showed"] is not None for entry in self.log if entry["arm"] == arm]
        # an arm that told something once may fail by chance; one that never did, will go on so
        if len(is_told) >= FAILURES and not any(is_told):
            last = next(entry for entry in reversed(self.log) if entry["arm"] == arm)
            command = shlex.join(self.request.get("command", ()))
            then = last.get("then") or f"See what it prints by itself{f': {command}' if command else ''}."
            raise JobFails(last["why"], then, arm=arm)

    def outcomes(self, ways: Sequence[Way], *, at_once: int) -> list[bool | None]:
        """The outcomes of several runs, ``at_once`` of which take place together; else as ``outcome`` of each. Where it
        is interrupted all that run are ended, and none of them counts.
        """
        outcomes: list[bool | None] = []
        while len(outcomes) < len(ways):
            self.begin()
            chunk = ways[len(outcomes) : len(outcomes) + at_once]
            room = self.max_runs - len(self.log)
            # runs on disk and the last run left go one by one: their order and their limit are then certain
            if at_once == 1 or len(self.log) < len(self._stored_log) or room < 2:
                outcomes.append(self.outcome(chunk[0]))
                continue
            entries = self._together(chunk[:room])
            self.log += entries
            self._write({})
            outcomes += [entry["showed"] for entry in entries]
            # after the log is written: what the runs left is kept, whatever is raised here
            for arm in {way.arm for way in chunk}:
                self._require_told(arm)
        return outcomes

    def _together(self, ways: Sequence[Way]) -> list[dict[str, Any]]:
        with ThreadPoolExecutor(len(ways)) as pool:
            futures = [pool.submit(self._new, way, len(self.log) + offset) for offset, way in enumerate(ways)]
            try:
                return [future.result() for future in futures]
            except BaseException:
                self.runner.job.end()  # and so the threads
                raise

    def counts(self, *arms: str) -> Counts:
        """Count the runs of these arms that told something."""
        outcomes = [entry["showed"] for entry in self.log if entry["arm"] in arms and entry["showed"] is not None]
        return Counts(len(outcomes), sum(outcomes))

    @property
    def arms(self) -> tuple[Arm, ...]:
        """In the order of their first run."""
        return self.arms_by(lambda _, entries: sum(entry["showed"] is True for entry in entries))

    def arms_by(self, num_showed: Callable[[str, Sequence[Mapping[str, Any]]], int]) -> tuple[Arm, ...]:
        """Arms in the order of their first run; ``num_showed`` of an arm and its entries is in how many of these it
        showed what the trial is about.
        """
        names = dict.fromkeys(entry["arm"] for entry in self.log)
        entries_by_arm = {name: [entry for entry in self.log if entry["arm"] == name] for name in names}
        return tuple(Arm(name, len(entries), num_showed(name, entries)) for name, entries in entries_by_arm.items())

    @property
    def seconds(self) -> float:
        """Seconds that all runs took."""
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
        entry = self._stored_log[len(self.log)]
        if entry["arm"] != arm:
            raise InputError(
                f"Run {len(self.log)} of the trial in '{self.folder}' was '{entry['arm']}', where this version would "
                f"run '{arm}'. Pass another --out."
            )
        return entry

    def _new(self, way: Way, number: int) -> dict[str, Any]:
        if number >= self.max_runs:
            raise OutOfRuns(self.max_runs)
        self.progress(way.arm, number)
        run_folder = self.folder / f"{number:03d}-{_as_file(way.arm)}"
        # a run that was killed left a part of itself here
        _remove(run_folder)
        run_folder.mkdir(parents=True)
        began = time.monotonic()
        outcome = self.runner(way, run_folder)
        seconds = round(time.monotonic() - began, 3)
        # a Run may be gigabytes, and a trial has hundreds
        if not self.keeps_all and any(_alike(entry, way.arm, outcome) for entry in self.log):
            _remove(run_folder)
        return {
            "arm": way.arm,
            **asdict(outcome),
            "seconds": seconds,
            "place": run_folder.name if run_folder.exists() else "",
        }

    def _write(self, answer: Mapping[str, Any]) -> None:
        """Write the whole document in place of what was there: a reader, or a trial that goes on, sees one or the
        other. Of the log, which only grows, each entry is put into words once.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.log if len(self.log) >= len(self._stored_log) else self._stored_log
        self._log_texts += [_text(entry).replace("\n", "\n  ") for entry in log[len(self._log_texts) :]]
        entries = ",\n  ".join(self._log_texts)
        head = _text({"schema": SCHEMA, "trial": self.trial, **answer, "asked": _plain(self.request)})
        part = self.folder / f"{FILE}.part"
        with part.open("w", encoding="utf-8") as file:
            file.write(head.removesuffix("\n}") + (f',\n "log": [\n  {entries}\n ]\n}}' if log else ',\n "log": []\n}'))
            file.flush()
            # else a machine that goes down may leave the new name with an empty file
            os.fsync(file.fileno())
        part.replace(self.folder / FILE)


def _text(value: Mapping[str, Any]) -> str:
    return json.dumps(finite(value), allow_nan=False, ensure_ascii=False, indent=1)


def _alike(entry: Mapping[str, Any], arm: str, outcome: Outcome) -> bool:
    """Return whether what an earlier run left stands for that of another with this outcome."""
    return entry["place"] and entry["showed"] == outcome.showed and _kind(entry["arm"]) == _kind(arm)


def _kind(arm: str) -> str:
    """The part of an arm's name before the colon: ``off`` of ``off: a, b``."""
    return arm.partition(":")[0]


def _as_file(name: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in name)[:60].strip("-")


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def _plain(request: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(request))
