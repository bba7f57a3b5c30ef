"""The result of comparing two runs: a judgement for each pair of values, findings, and values without a twin."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from trueline.schema.fact import fact
from trueline.schema.finding import Finding, documents_of
from trueline.schema.judged import COMPARED
from trueline.schema.site import Site
from trueline.schema.text.shown import Shown

SCHEMA = 1
"""Version of the document that ``Comparison.to_json`` makes; raised when a field changes meaning."""

Judgement = Literal["equal", "within", "beyond", "propagated", "not-comparable"]
JUDGEMENTS: tuple[Judgement, ...] = ("equal", "within", "beyond", "propagated", "not-comparable")
"""``equal``: the same bits, as far as was recorded. ``within``: rounding explains the difference. ``beyond``: neither
rounding nor the inputs explain it. ``propagated``: rounding does not explain it, but the inputs differ too.
"""


@fact()
class ComparedRow:
    """One value of a run and its twin of the reference; ``site`` or ``ref_site`` is None where one has no twin.

    ``measured`` and ``expected`` are relative L2 differences (0 equal, 1 as large as the value): the measured one, a
    lower estimate where only statistics were recorded, and the one that rounding explains; ``times`` is their quotient.
    ``how`` the difference was measured: ``tensor``, ``fingerprint``, ``statistics``, or '' where it was not. ``place``
    is the zero-based index in the order of execution. ``details`` has further numbers of the difference.
    """

    step: int
    rank: int | None
    place: int
    site: str | None
    ref_site: str | None
    judgement: Judgement
    kind: str
    api: str
    dtype: str
    ref_dtype: str
    shape: tuple[int, ...]
    measured: float | None = None
    expected: float | None = None
    times: float | None = None
    how: str = ""
    note: str = ""
    where: str = ""
    details: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class StepSummary:
    """How one step of one rank (None: merged) compares. ``loss_rel`` is the relative difference of the loss.

    ``detailed`` False: the step was not compared value by value, as it is equal or enough other steps were.
    ``finished`` False: no update ended it in either run; what was recorded came after the last one.
    """

    step: int
    rank: int | None
    counts: Mapping[Judgement, int]
    first_site: str | None = None
    largest_times: float | None = None
    loss_rel: float | None = None
    detailed: bool = True
    finished: bool = True


Pass = Literal["forward", "backward", "update", "communication"]

ENOUGH_FRAC = 1 / 3
"""The share (0-1) of the values of the forward, and of the backward pass of the first step that must have been judged
for a verdict that nothing but rounding differs: of those of the run that has fewer, as the other one may compute in
several calls what is one call here. Below a third, what was not compared outweighs what was by two to one.

No share tells faults from healthy pairs: of healthy ones of ``benchmarks.compare.corpus`` (dev half) 0.50 or more were
judged, of one model in two frameworks 0.47 of the forward pass
(``tests/unit/comparison/match/test_name_maps.py``); of its faults that no finding named, all under autocast, 0.65
or more. So it is below all healthy pairs, and only keeps runs that hardly align from passing."""


@fact()
class JudgedPass:
    """Counts over one pass, steps and ranks added up.

    They are the values judged, the others by reason (``not_judged``), the values of run and reference, and the calls
    that only one of them makes.
    """

    name: Pass
    values: int
    judged: int
    not_judged: Mapping[str, int]
    calls_in_run_only: int
    calls_in_ref_only: int
    values_of_run: int
    values_of_ref: int

    @property
    def enough(self) -> bool:
        """True where ``ENOUGH_FRAC`` of the values were judged, of the run that has fewer."""
        return self.judged >= ENOUGH_FRAC * min(self.values_of_run, self.values_of_ref)


@dataclass(frozen=True, slots=True)
class Judged:
    """How much was judged, by pass: over all ``num_steps`` that were compared, and at ``first_step`` alone, the
    first that was compared, where no update has moved parameters apart. ``coarse`` is the reason given for values of
    which rounding may explain too much to tell.
    """

    passes: tuple[JudgedPass, ...] = ()
    at_first_step: tuple[JudgedPass, ...] = ()
    first_step: int | None = None
    num_steps: int = 0
    coarse: str = ""

    @property
    def lacking(self) -> str:
        """Why nothing can be concluded from finding nothing, as a sentence without its end; '' where enough was judged.

        At the first step, of the forward and of the backward pass, at least ``ENOUGH_FRAC`` must have been judged, and
        rounding must not explain too much of more than half of the values. The update is no condition: where the two
        optimizers make other calls, the next step shows what it left.
        """
        for judged_pass in self.at_first_step:
            coarse = judged_pass.not_judged.get(self.coarse, 0)
            if judged_pass.name in ("forward", "backward") and 2 * coarse > judged_pass.values:
                return self._lacking_text(judged_pass, coarse, self.coarse)
            if judged_pass.name in ("forward", "backward") and not judged_pass.enough:
                why, num = max(judged_pass.not_judged.items(), key=lambda item: item[1])
                return self._lacking_text(judged_pass, num, why)
        return ""

    def _lacking_text(self, judged_pass: JudgedPass, num: int, why: str) -> str:
        return (
            f"the {judged_pass.name} pass could not be judged. "
            f"At step {self.first_step}, {judged_pass.judged:,} of {judged_pass.values:,} values could; "
            f"{num:,} could not: {why}"
        )

    @staticmethod
    def sums(passes: Sequence[JudgedPass]) -> dict[str, int]:
        """``values``, those ``judged``, and ``calls_in_one_run`` of ``passes`` together."""
        return {
            "values": sum(judged_pass.values for judged_pass in passes),
            "judged": sum(judged_pass.judged for judged_pass in passes),
            "calls_in_one_run": sum(
                judged_pass.calls_in_run_only + judged_pass.calls_in_ref_only for judged_pass in passes
            ),
        }

    def to_json(self) -> dict[str, Any]:
        """The key ``judged`` of the document."""
        return {
            "enough": any(judged_pass.judged for judged_pass in self.passes) and not self.lacking,
            "lacking": self.lacking,
            **self.sums(self.passes),
            "passes": [_plain_pass(judged_pass) for judged_pass in self.passes],
            "first_step": {
                "step": self.first_step,
                **self.sums(self.at_first_step),
                "passes": [_plain_pass(judged_pass) for judged_pass in self.at_first_step],
            },
        }


def _plain_pass(judged_pass: JudgedPass) -> dict[str, Any]:
    return {**asdict(judged_pass), "not_judged": dict(judged_pass.not_judged)}


@fact()
class OneSidedCall:
    """A call that only the run, or (``in_reference``) only the reference makes, ``num`` times over all steps and ranks;
    ``site`` is that of its first value, ``where`` the line of code, '' where no stack was taken.
    """

    in_reference: bool
    site: str
    name: str
    where: str
    num: int


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """A run compared with a reference. ``rows`` are in the order of steps, ranks and execution; ``missing`` counts
    values without a twin by reason; ``first`` is the row to blame, None where there is none. ``judged`` says how much
    was judged, ``one_sided`` which calls only one run makes.
    """

    run: str
    ref: str
    findings: tuple[Finding, ...]
    rows: Sequence[ComparedRow]
    steps: Sequence[StepSummary]
    first: ComparedRow | None = None
    missing: Mapping[str, int] | None = None
    notes: tuple[str, ...] = ()
    judged: Judged = Judged()
    one_sided: tuple[OneSidedCall, ...] = ()

    @property
    def counts(self) -> Counter[str]:
        """Values by judgement."""
        return sum((Counter[str](step.counts) for step in self.steps), Counter[str]())

    @property
    def exit_code(self) -> int:
        """0 the same, or rounding explains it; 1 different; 3 too little could be judged (``Judged.lacking``)."""
        if any(finding.is_grave for finding in self.findings):
            return 1
        # Finding nothing in little that was judged is no pass.
        if self.judged.lacking:
            return 3
        return 0 if self.counts["equal"] + self.counts["within"] else 3

    def _title(self) -> str:
        counts = ", ".join(f"{self.counts[name]:,} {name}" for name in JUDGEMENTS if self.counts[name])
        site = None if self.first is None else self.first.site or self.first.ref_site
        first = "" if site is None else f"; the first that rounding does not explain is {site}"
        return f"'{self.run}' compared with '{self.ref}': {counts or 'nothing was compared'}{first}"

    def _columns_shown(self) -> Mapping[str, Sequence[Any]]:
        names = ("step", "rank", "site", "judgement", "measured", "expected", "times", "how", "dtype", "note")
        return {name: [getattr(row, name) for row in self.rows] for name in names}

    def _notes(self) -> Sequence[str]:
        return (*(f"{finding.severity} {finding.code}: {finding.claim}" for finding in self.findings), *self.notes)

    def to_json(self) -> dict[str, Any]:
        """Document of the outside contract."""
        return {
            "schema": SCHEMA,
            "run": self.run,
            "ref": self.ref,
            "status": COMPARED[self.exit_code],
            "exit_code": self.exit_code,
            "cause": next((finding.code for finding in self.findings if finding.is_grave), None),
            "findings": documents_of(self.findings),
            "first": None if self.first is None else _plain(self.first),
            "counts": {name: self.counts.get(name, 0) for name in JUDGEMENTS},
            "judged": self.judged.to_json(),
            "missing": dict(self.missing or {}),
            "one_sided_calls": [asdict(call) for call in self.one_sided],
            "steps": [{**asdict(step), "counts": dict(step.counts)} for step in self.steps],
            "rows": [_plain(row) for row in self.rows],
            "notes": list(self.notes),
        }


def command_for(run: str, site: Site) -> str:
    """Command that prints the call of a value with its call stack."""
    words = ["trueline", "info", run, "--site", f"{site.phase}/{site.name}#{site.call}:*"]
    return shlex.join([*words, "--step", str(site.step), "--rank", str(site.rank), "--stacks"])


def _plain(row: ComparedRow) -> dict[str, Any]:
    document = asdict(row)
    return {**document, "shape": list(row.shape), "details": dict(row.details or {})}
