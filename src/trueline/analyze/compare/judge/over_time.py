"""Faults that begin at a later step of runs that were apart before: which value is to blame, and the finding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trueline.analyze.compare.judge.arguments import OtherArguments, first_other_arguments
from trueline.analyze.compare.judge.first_cause import (
    First,
    arguments_in_words,
    cause_of,
    differing_arguments,
    in_words,
    look,
)
from trueline.analyze.compare.judge.own_history import Unlike, unlike_own_past
from trueline.analyze.compare.judge.parameter_continuity import Changed, changed_between_steps
from trueline.analyze.compare.judge.step import Step, value_of
from trueline.analyze.compare.judge.values import Compared
from trueline.analyze.recorded.step_values import Call
from trueline.schema.finding import Finding
from trueline.schema.words import counted, named_some


@dataclass(frozen=True)
class Late:
    """The steps with the value that is to blame judged as beyond rounding, that value, and what is told of it."""

    steps: Sequence[Step]
    first: First
    finding: Finding


def late_fault(steps: Sequence[Step], *, before: First | None) -> Late | None:
    """The first value that laws do not blame and that the runs' own pasts do: a parameter that changed between two
    steps, a call that is given other arguments, or one that is unlike its past. None where there is none before the
    value that laws blame.
    """
    if len(steps) < 2:
        return None
    found = min(_candidates(steps), key=lambda each: _order(steps[each[0]], each[1]), default=None)
    if found is None or (before is not None and _order(*before) <= _order(steps[found[0]], found[1])):
        return None
    at, row, finding = found
    rows = [row if each.place == row.place else each for each in steps[at].rows]
    marked = replace(steps[at], rows=rows)
    return Late([*steps[:at], marked, *steps[at + 1 :]], (marked, row), finding)


def with_late(findings: Sequence[Finding], late: Finding) -> list[Finding]:
    """``findings`` with that of a late fault first, and without what they say of later values: its consequences."""
    kept = [each for each in findings if each.code != "explained-by-rounding" and not _is_of_values(each)]
    return [late, *kept]


def _is_of_values(finding: Finding) -> bool:
    return finding.severity == "error" and bool(finding.sites)


def _order(step: Step, row: Compared) -> tuple[int, int, int]:
    return step.step, row.place, step.rank or 0


def _candidates(steps: Sequence[Step]) -> Iterator[tuple[int, Compared, Finding]]:
    """The first change of parameters, of arguments, and the first value that is unlike its past."""
    other = first_other_arguments(steps)
    if other is not None:
        row = _returned_row(steps[other.at], other.call)
        if row is not None:
            yield other.at, row, _given_otherwise(steps[other.at], other, row)
    changes = changed_between_steps(steps)
    for change in changes:
        row = _param_row(steps[change.at], change.name)
        if row is not None:
            yield change.at, row, _changed(steps, changes, change, row)
            break
    for unlike in unlike_own_past(steps):
        step = steps[unlike.at]
        row = next(each for each in step.rows if each.place == unlike.place)
        if row.expectation is not None:
            note = f"expected from its past, {counted(unlike.num_steps, 'step')}, and from what it takes"
            expectation = replace(row.expectation, rel=unlike.expected)
            row = replace(row, judgement="beyond", expectation=expectation, note=note)
            yield unlike.at, row, _unlike(step, row, unlike)
            break


def _param_row(step: Step, name: str) -> Compared | None:
    """Where a parameter is first seen in a step, judged as beyond rounding."""
    row = next((row for row in step.rows if row.param == name and row.root == row.place), None)
    if row is None:
        return None
    return replace(row, judgement="beyond", expectation=None, note="not what the update before left of it")


def _returned_row(step: Step, call: Call) -> Compared | None:
    """What a call returns first, judged as beyond rounding."""
    inside = {id(value) for value in call.values}
    row = next((row for row in step.rows if id(row.mine) in inside and value_of(row).returned), None)
    if row is None:
        return None
    return replace(row, judgement="beyond", expectation=None, note="given other arguments from this step on")


def _given_otherwise(step: Step, other: OtherArguments, row: Compared) -> Finding:
    value, at = value_of(row), step.frame(value_of(row))
    claim = (
        f"From step {step.step} on, {value.site} ({value.api or value.kind}{', ' + at if at else ''}) is given other "
        f"arguments than in the reference: {arguments_in_words(other.arguments)}. They agreed at each of "
        f"{counted(other.num_steps, 'step')} before."
    )
    return Finding(
        code="structure-differs",
        severity="warning",
        claim=claim,
        ranks=value.ranks,
        step_first=step.step,
        step_last=step.step,
        sites=(str(value.site),),
        false_alarm_rate=0.0,
        evidence={"where": at, "arguments": dict(other.arguments)},
        next=("Look for what changes the settings of the module while it trains.", look(step, value)),
    )


def _changed(steps: Sequence[Step], changes: Sequence[Changed], first: Changed, row: Compared) -> Finding:
    step = steps[first.at]
    same = [each for each in changes if (each.at, each.in_reference) == (first.at, first.in_reference)]
    names = list(dict.fromkeys(each.name for each in same))
    where = ("in the reference", "in the run") if first.in_reference else ("in the run", "in the reference")
    by = "NaN or infinities came or went" if first.rel is None else f"by at least about {first.rel:.2g} of its norm"
    claim = (
        f"{counted(len(names), 'parameter')} changed between the update of step {step.step - 1} and step {step.step} "
        f"{where[0]} and not {where[1]}: {named_some(names)}, {by}."
    )
    return Finding(
        code="weight-differs",
        severity="error",
        claim=claim,
        ranks=value_of(row).ranks,
        step_first=step.step,
        step_last=step.step,
        sites=(str(value_of(row).site),),
        measured=first.rel,
        expected=0.0,
        unit="relative L2 difference",
        false_alarm_rate=0.0,
        evidence={"parameters": names[:100]},
        next=(
            "Look for what writes to parameters between two steps: loading, synchronising, clipping, or memory.",
            look(step, value_of(row)),
        ),
    )


def _unlike(step: Step, row: Compared, unlike: Unlike) -> Finding:
    value, why, at = value_of(row), _why(step, row), step.frame(value_of(row))
    measured = row.distance.rel if row.distance is not None else None
    times = "" if row.times is None else f", {row.times:.3g} times what its past lets expect"
    claim = (
        f"{value.site} ({value.api or value.kind}{', ' + at if at else ''}) is unlike its own past: it differs by "
        f"at least about {measured or 0.0:.2g} of its norm{times}; {why}"
    )
    return Finding(
        code="first-divergence",
        severity="error",
        claim=claim,
        ranks=value.ranks,
        step_first=step.step,
        step_last=step.step,
        sites=(str(value.site),),
        measured=measured,
        expected=unlike.expected,
        unit="relative L2 difference",
        false_alarm_rate=unlike.false_alarm_rate,
        evidence={"why": why, "where": at, "past": unlike.num_steps, "arguments": differing_arguments(step, row)},
        next=(
            look(step, value),
            'Record this call in full in both runs at this step: names of it and depth = "tensor".',
        ),
    )


def _why(step: Step, row: Compared) -> str:
    """What is left as the reason: what the call takes differs no more than before."""
    cause = cause_of(step, row)
    if cause.reason == "random" or differing_arguments(step, row):
        return in_words(cause, agree="what it takes does not explain it")
    return "what it takes does not explain it, so what it computes is another thing from this step on."
