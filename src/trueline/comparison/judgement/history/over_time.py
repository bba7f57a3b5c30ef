"""Faults that begin at a later step of runs that were apart before: the value at which one begins, and its finding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trueline.comparison.judgement.cause import cause_of, differing_arguments, in_words
from trueline.comparison.judgement.history.own_history import HistoryOutlier, history_outliers
from trueline.comparison.judgement.history.parameter_continuity import Changed, changed_between_steps
from trueline.comparison.judgement.step import Step, StepRow
from trueline.comparison.judgement.values.argument_differences import (
    ChangedArguments,
    arguments_in_words,
    first_changed_arguments,
    shown_arguments,
)
from trueline.comparison.judgement.values.compared import Compared
from trueline.comparison.result import command_for
from trueline.judge.recorded.step_values import Call
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted, named_some


@dataclass(frozen=True)
class LateFault:
    """The beginning of a fault: the index ``at`` of the step, and the value there, judged as beyond rounding."""

    at: int
    row: Compared
    finding: Finding


def late_fault(steps: Sequence[Step]) -> LateFault | None:
    """The first value that the runs' own pasts do not explain: a parameter that changed between two steps, a call that
    is given other arguments, or one whose own past does not explain it. None where there is none.
    """
    faults = _candidates(steps) if len(steps) > 1 else ()
    return min(faults, key=lambda fault: StepRow(steps[fault.at], fault.row).order, default=None)


def _candidates(steps: Sequence[Step]) -> Iterator[LateFault]:
    """The first change of parameters, of arguments, and the first value that its own past does not explain."""
    # One candidate of each kind: later ones of a kind may follow from the first.
    changed = first_changed_arguments(steps)
    if changed is not None:
        row = _returned_row(steps[changed.at], changed.call)
        if row is not None:
            yield LateFault(changed.at, row, _arguments_changed(steps[changed.at], changed, row))
    changes = changed_between_steps(steps)
    for change in changes:
        row = _param_row(steps[change.at], change.name)
        if row is not None:
            yield LateFault(change.at, row, _changed(steps, changes, change, row))
            break
    for outlier in history_outliers(steps):
        step = steps[outlier.at]
        row = next(row for row in step.rows if row.position == outlier.position)
        if row.expectation is not None:
            note = f"expected from its inputs and from {counted(outlier.num_steps, 'step')} of its own history"
            # Judged by its own past, not by the error model.
            expectation = replace(row.expectation, rel=outlier.expected)
            row = replace(row, judgement="beyond", expectation=expectation, note=note)
            yield LateFault(outlier.at, row, _history_outlier(step, row, outlier))
            break


def _param_row(step: Step, name: str) -> Compared | None:
    """The first sighting of a parameter in a step, judged as beyond rounding."""
    row = next((row for row in step.rows if row.param == name and row.root == row.position), None)
    if row is None:
        return None
    return replace(row, judgement="beyond", expectation=None, note="not what the update before left of it")


def _returned_row(step: Step, call: Call) -> Compared | None:
    """The first result of a call, judged as beyond rounding."""
    inside = {id(value) for value in call.values}
    row = next((row for row in step.rows if id(row.run_value) in inside and row.value.returned), None)
    if row is None:
        return None
    return replace(row, judgement="beyond", expectation=None, note="called with different arguments from this step on")


def _arguments_changed(step: Step, changed: ChangedArguments, row: Compared) -> Finding:
    value, at = row.value, step.frame(row.value)
    claim = (
        f"From step {step.step} on, {value.site} ({value.api or value.kind}{', ' + at if at else ''}) is called with "
        f"different arguments than in the reference: {arguments_in_words(changed.arguments)}. They agreed at each of "
        f"{counted(changed.num_steps, 'step')} before."
    )
    return Finding(
        code="structure-differs",
        severity="warning",
        claim=claim,
        **_where(step, row),
        false_alarm_rate=0.0,
        evidence={"where": at, "arguments": shown_arguments(changed.arguments)},
        next=(
            "Look for what changes the settings of the module while it trains.",
            command_for(step.run.path, value.site),
        ),
    )


def _changed(steps: Sequence[Step], changes: Sequence[Changed], first: Changed, row: Compared) -> Finding:
    step = steps[first.at]
    changes_alike = [change for change in changes if (change.at, change.in_reference) == (first.at, first.in_reference)]
    names = list(dict.fromkeys(change.name for change in changes_alike))
    where = ("in the reference", "in the run") if first.in_reference else ("in the run", "in the reference")
    size_text = "NaN or infinities came or went" if first.rel is None else f"by about {first.rel:.2g} of its norm"
    claim = (
        f"{counted(len(names), 'parameter')} changed between the update of step {step.step - 1} and step {step.step} "
        f"{where[0]} and not {where[1]}: {named_some(names)}, {size_text}."
    )
    return Finding(
        code="weight-differs",
        severity="error",
        claim=claim,
        **_where(step, row),
        measured=first.rel,
        expected=0.0,
        unit="relative L2 difference",
        false_alarm_rate=0.0,
        evidence={"parameters": names[:100]},
        next=(
            "Look for what writes to parameters between two steps: loading, synchronising, clipping, or memory.",
            command_for(step.run.path, row.value.site),
        ),
    )


def _history_outlier(step: Step, row: Compared, outlier: HistoryOutlier) -> Finding:
    value, why, at = row.value, _why(step, row), step.frame(row.value)
    measured = row.distance.rel if row.distance is not None else None
    size_text = "" if row.distance is None else f"by {row.distance.size_text}"
    times = "" if row.times is None else f", {row.times:.3g} times what earlier steps predict"
    claim = (
        f"{value.site} ({value.api or value.kind}{', ' + at if at else ''}) departs from its own history: it differs "
        f"{size_text}{times}; {why}"
    )
    return Finding(
        code="first-divergence",
        severity="error",
        claim=claim,
        **_where(step, row),
        measured=measured,
        expected=outlier.expected,
        unit="relative L2 difference",
        false_alarm_rate=outlier.false_alarm_rate,
        evidence={
            "why": why,
            "where": at,
            "past": outlier.num_steps,
            "arguments": shown_arguments(differing_arguments(step, row)),
        },
        next=(
            command_for(step.run.path, value.site),
            'Record the values of this call in both runs at this step: its name under names, and depth = "tensor".',
        ),
    )


def _where(step: Step, row: Compared) -> dict[str, Any]:
    value = row.value
    return {
        "ranks": value.ranks,
        "step_first": step.step,
        "step_last": step.step,
        "sites": (str(value.site),),
    }


def _why(step: Step, row: Compared) -> str:
    """The reason as a sentence: the inputs of the call differ no more than before."""
    cause = cause_of(step, row)
    if cause.reason == "random" or differing_arguments(step, row):
        return in_words(cause, agree="its inputs do not explain it")
    return "its inputs do not explain it, so its computation changes at this step."
