"""Waits until a Run shows something: a finding, a step, its end; on a place, too, where no Run has begun."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

from trueline.judge.actions import Action, actions_of
from trueline.judge.check_run import CheckReport, check
from trueline.judge.compared_ranks import written_by_all
from trueline.judge.rank_endings import has_ended
from trueline.schema.errors import InputError, NoRunYet, RunError
from trueline.schema.judged import EXIT_CODES, FOR_PROGRAMS
from trueline.schema.text.words import counted
from trueline.store.log.part_files import PartFiles
from trueline.store.reader import Run

SCHEMA = 1
"""Version of the document that ``Awaited.to_json`` makes; raised when a field changes meaning."""
LEAST_REST_S = 2.0
"""Seconds between two looks at least."""
REST = 9
"""Times that a look took, for which the next one waits at least: a tenth of one core at most."""

Kind = Literal["finding", "confirm", "end", "step"]
Stop = Literal["reached", "ended", "timeout"]


@dataclass(frozen=True, slots=True)
class Until:
    """What is waited for; ``step`` is the one that every rank is to have written."""

    kind: Kind
    step: int = 0

    @classmethod
    def parse(cls, text: str) -> Until:
        """Of ``finding``, ``confirm``, ``end`` or ``step:N``. Raises ``InputError``."""
        match = re.fullmatch(r"(finding|confirm|end)|step:(\d{1,18})", text)
        if match is None:
            raise InputError(f"'{text}' cannot be waited for. Take finding, confirm, end, or step:N, as step:200.")
        return cls("step", int(match[2])) if match[2] else cls(cast(Kind, match[1]))

    def __str__(self) -> str:
        return f"step:{self.step}" if self.kind == "step" else self.kind

    @property
    def words(self) -> str:
        """What it is, in a sentence."""
        return {
            "finding": "an error or a warning",
            "confirm": "anything to confirm",
            "end": "the end of the job",
            "step": f"step {self.step}",
        }[self.kind]

    def holds(self, report: CheckReport, *, written: int, ended: bool) -> bool:
        """Whether it is there, where every rank has written the steps up to ``written``."""
        if self.kind == "step":
            return written >= self.step
        if self.kind == "end":
            return ended
        return report.has_incidents or (self.kind == "confirm" and bool(report.to_confirm))


@dataclass(frozen=True)
class Awaited:
    """What came of waiting: ``report`` is None where no Run came. ``why_unread`` says why the last look failed."""

    run: str
    until: Until
    stop: Stop
    waited_s: float
    ended: bool
    report: CheckReport | None
    why_unread: str = ""

    @property
    def is_judged(self) -> bool:
        """Whether "nothing found" may be said: what was waited for is there, or the job has ended before a finding."""
        if self.report is None or self.stop == "timeout":
            return False
        return self.stop == "reached" or self.until.kind in ("finding", "confirm")

    @property
    def exit_code(self) -> int:
        """1 an error or a warning is there, and what is to confirm where that was waited for; 0 nothing, and enough was
        judged; 3 neither: time is over, the job ended before the step, or too little was judged.
        """
        if self.report is not None and self.report.has_incidents:
            return 1
        if not self.is_judged or self.report is None:
            return 3
        is_found = self.until.kind == "confirm" and bool(self.report.to_confirm)
        return 1 if is_found else EXIT_CODES[self.report.verdict.status]

    @property
    def status(self) -> str:
        """As in the document of a check; ``cannot-tell`` where what was waited for did not come, and nothing else."""
        is_told = self.report is not None and (self.is_judged or self.report.has_incidents)
        return self.report.verdict.for_programs if self.report is not None and is_told else FOR_PROGRAMS["unknown"]

    @property
    def actions(self) -> tuple[Action, ...]:
        """What to do next: where time is over with nothing found, to wait again."""
        of_report = () if self.report is None else self.report.actions
        if self.stop != "timeout" or self.exit_code == 1:
            return of_report
        again = f"trueline wait {shlex.quote(self.run)} --until {self.until}"
        return actions_of([f"Wait again, for as long as that may take: `{again}`."])

    @property
    def verdict(self) -> str:
        """One sentence, or two where what was waited for did not come."""
        if self.report is not None and (self.is_judged or self.report.has_incidents):
            return self.report.verdict.line
        if self.report is None:
            why = f" ({self.why_unread})" if self.why_unread else ""
            return f"Cannot tell: no Run began at '{self.run}' in {self.waited_s:.0f} s{why}."
        at_step = f"after {counted(self.report.judged.num_steps, 'step')}"
        if self.stop == "ended":
            return f"Cannot tell: the job ended {at_step}, before {self.until.words}."
        going_on = "has ended" if self.ended else "may still be running"
        return f"Cannot tell: {self.until.words} did not come in {self.waited_s:.0f} s; the job {going_on}, {at_step}."

    def to_json(self) -> dict[str, Any]:
        """The document of the outside contract."""
        report = self.report
        judged = None if report is None else report.judged
        return {
            "schema": SCHEMA,
            "run": self.run,
            "until": str(self.until),
            "reached": self.stop == "reached",
            "stop": self.stop,
            "status": self.status,
            "exit_code": self.exit_code,
            "verdict": self.verdict,
            "cause": None if report is None else report.cause_named,
            "ended": self.ended,
            "num_steps": 0 if judged is None else judged.num_steps,
            "step_last": None if judged is None or judged.steps is None else judged.steps[1],
            "waited_s": round(self.waited_s, 1),
            "actions": [action.to_json() for action in self.actions],
            "findings": [] if report is None else _briefly(report),
        }


def _briefly(report: CheckReport) -> list[dict[str, Any]]:
    """Of what was found, and is to confirm, what it takes to decide what to read next."""
    keys = ("code", "severity", "claim", "ranks", "step_first", "where")
    return [
        {"id": name} | {key: finding.to_json()[key] for key in keys}
        for name, finding in zip(report.ids, report.findings, strict=True)
        if finding.is_grave or finding.severity == "confirm"
    ]


def wait_for(
    path: str,
    until: Until,
    *,
    timeout_s: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Awaited:
    """Look at the Run at ``path``, where none need be yet, again and again until something holds, the job has ended, or
    ``timeout_s`` have passed. Raises ``RunError`` for a place where no Run can come, or which cannot be reached.
    """
    begin = clock()
    looks = _Looks(path, until)
    while True:
        looked = clock()
        stop = looks.look()
        waited_s, took_s = clock() - begin, clock() - looked
        if stop is None and waited_s >= timeout_s:
            stop = "timeout"
        if stop is not None:
            return Awaited(path, until, stop, waited_s, looks.ended, looks.report, looks.why_unread)
        sleep(min(max(LEAST_REST_S, REST * took_s), timeout_s - waited_s))


class _Looks:
    """Looks at one place; ``report`` is on the steps that every rank had written by the last of them."""

    def __init__(self, path: str, until: Until) -> None:
        self._path, self._until = path, until
        self._parts: PartFiles | None = None
        self._size: tuple[int, int] | None = None
        self._num_looks = 0
        self.report: CheckReport | None = None
        self.ended = False
        self.why_unread = ""

    def look(self) -> Stop | None:
        """Why waiting is over; None where it is not. What cannot be read at the first look is an error, at a later one
        it may come again.
        """
        self._num_looks += 1
        try:
            return self._look()
        except NoRunYet:
            return None
        except RunError as error:
            if self._num_looks == 1:
                raise
            self.why_unread = str(error).rstrip(".")
            return None

    def _look(self) -> Stop | None:
        run = Run(self._path, parts=self._parts)
        self._parts, self.why_unread = run.parts, ""
        self.ended = has_ended(run) and all(has_ended(Run(group)) for group in run.groups)
        written = int(run.steps[-1]) if self.ended and run.steps.size else written_by_all(run)
        size = sum(run.num_rows(before=sys.maxsize).values()), len(run.live_findings)
        if self.report is None or size != self._size or self.ended:
            self._size = size
            self.report = check(run if self.ended else run.before(written + 1))
        if self._until.holds(self.report, written=written, ended=self.ended):
            return "reached"
        return "ended" if self.ended else None
