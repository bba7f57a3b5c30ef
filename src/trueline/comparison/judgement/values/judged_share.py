"""How much of two runs was judged: values by pass, why others were not, and the calls that only one run makes.

A value is judged where the difference was measured, and rounding explains so little that a fault would have shown. It
is not judged where one run lacks it; where nothing that both recorded can be compared; where it is what an update
before left, of which no error model says how far two runs may be apart; and where rounding may explain more than
``COARSE_REL`` of its norm, unless the value is equal, hardly differs, or differs by even more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from trueline.comparison.judgement.consequence import NO_CONSEQUENCE
from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values.compared import COARSE_REL, Compared
from trueline.comparison.judgement.values.excuses import DRAWN
from trueline.comparison.judgement.values.value_judgement import LEFT_BY_UPDATE
from trueline.comparison.result import ComparedRow, Judged, JudgedPass, OneSidedCall, Pass
from trueline.judge.recorded.step_values import Call, Value
from trueline.schema.formats import FORMATS

COARSE = f"rounding may explain a difference of more than {COARSE_REL:g} of the norm"

OTHER_SHAPES = "their shapes differ"
_UNMEASURED = "it was not measured"

_PASSES: dict[str, Pass] = {
    "fwd": "forward",
    "save": "forward",
    "bwd": "backward",
    "grad": "backward",
    "opt": "update",
    "param": "update",
    "comm": "communication",
}
"""By phase. Calls between the backward pass and the optimizer (phase grad), as those that clip, count as update: the
gradients of parameters that they leave count as backward."""


@dataclass(slots=True)
class _Count:
    values: int = 0
    judged: int = 0
    why: Counter[str] = field(default_factory=Counter[str])
    run_only: int = 0
    ref_only: int = 0
    of_run: int = 0
    of_ref: int = 0


def judged_share(steps: Sequence[Step]) -> Judged:
    """The share of each pass over all ``steps``, and over the first of them, whose parameters no update moved apart."""
    first = min((step.step for step in steps), default=None)
    passes = _passes(steps)
    at_first = [step for step in steps if step.step == first]
    return Judged(
        passes,
        passes if len(at_first) == len(steps) else _passes(at_first),
        first,
        len({step.step for step in steps}),
        COARSE,
    )


def _passes(steps: Iterable[Step]) -> tuple[JudgedPass, ...]:
    counts: defaultdict[Pass, _Count] = defaultdict(_Count)
    for step in steps:
        for row in step.rows:
            count, why = counts[_pass_of(row.value)], _not_judged(row)
            count.values += 1
            count.of_run += row.run_value is not None
            count.of_ref += row.ref_value is not None
            if why:
                count.why[why] += 1
            else:
                count.judged += 1
        for run_call, ref_call in step.alignment.calls:
            call = _lone_call(run_call, ref_call)
            if call is not None and call.phase != "bwd":  # the backward of a call is no further one
                count = counts[_pass_of(call.first)]
                count.run_only += ref_call is None
                count.ref_only += run_call is None
    return tuple(
        JudgedPass(
            name,
            count.values,
            count.judged,
            dict(count.why.most_common()),
            *(count.run_only, count.ref_only, count.of_run, count.of_ref),
        )
        for name in dict.fromkeys(_PASSES.values())
        if (count := counts.get(name)) is not None
    )


def _pass_of(value: Value) -> Pass:
    return "update" if value.site.phase == "grad" and value.kind == "op" else _PASSES[value.site.phase]


def _not_judged(row: Compared) -> str:
    """The reason why a value was not judged; '' where it was."""
    if row.judgement == "not-comparable" and row.run_value is not None and row.ref_value is not None:
        return (
            OTHER_SHAPES
            if row.run_value.shape != row.ref_value.shape and row.distance is None
            else row.note or _UNMEASURED
        )
    if row.judgement == "not-comparable":
        return row.note or _UNMEASURED
    if row.judgement != "within":
        return ""
    # No error model says how far updates may move two runs apart: within is no answer there.
    if row.note == LEFT_BY_UPDATE:
        return row.note
    return COARSE if row.is_coarse else ""


def incomparable(steps: Sequence[Step]) -> list[str]:
    """Sentences on what made values incomparable in a way that is no fault of either run: the first call of each kind
    that decides otherwise by inputs which rounding moved, that draws random numbers in another dtype, or that computes
    in another way without consequence.
    """
    remarks: dict[str, str] = {}
    for step in steps:
        for row in step.rows:
            value = row.value
            if row.note == DRAWN and row.run_value is not None and row.ref_value is not None:
                remarks.setdefault(
                    DRAWN,
                    f"{value.site} draws random numbers in {row.run_value.dtype}, in the reference in "
                    f"{row.ref_value.dtype}: torch then draws others from the same seed, and what follows from them "
                    "cannot be judged. Draw them in one dtype in both runs.",
                )
            elif row.note == NO_CONSEQUENCE:
                remarks.setdefault(
                    NO_CONSEQUENCE,
                    f"{value.site} differs from the reference, and nothing that follows from it does: the results of "
                    "the model and the gradients of all parameters agree: both compute the same in another way.",
                )
            elif row.judgement == "within" and value.dtype not in FORMATS and value.kind == "op" and value.returned:
                remarks.setdefault(
                    "decided",
                    f"{value.site} decides otherwise than in the reference, by inputs that rounding may have moved. "
                    "That alone is no fault, and what follows from it cannot be judged.",
                )
    return list(remarks.values())


def one_sided_calls(steps: Sequence[Step], rows: Iterable[ComparedRow]) -> tuple[OneSidedCall, ...]:
    """Calls of the forward pass that one run makes and the other does not, each once however often it is made, in the
    order of execution; ``rows`` have the lines of code. Calls inside a module that is listed are left out.
    """
    lines = {(row.site, row.ref_site): row.where for row in rows if row.site is None or row.ref_site is None}
    call_of_key: dict[tuple[bool, str, str], OneSidedCall] = {}
    for step in steps:
        listed: dict[bool, list[str]] = {True: [], False: []}
        for run_call, ref_call in step.alignment.calls:
            call = _lone_call(run_call, ref_call)
            if call is None or call.phase != "fwd" or _is_inside(call, listed[run_call is None]):
                continue
            in_reference, site = run_call is None, str(call.first.site)
            if call.first.kind == "module":
                listed[in_reference].append(call.name)
            where = lines.get((None, site) if in_reference else (site, None), "")
            # A call that is made again, as in each layer's loop, is listed once.
            key = in_reference, call.name, where
            counted_call = call_of_key.get(key) or OneSidedCall(in_reference, site, call.name, where, 0)
            call_of_key[key] = replace(counted_call, num=counted_call.num + 1)
    return tuple(call_of_key.values())


def _lone_call(run_call: Call | None, ref_call: Call | None) -> Call | None:
    """The call that one run alone makes; None where both make it."""
    if run_call is not None and ref_call is not None:
        return None
    return run_call or ref_call


def _is_inside(call: Call, modules: Sequence[str]) -> bool:
    return any(call.name.startswith(f"{module}.") for module in modules)
