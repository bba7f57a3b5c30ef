"""Findings on calls that only one run makes, and the calls that a difference of the call graphs is shown by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trueline.comparison.judgement.cut_gradients import CutGradient, own_backward
from trueline.comparison.judgement.findings.finding import COMPARE_LINES, call_sites, difference_text, finding_on
from trueline.comparison.judgement.findings.on_calls import with_call_around
from trueline.comparison.judgement.findings.on_wiring import loss_text
from trueline.comparison.judgement.inserted_calls import inserted_calls
from trueline.comparison.judgement.step import Step, StepRow
from trueline.comparison.judgement.structure import Structure, StructureCause, innermost
from trueline.comparison.judgement.structure_text import difference_in_words, the_runs_part
from trueline.comparison.judgement.ties import BrokenTie
from trueline.comparison.judgement.unrecorded_code import is_of_modules, lonely_calls
from trueline.comparison.judgement.values.compared import Compared
from trueline.comparison.match.graph_diff import GraphDifference
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, named_some


def first_structure(steps: Sequence[Step]) -> tuple[Step, StructureCause] | None:
    """The first difference of the call graphs that explains how values of ``steps`` differ. Runs whose ranks are merged
    are laid out differently, and gather and cut values that one rank has whole: what they call does not explain it.
    """
    causes = [
        (step, cause) for step in steps if step.rank is not None and (cause := Structure(step).cause()) is not None
    ]
    return min(causes, key=lambda pair: pair[1].position, default=None)


def lonely_calls_inside(differing: Sequence[StepRow]) -> tuple[Step, StructureCause] | None:
    """Calls that only one run makes, of the module whose unrecorded code the first difference comes from."""
    if not differing:
        return None
    step, first = differing[0]
    value = first.value
    if not is_of_modules(step) or value.site.phase != "fwd":
        return None
    difference = lonely_calls(step, value.site.name if value.returned else value.module)
    row = _first_row_of(step, difference)
    return None if row is None else (step, StructureCause(difference, first.position, row, first))


def with_calls_of_module(step: Step, cause: StructureCause) -> StructureCause:
    """``cause`` with all calls without a twin that the same code makes, where what it does between them was not
    recorded, and only the last ones lead to the values after it.
    """
    if not is_of_modules(step):
        return cause
    difference = lonely_calls(step, cause.row.value.module)
    if cause.row.value not in [value for call in (*difference.mine, *difference.theirs) for value in call.values]:
        return cause
    # The row to show is the first of all these calls, not only of the last ones.
    row = _first_row_of(step, difference) or cause.row
    return cause._replace(difference=replace(difference, seam=cause.difference.seam), row=row)


def _first_row_of(step: Step, difference: GraphDifference) -> Compared | None:
    """The first row that is the first value of a call of ``difference``."""
    firsts = [call.first for call in (*difference.mine, *difference.theirs)]
    return next((row for row in step.rows if any(first in (row.run_value, row.ref_value) for first in firsts)), None)


def structure_differs(step: Step, cause: StructureCause) -> Finding:
    """The finding on a difference of the call graphs, and on the first value that it changes."""
    words = difference_in_words(step, cause.difference)
    after, difference = StepRow(step, cause.after), cause.difference
    finding = finding_on(
        "structure-differs",
        "error",
        f"{the_runs_part(difference, words)} The values after it differ, first {after.site} "
        f"{difference_text(cause.after)}.",
        [StepRow(step, cause.row)],
        evidence={
            "difference": words,
            "after": str(after.site),
            "only in RUN": call_sites(difference.mine),
            "only in REF": call_sites(difference.theirs),
        },
        advice=(COMPARE_LINES, after.command),
    )
    seam = difference.seam
    if is_of_modules(step) and seam is not None and not (difference.mine or difference.theirs):
        finding = with_call_around(finding, StepRow(step, cause.row), seam.mine.module)
    # The calls themselves have no twin to be measured against.
    return replace(finding, measured=cause.after.distance and cause.after.distance.rel, unit="relative L2 difference")


def gradients_cut(step: Step, cut: CutGradient) -> Finding:
    """The finding on gradients that end or turn at a call that only one run makes, or that only one run has."""
    words = difference_in_words(step, cut.difference)
    claim = f"{the_runs_part(cut.difference, words)} " if words else ""
    claim += _one_sided_gradients_text(step, cut) if cut.params else _turned_gradient_text(step, cut)
    compare = COMPARE_LINES if words else "Compare where both runs cut gradients off."
    start = StepRow(step, cut.row)
    evidence = {"difference": words, "parameters": cut.params[:100]}
    return finding_on("structure-differs", "error", claim, [start], evidence=evidence, advice=(compare, start.command))


def _one_sided_gradients_text(step: Step, cut: CutGradient) -> str:
    verb = "has a gradient" if len(cut.params) == 1 else "have a gradient"
    text = (
        f"{counted(len(cut.params), 'parameter')} {verb} only in {'RUN' if cut.of_run else 'REF'}: "
        f"{named_some(cut.params)}."
    )
    if is_of_modules(step) and cut.row.value.kind == "module":
        text += f" They end in code of {cut.row.value.site.name} that was not recorded."
    return text


def _turned_gradient_text(step: Step, cut: CutGradient) -> str:
    agree = loss_text(step) or "The values agree, and gradients do not. "
    text = f"{agree}The first gradient that differs is {cut.after.value.site}."
    if cut.after.unmatched and cut.after.value.returned:
        calls = (*cut.difference.mine, *cut.difference.theirs)
        text += own_backward(step, frozenset(call.module for call in calls))
    return text


def tie_differs(tie: BrokenTie) -> Finding:
    """The finding on parameters that are one tensor in one run alone."""
    tied, untied = ("RUN", "REF") if tie.of_run else ("REF", "RUN")
    first = StepRow(tie.step, tie.row)
    claim = (
        f"{named_some(tie.names)} are one tensor in {tied}, and parameters of their own in {untied}: the tie is "
        f"{'only there' if tie.of_run else 'lost'}, and each gets the gradient of its own use alone. "
        f"{first.site} takes it{f' ({first.frame})' if first.frame else ''}."
    )
    keep = f"Tie them in {untied} too, after the model is made and its weights are loaded, or in neither."
    evidence = {"parameters": list(tie.names)}
    return finding_on("structure-differs", "error", claim, [first], evidence=evidence, advice=(keep, first.command))


def calls_inserted(steps: Sequence[Step]) -> tuple[Finding, StepRow] | None:
    """The finding on calls of one run that change nothing of these steps, and the row of the first of them."""
    inserted = inserted_calls(steps)
    if inserted is None:
        return None
    step, difference = inserted
    words = difference_in_words(step, difference)
    claim = (
        f"{the_runs_part(difference, words)} With the numbers of these steps the values after it agree, up to "
        "rounding; with others they need not."
    )
    calls = innermost([*difference.mine, *difference.theirs])
    first = StepRow(step, step.row_of(calls[0]))
    evidence = {
        "difference": words,
        "only in RUN": call_sites(difference.mine),
        "only in REF": call_sites(difference.theirs),
    }
    advice = (COMPARE_LINES, first.command)
    return finding_on("structure-differs", "warning", claim, [first], evidence=evidence, advice=advice), first
