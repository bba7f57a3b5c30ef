"""Why a call returns another value than in the reference: which of its inputs, weights or arguments differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trueline.comparison.expect.propagation import is_swamped
from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values.argument_differences import (
    Arguments,
    arguments_in_words,
    different_arguments,
)
from trueline.comparison.judgement.values.compared import Compared
from trueline.comparison.op_names import RANDOM, function_of
from trueline.judge.recorded.step_values import spot_of


@dataclass(frozen=True, slots=True)
class Cause:
    """The remaining reason for a call's difference, and the parameters or arguments that differ, as a text.

    ``by_statistics``: that inputs agree was not seen on their values or fingerprints. ``unknown`` are inputs that
    could not be compared.
    """

    reason: Literal["random", "parameters", "arguments", "user", "received", "backward", "computation"]
    different: str = ""
    by_statistics: bool = False
    unknown: tuple[str, ...] = ()


def cause_of(step: Step, row: Compared) -> Cause:
    """The difference in the inputs of the call of a value, or that there is none."""
    value = row.value
    # A call that draws comes first: that its inputs agree says nothing of what it draws.
    if function_of(value.api) in RANDOM:
        different = differing_arguments(step, row)
        arguments_text = f": its arguments differ, {arguments_in_words(different)}" if different else ""
        return Cause("random", arguments_text or _draws_before(step, row))
    # A wrong weight explains more than an argument, which may be computed from it.
    names = _differing_params(step, row)
    if names:
        return Cause("parameters", ", ".join(names[:2]))
    different = differing_arguments(step, row)
    if different:
        return Cause("arguments", arguments_in_words(different))
    user = _called_otherwise(step, row) if value.site.phase == "bwd" and value.returned else ""
    if user:
        return Cause("user", user)
    inputs = _inputs(step, row)
    backward = "received" if value.returned else "backward"
    return Cause(
        backward if value.site.phase == "bwd" else "computation",
        by_statistics=any(source.distance is not None and source.distance.how == "statistics" for source in inputs),
        unknown=tuple(dict.fromkeys(str(source.value.site) for source in inputs if _is_unknown(source))),
    )


def in_words(cause: Cause, *, agree: str = "its inputs agree") -> str:
    """The cause as a sentence; ``agree`` is its beginning, which says that inputs are not the reason."""
    return {
        "random": f"it draws random numbers, and the two runs draw different ones{cause.different}.",
        "parameters": f"{agree}, but its weight {cause.different} does not.",
        "arguments": f"{agree}, but its arguments do not: {cause.different}.",
        "user": f"it comes back from {cause.different}.",
        "received": _changed_on_its_way(cause),
        "backward": _computes_otherwise(cause, "incoming gradient and its forward inputs", "backward computation"),
        "computation": _computes_otherwise(cause, "inputs and arguments", "computation"),
    }[cause.reason]


def _draws_before(step: Step, row: Compared) -> str:
    """``: before it, only RUN draws with `rand` (model.py:12 forward)``, of the first call that draws in one run alone;
    '' where both draw as often before the call.
    """
    alone = step.graph_diff.alone
    for name, value, calls in (("RUN", row.run_value, alone.mine), ("REF", row.ref_value, alone.theirs)):
        drawn = (call.first for call in calls if function_of(call.first.api) in RANDOM)
        first = next((value_drawn for value_drawn in drawn if value is None or value_drawn.index < value.index), None)
        if first is not None:
            at = step.frame(first, of_reference=name == "REF")
            return f": before it, only {name} draws with `{function_of(first.api)}`{f' ({at})' if at else ''}"
    return ""


def _computes_otherwise(cause: Cause, inputs: str, computation: str) -> str:
    """``its inputs and arguments agree as far as statistics show, so probably its computation differs.``"""
    extent = " as far as statistics show" if cause.by_statistics else ""
    if cause.unknown:
        but = f"{cause.unknown[0]}{' and others' if len(cause.unknown) > 1 else ''}, which cannot be compared"
        return f"its {inputs} agree{extent}, but for {but}: that differs, or its {computation}."
    return f"its {inputs} agree{extent}, so {'probably ' if extent else ''}its {computation} differs."


def _changed_on_its_way(cause: Cause) -> str:
    """Of the gradient of what a call returned, which is the sum of those that the calls after it have made."""
    if cause.unknown or cause.by_statistics:
        return (
            "the gradients that add up to it agree as far as they were recorded, so probably a hook on this tensor, or "
            "a call that was not recorded, changes it."
        )
    return (
        "the gradients that add up to it agree, so a hook on this tensor, or a call that was not recorded, changes it."
    )


def _inputs(step: Step, row: Compared) -> list[Compared]:
    """The rows of what a value was computed from, each at its first sighting."""
    sources = set(row.expectation.sources) if row.expectation is not None else set[int]()
    source_rows: dict[int, Compared] = {}
    for source in step.rows:
        if source.root in sources:
            source_rows.setdefault(source.root, source)
    return list(source_rows.values())


def _is_unknown(row: Compared) -> bool:
    """True where nothing says that a value agrees with its twin: it has none, or its masks hide the rest."""
    if row.run_value is None or row.ref_value is None or row.distance is None or row.judgement == "not-comparable":
        return True
    return row.distance.how == "statistics" and is_swamped(row.run_value)


def _differing_params(step: Step, row: Compared) -> list[str]:
    """Parameters that went into the call of a value and differ by more than rounding explains."""
    sources = set(row.expectation.sources) if row.expectation is not None else set[int]()
    wrong = {row_of_param.root: row_of_param.param for row_of_param in step.beyond("param")}
    return [name for root, name in wrong.items() if root in sources and name is not None]


def differing_arguments(step: Step, row: Compared) -> Arguments:
    """Arguments of the call of a value that differ between the runs, by name or place."""
    site = row.value.site
    call, twin = step.calls.get((site.micro, site.phase, site.name, site.call), (None, None))
    # A gradient has the arguments of its forward call; a call that a backward function makes has its own.
    if site.phase == "bwd" and (call is None or call.first.args is None):
        call, twin = step.calls.get((site.micro, "fwd", site.name, site.call), (None, None))
    if call is None or twin is None:
        return {}
    return different_arguments(call, twin)


def _called_otherwise(step: Step, row: Compared) -> str:
    """The call, with its line and its arguments, that takes the value whose gradient ``row`` is and is called with
    other arguments in the reference; '' where there is none.
    """
    spot = spot_of(row.value)
    forward = [value for value in step.alignment.mine.values if value.site.phase == "fwd"]
    # The gradient of a value is made by the calls that took it.
    root = next((value.root for value in forward if spot_of(value) == spot), None)
    for call, twin in step.calls.values():
        if call is None or twin is None or call.phase != "fwd" or call.first.kind != "op":
            continue
        if root is not None and root in {value.root for value in call.ins}:
            different = different_arguments(call, twin)
            at = step.frame(call.first)
            if different:
                words = arguments_in_words(different)
                return f"{call.first.api}{f' ({at})' if at else ''}, whose arguments are not the same: {words}"
    return ""
