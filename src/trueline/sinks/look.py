"""Judges a Run while it is written: each look reports what no look before did."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trueline.judge.check_run import check
from trueline.judge.clean_steps import clean_of
from trueline.judge.compared_ranks import written_by_all
from trueline.schema.errors import RunError
from trueline.schema.finding import Finding
from trueline.schema.live import Numbers
from trueline.schema.text.reading import why
from trueline.sinks.series import Series
from trueline.store.clean import Clean
from trueline.store.log.part_files import PartFiles
from trueline.store.reader import Run


@dataclass(frozen=True)
class News:
    """What one look adds. ``ended`` says that every rank has closed the Run, ``clean`` up to which step it is known to
    be clean, None where this look judged nothing.
    """

    numbers: tuple[Numbers, ...] = ()
    findings: tuple[Finding, ...] = ()
    ended: bool = False
    clean: Clean | None = None

    @property
    def last_clean_step(self) -> int | None:
        """The last step before all that the Run shows (see ``FindingVerdict``)."""
        return self.clean.step if self.clean is not None and self.clean.faults else None


class Looks:
    """Looks at the Run at ``path`` again and again. Of what was before step ``first``, where this start of the job
    began, nothing is reported again. ``say`` takes a sentence for people.
    """

    def __init__(self, path: str, *, first: int = 0, say: Callable[[str], None]) -> None:
        self._path, self._first, self._say = path, first, say
        self._series = Series(first)
        self._reported: set[tuple[str, str, tuple[int, ...], int]] = set()
        self._starts: list[int] = []
        self._parts: PartFiles | None = None
        self._size = -1
        self._complained = False

    def look(self, *, last: bool = False) -> News:
        """What is new. Steps that not every rank has written wait for the next look, but for the ``last``: a rank that
        is late would look like one that differs. A look that fails says so once, and the next one tries again.
        """
        try:
            run = Run(self._path, parts=self._parts)
            self._parts = run.parts
            size = len(run.column("step"))
            ended = bool(size) and not run.unclosed
            last = last or ended
            if size == self._size and not last:
                return News()
            self._size = size
            whole_to = int(run.steps[-1]) if last and run.steps.size else written_by_all(run)
            report = check(run if last else run.before(whole_to + 1))
            numbers = tuple(self._series.take_new(run, whole_to=whole_to))
            self._starts = [attempt.step for attempt in run.manifest.attempts]
            findings = tuple(filter(self._is_new, report.findings))
            return News(numbers, findings, ended, clean_of(report, run, whole_to))
        except RunError as error:
            if last:
                self._say(f"the Run could not be judged while it was written: {error}")
        except Exception as error:  # whatever a check raises, the job goes on, and so do the looks
            if last or not self._complained:
                self._complained = True
                self._say(f"a look at the Run failed ({type(error).__name__}: {why(error)}); the next one tries again.")
        return News()

    def _is_new(self, finding: Finding) -> bool:
        """True if it was not reported of these ranks, and is not of an earlier start of the job alone. What a later
        start shows again of its own steps is new.
        """
        if finding.step_last is not None and finding.step_last < self._first:
            return False
        start = sum(step <= (finding.step_first or 0) for step in self._starts)
        key = (finding.code, finding.severity, finding.ranks, start)
        new = key not in self._reported
        self._reported.add(key)
        return new
