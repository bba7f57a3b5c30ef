"""Concludes findings from the judgements of all steps: the first place that is wrong, not the largest difference."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from trueline.comparison.judgement.cut_gradients import cut_gradient
from trueline.comparison.judgement.findings.finding import FIRST_DIVERGENCE
from trueline.comparison.judgement.findings.on_calls import first_divergence, unrecorded_differs
from trueline.comparison.judgement.findings.on_optimizer import update_differs, with_settings
from trueline.comparison.judgement.findings.on_parameters import input_differs, update_result_differs, weights_differ
from trueline.comparison.judgement.findings.on_precision import (
    dtypes_differ,
    precision_differs,
    update_precision_differs,
)
from trueline.comparison.judgement.findings.on_structure import (
    calls_inserted,
    first_structure,
    gradients_cut,
    lonely_calls_inside,
    structure_differs,
    tie_differs,
    with_calls_of_module,
)
from trueline.comparison.judgement.findings.on_wiring import rewired_rows, wiring_differs
from trueline.comparison.judgement.findings.remarks import (
    arguments_differ,
    buffers_updated_otherwise,
    explained_by_rounding,
    sites_missing,
)
from trueline.comparison.judgement.history.over_time import LateFault
from trueline.comparison.judgement.settings import SettingsDifference, differing_settings
from trueline.comparison.judgement.step import Order, Step, StepRow
from trueline.comparison.judgement.structure import Structure
from trueline.comparison.judgement.ties import BrokenTie, broken_tie
from trueline.comparison.judgement.values.compared import Compared
from trueline.comparison.judgement.values.precision import dtypes_part, update_part
from trueline.schema.finding import SEVERITIES, Finding
from trueline.schema.site import Site
from trueline.store.reader import Run


@dataclass(frozen=True)
class Conclusion:
    """``findings``, errors first; the value where the difference begins, None where rounding explains everything; and
    the steps, that value judged as beyond rounding.
    """

    findings: list[Finding]
    first: StepRow | None
    steps: Sequence[Step]


def conclude(run: Run, ref: Run, steps: Sequence[Step], late: LateFault | None = None) -> Conclusion:
    """Findings on the judgements of all steps. Of a ``late`` fault and the first value that rounding does not explain
    the earlier one counts: what comes after it may be its consequence.
    """
    draft = _Draft(steps, steps, *_first_by_laws(steps))
    if late is not None:
        draft.weigh_late_fault(late)
    settings = differing_settings(run, ref)
    if settings is not None:
        draft.add_settings(settings)
    draft.findings = [*buffers_updated_otherwise(steps), *draft.findings]
    same_dtypes = not draft.add_precision()
    tie = broken_tie(steps)
    if tie is not None:
        draft.add_tie(tie)
    if all(finding.code != "structure-differs" for finding in draft.findings):
        draft.add_inserted_calls()
    if not draft.findings:
        draft.findings += explained_by_rounding(steps)
    draft.findings += [
        *sites_missing(steps),
        *(dtypes_differ(steps) if same_dtypes else ()),
        *arguments_differ(steps, findings=draft.findings),
    ]
    return Conclusion(in_causal_order(draft.findings), draft.first, draft.marked)


def in_causal_order(findings: Iterable[Finding]) -> list[Finding]:
    """Findings, errors first, then by their first step; those of one step stay in the order in which they are given,
    causes before what they may have caused. A finding without a step follows those with one.
    """

    def order(finding: Finding) -> tuple[int, float]:
        step = math.inf if finding.step_first is None else finding.step_first
        return SEVERITIES.index(finding.severity), step

    return sorted(findings, key=order)


class _Beginning(NamedTuple):
    """Findings on the first difference, its first value, and the ``order`` in which execution comes there."""

    findings: list[Finding]
    first: StepRow | None
    order: Order


_NOWHERE: Order = (0, math.inf, 0)


@dataclass
class _Draft:
    """A conclusion that one question after the other may change: what leads, and where the difference begins.

    ``marked`` are the steps, with the value of a late fault judged as beyond rounding.
    """

    steps: Sequence[Step]
    marked: Sequence[Step]
    findings: list[Finding]
    first: StepRow | None
    order: Order

    def weigh_late_fault(self, late: LateFault) -> None:
        """Begin at a late fault that comes before the first difference by the laws."""
        late_step = self.steps[late.at]
        order = StepRow(late_step, late.row).order
        # At one value, a change between two steps is an exact contradiction, and the laws know more than a value's own
        # history.
        is_first = order < self.order or (order == self.order and late.finding.false_alarm_rate == 0.0)
        if self.first is not None and not is_first:
            return
        rows = [late.row if row.position == late.row.position else row for row in late_step.rows]
        step = replace(late_step, rows=rows)
        self.marked = [*self.steps[: late.at], step, *self.steps[late.at + 1 :]]
        self.findings, self.first, self.order = [late.finding], StepRow(step, late.row), order

    def add_settings(self, settings: SettingsDifference) -> None:
        """Add the finding on settings, which leads where they may have caused the first difference."""
        self.findings = with_settings(self.findings, settings, self.first, self.steps)

    def add_precision(self) -> bool:
        """Add the finding on another precision: of the forward pass, else of the update; True for the former."""
        part = dtypes_part(self.steps)
        if part is not None:
            leads = self._precedes(StepRow(part.step, part.row))
            finding = precision_differs(part, consequences=self.findings if leads else ())
        else:
            update = update_part(self.steps)
            if update is None:
                return False
            leads = self._precedes(StepRow(update.step, update.row))
            finding = update_precision_differs(update)
        self.findings = [finding, *self.findings]
        return part is not None

    def _precedes(self, start: StepRow) -> bool:
        """Begin at ``start`` unless the difference began before it; True where it does."""
        leads = self.first is None or start.order <= self.order
        self.first = start if leads else self.first
        return leads

    def add_tie(self, tie: BrokenTie) -> None:
        """Begin at a tie of one run alone, unless the difference began before; gradients of its parameters follow."""
        start = StepRow(tie.step, tie.row)
        if self.first is not None and start.order > self.first.order:
            return
        remaining = (finding for finding in self.findings if not _is_on_tied_gradient(finding, tie))
        self.findings, self.first = [tie_differs(tie), *remaining], start

    def add_inserted_calls(self) -> None:
        """Add the finding on calls of one run that change nothing of these steps."""
        inserted = calls_inserted(self.steps)
        if inserted is not None:
            self.findings.append(inserted[0])
            self.first = self.first or inserted[1]


def _is_on_tied_gradient(finding: Finding, tie: BrokenTie) -> bool:
    """True for a finding on the gradient of a parameter of the tie, which has other terms."""
    names = [Site.parse(site).name for site in finding.sites]
    return finding.code == FIRST_DIVERGENCE and any(name in tie.names for name in names)


def _first_by_laws(steps: Sequence[Step]) -> _Beginning:
    """Findings on differences that rounding does not explain, at the first step that has any: parameters that the step
    begins with, and the first of a difference of the call graphs, of gradients that end, of a value, of the wiring.
    """
    number = min((step.step for step in steps if _runs_part(step)), default=None)
    first_steps = [step for step in steps if step.step == number]
    weights = list(_rows_beyond(first_steps, "param"))
    values = sorted(
        _rows_beyond(first_steps, "given", "call", "gradient", "unrecorded"),
        key=lambda pair: (pair.row.position, pair.step.rank or 0),
    )
    if any(step.before is not None for step, _ in weights):
        # What calls make of parameters that were updated otherwise is a consequence.
        values = [pair for pair in values if pair.row.position < weights[0].row.position]
        findings = [] if values else [update_result_differs(weights)]
    else:
        # Parameters before an update are no consequences.
        findings = weights_differ(weights)
    return (
        _begin_at_structure(first_steps, values, findings)
        or _begin_at_cut([step for step in steps if number is None or step.step <= number], number, findings)
        or _begin_at_value(first_steps, weights, values, findings)
    )


def _runs_part(step: Step) -> bool:
    """True where the runs part in ``step``; rounding may explain too much of what follows from another call graph."""
    if step.first is not None or step.rewired_rows:
        return True
    return any(row.rewired for row in step.rows) and first_structure([step]) is not None


def _rows_beyond(steps: Sequence[Step], *origins: str) -> Iterator[StepRow]:
    for step in steps:
        for row in step.beyond(*origins):
            yield StepRow(step, row)


def _begin_at_structure(
    steps: Sequence[Step], values: Sequence[StepRow], findings: Sequence[Finding]
) -> _Beginning | None:
    """Begin at calls that one run alone makes, where these explain how values differ."""
    structure = first_structure(steps) or lonely_calls_inside(values)
    if structure is None:
        return None
    step, cause = structure[0], with_calls_of_module(*structure)
    first = StepRow(step, cause.row)
    return _Beginning([*findings, structure_differs(step, cause)], first, _order_of(first, found_at=cause.position))


def _begin_at_cut(steps: Sequence[Step], number: int | None, findings: Sequence[Finding]) -> _Beginning | None:
    """Begin where gradients end in one run alone: in a step up to ``number``, at which the runs part."""
    cuts = ((step, cut_gradient(step)) for step in steps)
    step, cut = next(((step, cut) for step, cut in cuts if cut is not None), (None, None))
    if step is None or cut is None:
        return None
    first = StepRow(step, cut.row)
    position = Structure(step).position_of(cut.row)
    findings = findings if step.step == number else []  # parameters that differ only later are a consequence
    return _Beginning([*findings, gradients_cut(step, cut)], first, _order_of(first, found_at=position))


def _order_of(first: StepRow, *, found_at: float) -> Order:
    """Where ``first`` is in the order of execution; of a side that does not give that order, where it was found, which
    is where the results of its call are used.
    """
    return first.order if first.row.root is not None else (first.step.step, found_at, first.step.rank or 0)


def _begin_at_value(
    steps: Sequence[Step], weights: Sequence[StepRow], values: Sequence[StepRow], findings: Sequence[Finding]
) -> _Beginning:
    """Begin at the first value beyond rounding, or at wiring that comes before it."""
    findings = list(findings)
    origin = _origin(values[0].row) if values else ""
    if values:
        finding = _FINDING_OF_ORIGIN[origin](values)
        # Parts of a merged weight are parameters too, and their call is given the whole.
        findings += [] if weights and finding.code == "weight-differs" else [finding]
    wiring = wiring_differs(steps, before=values[0] if values else None)
    if wiring is not None and origin == "update":
        return _Beginning([wiring[0], *findings], wiring[1], wiring[1].order)  # updates follow from gradients
    findings += [] if wiring is None else [wiring[0]]
    first = next(iter([*values, *weights, *rewired_rows(steps)]), None)
    return _Beginning(findings, first, _NOWHERE if first is None else first.order)


def _origin(row: Compared) -> str:
    """The origin of the first difference; values of the optimizer have an origin of their own."""
    assert row.expectation is not None
    origin = row.expectation.origin
    return "update" if origin in ("call", "gradient") and row.value.site.phase == "opt" else origin


_FINDING_OF_ORIGIN = {
    "given": input_differs,
    "call": first_divergence,
    "gradient": first_divergence,
    "update": update_differs,
    "unrecorded": unrecorded_differs,
}
