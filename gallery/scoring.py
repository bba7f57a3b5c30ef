"""Runs every entry of the gallery under watch, judges its Run, and scores what was said."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gallery.entry import Control, Entry, Fault, Variant, num_ranks, train_on_rank
from gallery.independence import family_of, independent_fault
from trueline.demo.ranks import Ranks
from trueline.schema.errors import TruelineError
from trueline.schema.finding import Finding

if TYPE_CHECKING:
    from trueline.judge.causes.diagnosis import Diagnosis
    from trueline.judge.causes.verdicts import CauseVerdict

TIMEOUT_S = 120.0
"""For one run; the slowest, which compiles, takes tens of seconds on a cold cache."""

CauseFound = Literal["named", "abstained", "wrong", "none"]

Listener = Callable[["Score"], object]


@dataclass(frozen=True, slots=True)
class Score:
    """What the gallery says of one entry. For a control, everything but the alarms keeps its default.

    ``found`` are the codes of warnings and errors in the faulty run, ``missed`` those that had to be there and were
    not, ``unexpected`` those that are neither asked for nor a true consequence. ``delay_steps`` counts from the
    trigger to where the evidence of the Finding starts. ``alarms`` are the claims made of the healthy run.
    ``cause`` is the first that is named of the incident of the first of ``must_find``, and ``cause_found`` whether that
    is right, left open (undecided among several, or unknown), or wrong; ``probability`` is what it is given.
    ``failures`` are the runs that did not finish, by variant, with what every rank said.
    """

    id: str
    name: str
    kind: str
    world_size: int
    detected: bool = False
    localised: bool = False
    delay_steps: int | None = None
    found: tuple[str, ...] = ()
    missed: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    cause: str = ""
    cause_found: CauseFound = "none"
    probability: float = 0.0
    alarms: tuple[str, ...] = ()
    failures: Mapping[Variant, str] = field(default_factory=dict)

    @property
    def failed_healthy(self) -> bool:
        """Whether the healthy run did not finish, so that its silence means nothing."""
        return "healthy" in self.failures

    @property
    def green(self) -> bool:
        """Nothing is wrong with what was said."""
        found = self.kind == "control" or (self.detected and self.localised and not self.unexpected)
        return found and not self.alarms and not self.failures


@dataclass
class Stage:
    """A folder for the Runs, and one pool of ranks of one size at a time.

    ``explicit`` False drops the loops' own calls to the watch, as under ``trueline run``. ``again`` False judges the
    Runs that ``folder`` holds already as they are.
    """

    folder: Path
    explicit: bool = True
    again: bool = True
    _pool: Ranks | None = field(default=None, init=False)

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self._leave()

    def score(self, entry: Entry) -> Score:
        """Run ``entry`` (a fault twice: planted and healthy) and judge what is said of it."""
        failures: dict[Variant, str] = {}
        healthy = self._findings(entry, "healthy", failures)
        alarms = tuple(f"{finding.code}: {finding.claim}" for finding in healthy)
        if isinstance(entry, Control):
            return Score(entry.id, entry.name, "control", entry.world_size, alarms=alarms, failures=failures)
        try:
            found, diagnosis = self._diagnosed(entry)
        except TruelineError as error:
            return judge(entry, [], alarms, failures | {"faulty": str(error)})
        judged = judge(entry, [finding for finding in found if counts(entry, finding)], alarms, failures)
        answer = answer_on(entry, diagnosis)
        if answer is None:
            return judged
        return replace(
            judged, cause=answer.cause, cause_found=cause_found(entry, answer), probability=answer.probability
        )

    def run(self, entry: Entry, variant: Variant) -> list[Finding]:
        """The Findings on one run of ``entry``, ``info`` ones included: of ``trueline.check``, or of
        ``trueline.compare`` with the reference that it has.
        """
        out = self._train(entry, variant)
        if entry.reference is None:
            return findings_on(out)
        reference = self.folder / entry.id / "reference"
        return findings_on(out, reference if reference.exists() else self._train(entry, "reference"))

    def _diagnosed(self, fault: Fault) -> tuple[Sequence[Finding], Diagnosis]:
        """The Findings on the planted run of ``fault``, as of ``run``, and the diagnosis of it, which has those of
        ``trueline.check``.
        """
        import trueline

        if fault.reference is None:
            diagnosis = trueline.diagnose(self._train(fault, "faulty"))
            return diagnosis.report.findings, diagnosis
        found = self.run(fault, "faulty")
        folder = self.folder / fault.id
        return found, trueline.diagnose(folder / "faulty", ref=folder / "reference")

    def _train(self, entry: Entry, variant: Variant) -> Path:
        out = self.folder / entry.id / variant
        if not self.again and out.exists():
            return out
        self._pool_of(num_ranks(entry, variant)).run(train_on_rank, entry.id, variant, str(out), self.explicit)
        return out

    def _findings(self, entry: Entry, variant: Variant, failures: dict[Variant, str]) -> list[Finding]:
        try:
            return [finding for finding in self.run(entry, variant) if counts(entry, finding)]
        except TruelineError as error:
            failures[variant] = str(error)
            return []

    def _pool_of(self, world_size: int) -> Ranks:
        if self._pool is None or self._pool.world_size != world_size:
            self._leave()
            self._pool = Ranks(world_size, timeout_s=TIMEOUT_S)
        return self._pool

    def _leave(self) -> None:
        if self._pool is not None:
            self._pool.stop()
        self._pool = None


def findings_on(run: Path, reference: Path | None = None) -> list[Finding]:
    """The findings of ``trueline.check``, or of ``trueline.compare`` with ``reference``, ``info`` included."""
    import trueline

    if reference is None:
        return list(trueline.check(str(run)).findings)
    return list(trueline.compare(run, reference).findings)


def run_gallery(
    entries: Sequence[Entry], folder: Path, *, explicit: bool = True, again: bool = True, heard: Listener
) -> list[Score]:
    """The scores of ``entries`` in their order; ``heard`` is called with each as it comes. Runs stay in ``folder``;
    those that it holds are trained ``again`` unless that is False.
    """
    scores: dict[str, Score] = {}
    with Stage(folder, explicit, again) as stage:
        # One world size after the other, so that a pool is started once for each.
        for entry in sorted(entries, key=lambda entry: entry.world_size):
            scores[entry.id] = stage.score(entry)
            heard(scores[entry.id])
    return [scores[entry.id] for entry in entries]


def counts(entry: Entry, finding: Finding) -> bool:
    """True of errors and warnings, and of what is to confirm where the entry is of that very mistake."""
    wanted = entry.must_find if isinstance(entry, Fault) else ()
    is_wanted = any(finding.code in codes.split("|") for codes in wanted)
    return finding.is_grave or (finding.severity == "confirm" and is_wanted)


def judge(
    fault: Fault, found: Sequence[Finding], alarms: tuple[str, ...] = (), failures: Mapping[Variant, str] | None = None
) -> Score:
    """The Score of ``fault`` whose planted run has the warnings and errors ``found``."""
    codes = tuple(sorted({finding.code for finding in found}))
    missed = tuple(wanted for wanted in fault.must_find if not set(wanted.split("|")) & set(codes))
    expected = {code for wanted in (*fault.must_find, *fault.may_find) for code in wanted.split("|")}
    leading = [finding for finding in found if finding.code in fault.must_find[0].split("|")]
    firsts = [finding.step_first for finding in leading if finding.step_first is not None]
    return Score(
        id=fault.id,
        name=fault.name,
        kind="fault",
        world_size=fault.world_size,
        detected=not missed,
        localised=any(localises(fault, finding) for finding in leading),
        delay_steps=min(firsts) - fault.step if firsts else None,
        found=codes,
        missed=missed,
        unexpected=tuple(code for code in codes if code not in expected),
        claims=tuple(f"{finding.code}: {finding.claim}" for finding in found),
        alarms=alarms,
        failures=failures or {},
    )


def answer_on(fault: Fault, diagnosis: Diagnosis) -> CauseVerdict | None:
    """The first cause of the incident that has a finding of the first of ``must_find``; None where there is none."""
    report, wanted = diagnosis.report, fault.must_find[0].split("|")
    for place, incident in enumerate(report.incidents):
        if any(report.findings[each].code in wanted for each in incident.findings):
            return diagnosis.of(place)[0]
    return None


def cause_found(fault: Fault, answer: CauseVerdict | None) -> CauseFound:
    """Whether ``answer`` names the cause of ``fault``."""
    if answer is None:
        return "none"
    if answer.standing not in ("suspected", "supported"):
        return "abstained"
    return "named" if answer.cause in fault.causes else "wrong"


def localises(fault: Fault, finding: Finding) -> bool:
    """Whether ``finding`` names the ranks, the site, the size and the step of ``fault``, as far as it defines them."""
    at_ranks = fault.ranks is None or finding.ranks == fault.ranks
    at_site = not fault.site or any(fault.site in site for site in finding.sites)
    placed = at_ranks and at_site and _covers(finding, fault.truth)
    if fault.within is None:
        return placed
    first = finding.step_first
    return placed and first is not None and fault.step <= first <= fault.step + fault.within


def _covers(finding: Finding, truth: float | None) -> bool:
    if truth is None:
        return True
    low, high = finding.evidence.get("interval") or (math.nan, math.nan)
    return abs(truth - (low + high) / 2) <= high - low


def summary(scores: Sequence[Score]) -> dict[str, Any]:
    """The ``summary`` of the outside contract.

    ``faults`` counts independent ones: entries that differ only in rank, wrapper, time or size are variants of one,
    which is detected, localised or named where all of them are, and wrong where any is. ``controls`` counts healthy
    runs, the twins of faults among them; ``detected`` and ``localised`` are fractions of the faults (None without any),
    as are ``cause_named``, ``wrong_cause`` and ``abstained``; ``false_alarms`` are warnings and errors on healthy runs,
    ``failed`` runs that did not finish. ``wrong_cause_bound_95`` bounds the share of such faults with a wrong cause.
    """
    faults: dict[str, list[Score]] = {}
    for score in scores:
        if score.kind == "fault":
            faults.setdefault(independent_fault(score.id), []).append(score)
    variants = list(faults.values())
    causes = [_worst({score.cause_found for score in each}) for each in variants]
    return {
        "faults": len(faults),
        "controls": len(scores),
        "detected": _fraction([all(score.detected for score in each) for each in variants]),
        "localised": _fraction([all(score.localised for score in each) for each in variants]),
        "families": len({family_of(id) for id in faults}),
        "cause_named": _fraction([cause == "named" for cause in causes]),
        "wrong_cause": _fraction([cause == "wrong" for cause in causes]),
        "abstained": _fraction([cause == "abstained" for cause in causes]),
        "wrong_cause_bound_95": upper_bound(causes.count("wrong"), len(causes)) if causes else None,
        "false_alarms": sum(len(score.alarms) for score in scores),
        "failed": sum(len(score.failures) for score in scores),
    }


def _worst(causes: set[CauseFound]) -> CauseFound:
    order: tuple[CauseFound, ...] = ("wrong", "none", "abstained", "named")
    return next(cause for cause in order if cause in causes)


def _fraction(values: Sequence[bool]) -> float | None:
    return sum(values) / len(values) if values else None


def upper_bound(hits: int, total: int, confidence: float = 0.95) -> float:
    """The share that ``hits`` of ``total`` independent trials leave possible: Clopper and Pearson, Biometrika 26(4),
    1934, one-sided: the share at which so few hits have a probability of 1 - ``confidence``.
    """
    low, high = hits / total, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        chance = sum(math.comb(total, k) * middle**k * (1 - middle) ** (total - k) for k in range(hits + 1))
        low, high = (middle, high) if chance > 1 - confidence else (low, middle)
    return high
