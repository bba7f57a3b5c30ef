"""Concludes findings from the judgements of all steps: the first place that is wrong, not the largest difference."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from trueline.comparison.expect.rounding import UNIT_ROUNDOFF, coarser
from trueline.comparison.judgement.cause import Cause, cause_of, differing_arguments, in_words
from trueline.comparison.judgement.cut_gradients import CutGradient, calls_behind, cut_gradient, own_backward
from trueline.comparison.judgement.functions_of_one_run import functions_of_one_run
from trueline.comparison.judgement.history.loss_gap import FIRST_STEP, loss_ratio
from trueline.comparison.judgement.history.over_time import LateFault, execution_order
from trueline.comparison.judgement.inserted_calls import inserted_calls
from trueline.comparison.judgement.settings import SettingsDifference, differing_settings, setting_of
from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.structure import Cause as StructureCause
from trueline.comparison.judgement.structure import Structure, calls_alone, innermost
from trueline.comparison.judgement.structure_text import difference_in_words, the_runs_part
from trueline.comparison.judgement.ties import BrokenTie, broken_tie
from trueline.comparison.judgement.unrecorded_code import (
    call_around,
    is_of_modules,
    lonely_calls,
    module_of,
    taken_by,
    user_of,
)
from trueline.comparison.judgement.values.argument_differences import (
    arguments_in_words,
    different_arguments,
    is_fraction,
    is_word,
    shown_arguments,
)
from trueline.comparison.judgement.values.precision import DtypesPart, dtypes_part, update_part
from trueline.comparison.judgement.values.value_judgement import LIMIT, NONFINITE, Compared
from trueline.comparison.match.graph_diff import GraphDifference
from trueline.comparison.op_names import function_of
from trueline.comparison.result import command_for
from trueline.judge.recorded.step_values import Call, Value
from trueline.judge.series.clip_calls import calls_at
from trueline.schema.finding import SEVERITIES, Finding
from trueline.schema.site import Site
from trueline.schema.text.words import capitalized, counted, named_some
from trueline.store.reader import Run

First = tuple[Step, Compared]
Told = Mapping[str, Sequence[str]]
"""Arguments that differ, as a finding has them: of the run and of the reference."""


@dataclass(frozen=True)
class Conclusion:
    """``findings``, errors first; the value where the difference begins, None where rounding explains everything; and
    the steps, that value judged as beyond rounding.
    """

    findings: list[Finding]
    first: First | None
    steps: Sequence[Step]


def conclude(mine: Run, theirs: Run, steps: Sequence[Step], late: LateFault | None = None) -> Conclusion:
    """What the judgements of all steps say. Of a ``late`` fault and the first value that rounding does not explain the
    earlier one counts: what comes after it may be its consequence.
    """
    findings, first, begins = _by_laws(steps)
    marked = steps
    if late is not None and (first is None or _is_before(steps[late.at], late, begins)):
        rows = [late.row if row.position == late.row.position else row for row in steps[late.at].rows]
        step = replace(steps[late.at], rows=rows)
        findings, first, marked = [late.finding], (step, late.row), [*steps[: late.at], step, *steps[late.at + 1 :]]
        begins = execution_order(*first)
    settings = differing_settings(mine, theirs)
    if settings is not None:
        findings = _with_settings(findings, settings, first, steps)
    findings = [*_buffers_updated_otherwise(steps), *findings]
    part = dtypes_part(steps)
    if part is not None:
        leads = first is None or execution_order(part.step, part.row) <= begins
        findings = [_precision_differs(part, found=findings if leads else ()), *findings]
        first = (part.step, part.row) if leads else first
    updated = update_part(steps) if part is None else None
    if updated is not None:
        findings = [_update_precision_differs(updated), *findings]
        leads = first is None or execution_order(updated.step, updated.row) <= begins
        first = (updated.step, updated.row) if leads else first
    tie = broken_tie(steps)
    if tie is not None and (first is None or execution_order(tie.step, tie.row) <= execution_order(*first)):
        findings = [_tie_differs(tie), *(each for each in findings if not _is_of_tie(each, tie))]
        first = tie.step, tie.row
    if all(each.code != "structure-differs" for each in findings):
        inserted = _calls_inserted(steps)
        findings += [] if inserted is None else [inserted[0]]
        first = first or (None if inserted is None else inserted[1])
    if not findings:
        findings += _explained(steps)
    findings += [
        *_sites_missing(steps),
        *([] if part else _dtype_differs(steps)),
        *_arguments_differ(steps, told=findings),
    ]
    return Conclusion(in_causal_order(findings), first, marked)


def _is_before(step: Step, late: LateFault, begins: Order) -> bool:
    """Whether a late fault comes before what ``begins`` there. At one value, a change between two steps is an exact
    contradiction, and the laws know more than a value's own history.
    """
    order = execution_order(step, late.row)
    return order < begins or (order == begins and late.finding.false_alarm_rate == 0.0)


def in_causal_order(findings: Iterable[Finding]) -> list[Finding]:
    """Findings, errors first, then by their first step; those of one step stay in the order in which they are given,
    causes before what they may have caused. A finding without a step follows those with one.
    """
    return sorted(
        findings,
        key=lambda each: (SEVERITIES.index(each.severity), math.inf if each.step_first is None else each.step_first),
    )


Order = tuple[int, float, int]
"""As ``execution_order`` gives it."""
_NOWHERE: Order = (0, math.inf, 0)


def _by_laws(steps: Sequence[Step]) -> tuple[list[Finding], First | None, Order]:
    """Findings on differences that rounding does not explain, the first such value, and where in the order of execution
    that begins: of the first step that has any, and there of the first. A call of the run that does not give that order
    begins where its results are used. Parameters before an update are no consequences.
    """
    at = min((step.step for step in steps if _parts(step)), default=None)
    concerned = [step for step in steps if step.step == at]
    weights = list(_all(concerned, "param"))
    others = sorted(
        _all(concerned, "given", "call", "gradient", "unrecorded"),
        key=lambda found: (found[1].position, found[0].rank or 0),
    )
    if any(step.before is not None for step, _ in weights):
        # What calls make of parameters that were updated otherwise is a consequence.
        others = [found for found in others if found[1].position < weights[0][1].position]
        findings = [] if others else [_update_result_differs(weights)]
    else:
        findings = _weights_differ(weights)
    structure = _first_structure(concerned) or _lonely_inside(others)
    if structure is not None:
        step, cause = structure[0], _with_its_module(*structure)
        begins = _begin_of(step, cause.row, found_at=cause.place)
        return [*findings, _structure_differs(step, cause)], (step, cause.row), begins
    so_far = [step for step in steps if at is None or step.step <= at]
    cut = next(((step, found) for step in so_far if (found := cut_gradient(step)) is not None), None)
    if cut is not None:
        findings = findings if cut[0].step == at else []
        first = (cut[0], cut[1].row)
        place = Structure(cut[0]).place_of(cut[1].row)
        return [*findings, _gradients_cut(*cut)], first, _begin_of(*first, found_at=place)
    if others:
        finding = _FINDING_OF[_origin(others[0][1])](others)
        # Parts of a merged weight are parameters too, and their call is given the whole.
        findings += [] if weights and finding.code == "weight-differs" else [finding]
    wiring = _wiring_differs(concerned, before=others[0] if others else None)
    if wiring is not None and others and _origin(others[0][1]) == "update":
        return [wiring[0], *findings], wiring[1], execution_order(*wiring[1])  # what is updated follows from gradients
    findings += [] if wiring is None else [wiring[0]]
    first = (others or weights or _rewired(concerned) or [None])[0]
    return findings, first, _NOWHERE if first is None else execution_order(*first)


def _begin_of(step: Step, row: Compared, *, found_at: float) -> Order:
    """Where ``row`` is in the order of execution; one of the run that does not give it, where it was ``found_at``."""
    return execution_order(step, row) if row.root is not None else (step.step, found_at, step.rank or 0)


def _parts(step: Step) -> bool:
    """Whether the runs part in ``step``; rounding may explain too much of what follows from another call graph."""
    if step.first is not None or step.rewired_rows:
        return True
    return any(row.rewired for row in step.rows) and _first_structure([step]) is not None


def _first_structure(steps: Sequence[Step]) -> tuple[Step, StructureCause] | None:
    """The first difference of the call graphs that explains how values of ``steps`` differ. Runs whose ranks are merged
    are laid out differently, and gather and cut values that one rank has whole: what they call does not explain it.
    """
    found = [
        (step, cause) for step in steps if step.rank is not None and (cause := Structure(step).cause()) is not None
    ]
    return min(found, key=lambda each: each[1].place, default=None)


def _lonely_inside(found: Sequence[First]) -> tuple[Step, StructureCause] | None:
    """Calls that only one run makes, of the module whose unrecorded code the first difference comes from."""
    if not found:
        return None
    step, first = found[0]
    if not is_of_modules(step) or first.value.site.phase != "fwd":
        return None
    value = first.value
    module = value.site.name if value.returned else value.module
    difference = lonely_calls(step, module)
    calls = [call.first for call in (*difference.mine, *difference.theirs)]
    row = next((row for row in step.rows if any(each in (row.run_value, row.ref_value) for each in calls)), None)
    return None if row is None else (step, StructureCause(difference, first.position, row, first))


def _with_its_module(step: Step, cause: StructureCause) -> StructureCause:
    """``cause`` with all calls without a twin that the same code makes, where what it does between them was not
    recorded, and only the last ones lead to the values after it.
    """
    if not is_of_modules(step):
        return cause
    difference = lonely_calls(step, cause.row.value.module)
    calls = [call.first for call in (*difference.mine, *difference.theirs)]
    if cause.row.value not in [value for call in (*difference.mine, *difference.theirs) for value in call.values]:
        return cause
    row = next((row for row in step.rows if any(each in (row.run_value, row.ref_value) for each in calls)), cause.row)
    return cause._replace(difference=replace(difference, seam=cause.difference.seam), row=row)


def _structure_differs(step: Step, cause: StructureCause) -> Finding:
    """A difference of the call graphs, and the first value that it changes."""
    words = difference_in_words(step, cause.difference)
    after = cause.after.value
    claim = (
        f"{the_runs_part(cause.difference, words)} The values after it differ, first {after.site} {_by(cause.after)}."
    )
    finding = _finding(
        "structure-differs",
        "error",
        claim,
        [(step, cause.row)],
        evidence={
            "difference": words,
            "after": str(after.site),
            "only in RUN": _sites(cause.difference.mine),
            "only in REF": _sites(cause.difference.theirs),
        },
        next=("Compare the code of both runs at these lines.", command_for(step.run.path, after.site)),
    )
    seam = cause.difference.seam
    if is_of_modules(step) and seam is not None and not (cause.difference.mine or cause.difference.theirs):
        finding = _at_call_around(finding, step, cause.row, seam.mine.module)
    return replace(finding, measured=cause.after.distance and cause.after.distance.rel, unit="relative L2 difference")


def _gradients_cut(step: Step, cut: CutGradient) -> Finding:
    """Gradients that end or turn at a call that only one run makes, or that only one run has."""
    words = difference_in_words(step, cut.difference)
    claim = f"{the_runs_part(cut.difference, words)} " if words else ""
    if cut.params:
        verb = "has a gradient" if len(cut.params) == 1 else "have a gradient"
        claim += (
            f"{counted(len(cut.params), 'parameter')} {verb} only in {'RUN' if cut.of_run else 'REF'}: "
            f"{named_some(cut.params)}."
        )
        if is_of_modules(step) and cut.row.value.kind == "module":
            claim += f" They end in code of {cut.row.value.site.name} that was not recorded."
    else:
        agree = _loss_in_words(step) or "The values agree, and gradients do not. "
        claim += f"{agree}The first gradient that differs is {cut.after.value.site}."
        calls = (*cut.difference.mine, *cut.difference.theirs)
        if cut.after.unmatched and cut.after.value.returned:
            claim += own_backward(step, frozenset(call.module for call in calls))
    evidence = {"difference": words, "parameters": cut.params[:100]}
    code = "Compare the code of both runs at these lines." if words else "Compare where both runs cut gradients off."
    next = (code, command_for(step.run.path, cut.row.value.site))
    return _finding("structure-differs", "error", claim, [(step, cut.row)], evidence=evidence, next=next)


def _all(steps: Sequence[Step], *origins: str) -> Iterator[First]:
    for step in steps:
        for row in step.beyond(*origins):
            yield step, row


def _rewired(steps: Sequence[Step]) -> list[First]:
    return [(step, row) for step in steps for row in step.rewired_rows]


def _origin(row: Compared) -> str:
    """The origin of the first difference; values of the optimizer have an origin of their own."""
    assert row.expectation is not None
    origin = row.expectation.origin
    return "update" if origin in ("call", "gradient") and row.value.site.phase == "opt" else origin


_BEFORE_MODEL = (
    "If the script computes this value before the model, call trueline.watch in the script before its loop: under "
    "trueline run, calls before the very first forward pass are not recorded."
)


def _input_differs(found: Sequence[First]) -> Finding:
    """The finding on what no recorded call computed: data where the model itself, or code before it, takes it first; a
    buffer or a constant where a module inside of the model does.
    """
    step, first = found[0]
    value = first.value
    command = command_for(step.run.path, value.site)
    if value.site.phase == "opt":
        return _state_differs(step, first)
    inside = _is_inside(step, value)
    if not inside:
        claim = f"The value {value.site}, which no recorded call computed, differs from the reference {_by(first)}."
        data = "Compare the data first: samples, their order and the seed of the sampler, of both runs at this step"
        if value.kind != "module":
            data += "; and the constants that the script uses before the model, such as a schedule or a mean"
        before = (each for each in step.alignment.mine.values if each.index < value.index)
        seen = any(each.kind == "op" and not each.module and each.site.phase == "fwd" for each in before)
        unseen = () if seen or value.kind != "module" else (_BEFORE_MODEL,)
        return _finding("input-differs", "error", claim, found[:1], next=(f"{data}.", *unseen, command))
    buffer = _BUFFERS.get((value.function, value.site.slot))
    named = f"the buffer {value.module}.{buffer}" if buffer else f"a buffer or constant of {value.module}"
    taken = f"{named}, taken by {value.site}"
    claim = f"{capitalized(taken)}, differs from the reference {_by(first)}; no recorded call computed it."
    load = "Load the same checkpoint into both runs, and compare how the module makes what it does not load."
    return _finding("weight-differs", "error", claim, found[:1], next=(load, command))


def _state_differs(step: Step, first: Compared) -> Finding:
    """The finding on a state that the optimizer of one run had before the first update that was compared."""
    value = first.value
    sums = [
        None if side is None or side.stats is None else side.stats.sum for side in (first.run_value, first.ref_value)
    ]
    is_count = value.numel == 1 and value.dtype in UNIT_ROUNDOFF and function_of(value.api) == "add"
    numbers = f": {sums[0]:.6g} in RUN and {sums[1]:.6g} in REF" if value.numel == 1 and None not in sums else ""
    what = "the number of updates so far" if is_count else "a state"
    claim = (
        f"The optimizers begin with different states, of which no recorded call made any: first {value.site}, {what}, "
        f"differs {_by(first)}{numbers}."
    )
    load = "Load the optimizer's state in both runs, or in neither."
    next = (load, command_for(step.run.path, value.site))
    return _finding("optimizer-differs", "error", claim, [(step, first)], next=next)


def _is_inside(step: Step, value: Value) -> bool:
    """Whether a module inside of the model takes a value, and not the model itself or code outside of it."""
    models = {each.site.name for each in step.alignment.mine.values if each.kind == "module" and not each.module}
    return value.module not in ("", *models)


_BUFFERS = {
    (function, slot): name
    for function in ("batch_norm", "instance_norm")
    for slot, name in (("in1", "running_mean"), ("in2", "running_var"))
}
"""The buffers that functions of torch take and write, by function and slot."""


def _weights_differ(found: Sequence[First]) -> list[Finding]:
    if not found:
        return []
    step, first = found[0]
    names = list(dict.fromkeys(row.param or row.value.site.name for _, row in found))
    # A parameter is named by its own site, not by that of the call that took it first.
    found = sorted(found, key=lambda each: each[1].value.site.phase != "param")
    num_params = len({row.param for row in step.rows} | set(names)) - 1
    claim = (
        f"{len(names)} of {counted(num_params, 'parameter')} {'differs' if len(names) == 1 else 'differ'} from the "
        f"reference at step {step.step}, before any update that was compared: {named_some(names)}, {_by(first)}."
    )
    load = "Load the same checkpoint into both runs, or seed both before the model is made."
    if 2 * len(names) < num_params:
        load = "Look for what writes to these parameters after the model is made or loaded: the others are equal."
    return [_finding("weight-differs", "error", claim, found, evidence={"parameters": names[:100]}, next=(load,))]


def _update_result_differs(found: Sequence[First]) -> Finding:
    """Parameters that differ although they and their gradients were equal before the update."""
    step, first = found[0]
    assert step.before is not None
    names = list(dict.fromkeys(row.param or row.value.site.name for _, row in found))
    alone = next((row for row in step.before.rows if row.unmatched and row.value.site.phase == "opt"), None)
    claim = (
        f"The update at step {step.before.step} differs from the reference: all parameters and gradients are equal "
        f"before it, and at step {step.step} {counted(len(names), 'parameter')} "
        f"{'differs' if len(names) == 1 else 'differ'}: {named_some(names)}, {_by(first)}."
    )
    if alone is not None:
        claim += f" {alone.value.site.name} is {alone.note}."
    same = "Build both optimizers from one configuration, and compare what else changes parameters between two steps."
    return _finding("optimizer-differs", "error", claim, found, evidence={"parameters": names[:100]}, next=(same,))


def _wiring_differs(steps: Sequence[Step], *, before: First | None) -> tuple[Finding, First] | None:
    """Where calls take different inputs than in the reference, and that value, unless the final results are equal."""
    found = _rewired(steps)
    if before is not None:
        found = [
            (step, row) for step in steps for row in step.rows if row.rewired and row.position < before[1].position
        ]
    if not found:
        return None
    step, first = min(found, key=lambda each: (each[1].position, each[0].rank or 0))
    value = first.value
    found = _gradients_turn(step, first, alone=before is None)
    if found is not None:
        return found, (step, first)
    at = step.frame(value)
    where = f"{value.site} ({value.api or value.kind}{', ' + at if at else ''})"
    claim = f"{where} takes different inputs than in the reference: the two models connect their calls differently."
    compare = "Compare the forward methods of both models at this call."
    if value.site.phase in ("grad", "opt"):
        return _updates_differ(step, first), (step, first)
    if value.site.phase == "bwd":
        claim = f"In the backward pass {where} differs from the reference {_by(first)}: it is made of other gradients."
        compare = "Compare what both models do backwards at this line: autograd functions of your own, hooks, detach."
    next = (compare, command_for(step.run.path, value.site))
    return _finding("structure-differs", "error", claim, [(step, first)], next=next), (step, first)


def _updates_differ(step: Step, first: Compared) -> Finding:
    """The finding on calls between the backward pass and the end of the update that only one run makes."""
    value = first.value
    clips = [len(calls_at(run, step.step, step.rank)) for run in (step.run, step.ref or step.run)]
    alone = calls_alone(step, value.site.phase)
    words = difference_in_words(step, alone) if alone.mine or alone.theirs else "the same calls take other values"
    if value.site.phase == "opt":
        code, same = "optimizer-differs", "Build both optimizers from one configuration."
        claim = f"The optimizers compute differently: {words}. First {value.site} differs {_by(first)}."
    else:
        code, same = "structure-differs", "Do the same to the gradients in both runs before the update."
        what = "what is done to gradients before the update is not the same"
        if bool(clips[0]) != bool(clips[1]):
            what = f"only {'RUN' if clips[0] else 'REF'} clips gradients"
        claim = (
            f"All that the backward pass computes agrees, and {what}: {words}. First {value.site} differs {_by(first)}."
        )
    next = (same, command_for(step.run.path, value.site))
    return _finding(code, "error", claim, [(step, first)], evidence={"difference": words}, next=next)


def _gradients_turn(step: Step, first: Compared, *, alone: bool) -> Finding | None:
    """The finding on calls that only one run makes, where the ``first`` gradient that differs is of what they took or
    returned; ``alone``: nothing of the forward pass differs. None where there are no such calls.
    """
    value = first.value
    behind = calls_behind(step, first) if value.site.phase == "bwd" else None
    if behind is None:
        return None
    loss = _loss_in_words(step) if alone else ""
    if loss:
        behind = _with_functions_of_one_run(step, *behind)
    words = difference_in_words(step, behind[0])
    differ = _GRADIENTS_ALONE if alone and not loss else f"{loss}Gradients before them differ, first"
    own = own_backward(step, frozenset(call.module for call in (*behind[0].mine, *behind[0].theirs)))
    claim = f"{the_runs_part(behind[0], words)} {differ} {value.site} {_by(first)}.{own}"
    next = ("Compare the code of both runs at these lines.", command_for(step.run.path, value.site))
    evidence = {"difference": words, "after": str(value.site)}
    return _finding("structure-differs", "error", claim, [(step, behind[1])], evidence=evidence, next=next)


def _with_functions_of_one_run(
    step: Step, difference: GraphDifference, row: Compared
) -> tuple[GraphDifference, Compared]:
    """The difference to name where the losses part though no value that both runs have does, and the row to show."""
    own = functions_of_one_run(step)
    calls = [*own.mine, *own.theirs]
    if not calls:
        return difference, row
    return own, next(each for each in step.rows if calls[0].first in (each.run_value, each.ref_value))


def _loss_in_words(step: Step) -> str:
    """``The recorded loss is 2.308 times that of REF. `` where it is another one than rounding makes; else ''."""
    ratio = None if step.ref is None else loss_ratio(step.run, step.ref, step.step, step.rank)
    if ratio is None or abs(ratio / step.alignment.loss_scale - 1) <= FIRST_STEP:
        return ""
    return f"The recorded loss is {ratio:.4g} times that of REF. "


_GRADIENTS_ALONE = "What the model returns agrees, and gradients before these calls do not, first"


def _sites(calls: Sequence[Call]) -> list[str]:
    return [str(call.first.site) for call in innermost(calls)][:100]


def _update_differs(found: Sequence[First]) -> Finding:
    step, first = found[0]
    why = in_words(cause_of(step, first))
    claim = f"The update differs from the reference at {first.value.site} {_by(first)}; {why}"
    settings = None if step.ref is None else differing_settings(step.run, step.ref)
    setting = setting_of(
        first.value.site.name,
        differing_arguments(step, first),
        on_param=_takes_parameter(step, first),
        apart=None if settings is None else settings.settings,
    )
    if setting:
        claim = f"{claim[:-1]}: {setting}."
    same = "Build both optimizers from one configuration, and compare their param_groups."
    return _finding(
        "optimizer-differs", "error", claim, found[:1], next=(same, command_for(step.run.path, first.value.site))
    )


def _with_settings(
    findings: Sequence[Finding], settings: SettingsDifference, first: First | None, steps: Sequence[Step]
) -> list[Finding]:
    """``findings`` and that on ``settings``, which leads where they may have caused the first difference, and has then
    the evidence of what the update shows.
    """
    at = None if first is None else (first[0].step, first[1].value.site.phase)
    caused = at is None or settings.may_have_caused(*at)
    of_update = next((each for each in findings if each.code == "optimizer-differs"), None)
    if settings.only_class and of_update is None:
        claim = f"The optimizers are of different classes: {settings.in_words()}; what they compute agrees."
        return [*findings, Finding("optimizer-differs", "info", claim)]
    what = "Gradients are clipped" if settings.only_clipping else "The optimizers are set"
    claim = f"{what} differently: {settings.in_words()}."
    for side, names in _updated_in_one(steps).items() if settings.of_count else ():
        claim += f" Only {side} updates {named_some(names)}."
    if not caused:
        claim += f" That cannot have caused the first difference, which is before the update of step {settings.since}."
    own = Finding(
        "optimizer-differs",
        "error" if caused else "warning",
        claim,
        step_first=settings.since,
        evidence={"settings": {name: list(pair) for name, pair in settings.settings.items()}},
        next=(
            "Clip by the same norm in both."
            if settings.only_clipping
            else "Build both optimizers from one configuration, and compare their param_groups.",
        ),
    )
    if caused and settings.only_clipping and first is not None and first[1].value.site.phase == "grad":
        return [
            replace(own, sites=(str(first[1].value.site),)),
            *(each for each in findings if each.code != _FIRST),
        ]
    if not caused or of_update is None:
        return [own, *findings]
    shown = replace(
        of_update,
        claim=f"{claim} {of_update.claim}",
        evidence={**of_update.evidence, **own.evidence},
        next=tuple(dict.fromkeys((*own.next, *of_update.next[1:]))),
    )
    return [shown, *(each for each in findings if each is not of_update)]


_FIRST = "first-divergence"


def _updated_in_one(steps: Sequence[Step]) -> Mapping[str, list[str]]:
    """By run, the parameters that are other than at the first step at the last one, and in the other run are not."""
    ends = [step for step in steps if step.rank == steps[0].rank] if steps else []
    seen = [{row.value.site.name: row for row in step.rows if row.value.site.phase == "param"} for step in ends]
    found: dict[str, list[str]] = {}
    for name, last in seen[-1].items() if seen else ():
        first = seen[0].get(name)
        pairs = [] if first is None else [(first.run_value, last.run_value), (first.ref_value, last.ref_value)]
        moved = [one.stats != other.stats for one, other in pairs if one is not None and other is not None]
        if len(moved) == 2 and moved[0] != moved[1]:
            found.setdefault("RUN" if moved[0] else "REF", []).append(name)
    return found


def _first_divergence(found: Sequence[First]) -> Finding:
    step, first = found[0]
    user = user_of(step, first)
    if user is not None and first.value.site.phase == "bwd":
        return _made_by_code(found, user)
    value, cause, at = first.value, cause_of(step, first), step.frame(first.value)
    why = in_words(cause)
    if cause.reason == "received":
        turned = _gradients_turn(step, first, alone=True)
        if turned is not None:
            return turned
        taken = taken_by(step, first)
        if taken is not None:
            found = [(step, taken), *found[1:]]
            first, value, cause = taken, taken.value, cause_of(step, taken)
            why = f"{in_words(cause)[:-1]}, or a hook on this tensor changes it."
    what = "value whose checksum differs" if _by_checksum(first) else "difference that rounding does not explain"
    claim = (
        f"The first {what} is at {value.site} ({value.api or value.kind}{', ' + at if at else ''}): {_by(first)}; {why}"
    )
    there = {each.rank for each, row in found if each.rank is not None and row.value.site.name == value.site.name}
    return _finding(
        "first-divergence",
        "error",
        claim,
        found[:1],
        ranks=tuple(sorted(there)) or value.ranks,
        evidence={
            "kind": cause.reason,
            "why": why,
            "where": at,
            "beyond": len(found),
            "arguments": shown_arguments(differing_arguments(step, first)),
        },
        next=_next(step, first, cause),
    )


def _unrecorded_differs(found: Sequence[First]) -> Finding:
    """The finding on a value that code between calls of modules computed, which was not recorded: it names the module
    that the code belongs to, the innermost one that can be told.
    """
    return _made_by_code(found, module_of(*found[0]) or "")


def _made_by_code(found: Sequence[First], module: str) -> Finding:
    """The same, where the ``module`` is known."""
    step, first = found[0]
    value = first.value
    whose = f"code of {module}" if module else "code outside of the model"
    had = "the gradients that it was given agree" if value.site.phase == "bwd" else "what it was given agrees"
    by = _by(first)
    claim = (
        f"The first difference that rounding does not explain is made by {whose}, which was not recorded, at "
        f"{value.site}: {by}; {had} as far as it was recorded."
    )
    finding = _at_call_around(_finding("first-divergence", "error", claim, found[:1]), step, first, module)
    names = f', names = ["{module}*"]' if module else ""
    record = f'Record all calls in both runs, with preset = "mix"{names} in the Plan: they show which one differs.'
    return replace(finding, next=(record, command_for(step.run.path, value.site)))


def _at_call_around(finding: Finding, step: Step, first: Compared, module: str) -> Finding:
    """``finding``, its first site that of the call whose code was not recorded, and which computed ``first``."""
    around = call_around(step, first, module)
    if around is None:
        return finding
    at = step.frame(around.value)
    return replace(
        finding,
        sites=(str(around.value.site), *finding.sites),
        evidence={**finding.evidence, **({"where": at} if at else {})},
    )


def _takes_parameter(step: Step, row: Compared) -> bool:
    """Whether the call of a value takes a parameter."""
    sources = set[int]() if row.expectation is None else set(row.expectation.sources)
    return any(each.param is not None and each.root in sources for each in step.rows)


def _by_checksum(row: Compared) -> bool:
    """Whether only the existence of a difference is known, not its size."""
    return row.distance is not None and row.distance.how == "fingerprint" and row.distance.rel is None


def _arguments_differ(steps: Sequence[Step], *, told: Sequence[Finding]) -> list[Finding]:
    """Calls whose fractional arguments (an epsilon) or words (an approximation) differ: worth knowing even where
    rounding hides the effect. Those that findings have ``told`` of already are left out.
    """
    known: list[Any] = [finding.evidence.get("arguments") for finding in told]
    names = {(name, *pair) for each in known if isinstance(each, dict) for name, pair in cast(Told, each).items()}
    differing: list[str] = []
    for mine, theirs in steps[0].alignment.calls if steps else ():
        if mine is None or theirs is None or mine.phase != "fwd" or mine.first.args == theirs.first.args:
            continue
        for name, (one, other) in different_arguments(mine, theirs).items():
            new = (name, *shown_arguments({name: (one, other)})[name]) not in names
            if new and ((is_fraction(one) and is_fraction(other)) or is_word(one) or is_word(other)):
                differing.append(f"at {mine.first.site} {arguments_in_words({name: (one, other)})}")
    if not differing:
        return []
    more = f", and {len(differing) - 3} more" if len(differing) > 3 else ""
    claim = f"Calls have different arguments than in the reference: {'; '.join(differing[:3])}{more}."
    return [_finding("structure-differs", "info", claim, [], evidence={"arguments": differing[:100]})]


def _buffers_updated_otherwise(steps: Sequence[Step]) -> Iterator[Finding]:
    """Calls that update buffers by another momentum: no result of theirs shows it before an evaluation uses them."""
    for mine, theirs in steps[0].alignment.calls if steps else ():
        if mine is None or theirs is None or mine.phase != "fwd" or mine.first.args == theirs.first.args:
            continue
        if (mine.first.function, "in1") not in _BUFFERS:
            continue
        pair = different_arguments(mine, theirs).get("momentum")
        row = next((row for row in steps[0].rows if row.run_value is mine.first), None)
        if pair is None or row is None or '"training":false' in (mine.first.args or ""):
            continue
        one, other = shown_arguments({"momentum": pair})["momentum"]
        at = steps[0].frame(mine.first)
        claim = (
            f"{mine.first.module} updates its buffers running_mean and running_var by another momentum than in the "
            f"reference: momentum is {one} and not {other}, in {mine.first.site}{f' ({at})' if at else ''}."
        )
        evidence = {"arguments": {"momentum": (one, other)}, "where": at}
        next_ = ("Set the same momentum in both.", command_for(steps[0].run.path, mine.first.site))
        yield _finding("structure-differs", "error", claim, [(steps[0], row)], evidence=evidence, next=next_)
        return


def _sites_missing(steps: Sequence[Step]) -> list[Finding]:
    unmatched = [(step, row) for step in steps for row in step.rows if row.unmatched]
    if not unmatched:
        return []
    reasons = Counter(row.note for _, row in unmatched)
    named = reasons.most_common(3)
    most_common = [f"{count:,} {reason}" for reason, count in named]
    if rest := len(unmatched) - sum(count for _, count in named):
        most_common.append(f"{rest:,} for other reasons")
    has = "has" if len(unmatched) == 1 else "have"
    claim = f"{counted(len(unmatched), 'value')} of one run {has} no twin in the other: {'; '.join(most_common)}."
    params = [found for found in unmatched if found[1].value.site.phase == "param"]
    if params:
        names = list(dict.fromkeys(row.value.site.name for _, row in params))
        claim += f" Among them {counted(len(names), 'parameter')}: {named_some(names)}."
    cut_otherwise = _have_as_many_numbers(params)
    if cut_otherwise:
        claim += (
            " They have as many numbers in both runs: where modules are split or merged, --map says how, and the "
            "parameters are compared too."
        )
    alone = unmatched[0][0].graph_diff.alone
    words = difference_in_words(unmatched[0][0], alone) if alone.mine or alone.theirs else ""
    claim += f" In the forward pass {words}." if words else ""
    severity = "warning" if params and not cut_otherwise else "info"
    shown = (params or unmatched)[:3]
    return [_finding("site-missing", severity, claim, shown, evidence={"reasons": dict(reasons)})]


def _have_as_many_numbers(params: Sequence[First]) -> bool:
    """Whether parameters without a twin have as many numbers in the run as in the reference: the same ones under other
    names, or cut otherwise. Whether they are the same shows in what calls make of them.
    """
    numbers = Counter[bool]()
    for step, row in params:
        if step.step == params[0][0].step:
            numbers[row.run_value is None] += math.prod(row.value.shape)
    return 0 < numbers[True] == numbers[False]


def _dtype_differs(steps: Sequence[Step]) -> list[Finding]:
    found = [
        (step, row)
        for step in steps
        for row in step.rows
        if row.run_value is not None and row.ref_value is not None and row.run_value.dtype != row.ref_value.dtype
    ]
    if not found:
        return []
    pairs = Counter((row.run_value.dtype, row.ref_value.dtype) for _, row in found if row.run_value and row.ref_value)
    pairs_text = "; ".join(f"{count:,} {mine} compared with {theirs}" for (mine, theirs), count in pairs.most_common(3))
    claim = (
        f"Values have different dtypes than in the reference and are judged by the rounding of the coarser one: "
        f"{pairs_text}, first {found[0][1].value.site}."
    )
    return [_finding("dtype-differs", "info", claim, [])]


def _update_precision_differs(part: DtypesPart) -> Finding:
    """The finding on an update in another precision than in the reference, where the forward pass is in one."""
    value = part.row.value
    coarse = coarser(part.dtype, part.ref_dtype)
    side = "RUN" if coarse == part.dtype else "REF"
    claim = (
        f"Weights or states of the optimizer are {part.dtype} in RUN and {part.ref_dtype} in REF, and both compute the "
        f"forward pass in one precision: {side} loses what an update changes of a {coarse} number by less than "
        f"{UNIT_ROUNDOFF[coarse]:.1g} of it. First at {value.site} ({value.api or value.kind})."
    )
    keep = "Keep weights and states of the optimizer in one precision: float32, with autocast or master weights."
    next = (keep, command_for(part.step.run.path, value.site))
    evidence = {"dtypes": [part.dtype, part.ref_dtype]}
    return _finding("dtype-differs", "error", claim, [(part.step, part.row)], evidence=evidence, next=next)


def _tie_differs(tie: BrokenTie) -> Finding:
    """The finding on parameters that are one tensor in one run alone."""
    one, other = ("RUN", "REF") if tie.of_run else ("REF", "RUN")
    at = tie.step.frame(tie.row.value)
    claim = (
        f"{named_some(tie.names)} are one tensor in {one}, and parameters of their own in {other}: the tie is "
        f"{'only there' if tie.of_run else 'lost'}, and each gets the gradient of its own use alone. "
        f"{tie.row.value.site} takes it{f' ({at})' if at else ''}."
    )
    keep = f"Tie them in {other} too, after the model is made and its weights are loaded, or in neither."
    next = (keep, command_for(tie.step.run.path, tie.row.value.site))
    evidence = {"parameters": list(tie.names)}
    return _finding("structure-differs", "error", claim, [(tie.step, tie.row)], evidence=evidence, next=next)


def _is_of_tie(finding: Finding, tie: BrokenTie) -> bool:
    """Whether a finding is on the gradient of a parameter of the tie, which has other terms."""
    names = [Site.parse(site).name for site in finding.sites]
    return finding.code == _FIRST and any(name in tie.names for name in names)


def _calls_inserted(steps: Sequence[Step]) -> tuple[Finding, First] | None:
    """The finding on calls of one run that change nothing of these steps."""
    for step in steps:
        difference = inserted_calls(step)
        if difference is None:
            continue
        words = difference_in_words(step, difference)
        claim = (
            f"{the_runs_part(difference, words)} With the numbers of these steps the values after it agree, up to "
            "rounding; with others they need not."
        )
        calls = innermost([*difference.mine, *difference.theirs])
        row = next(row for row in step.rows if calls[0].first in (row.run_value, row.ref_value))
        next_ = ("Compare the code of both runs at these lines.", command_for(step.run.path, row.value.site))
        evidence = {
            "difference": words,
            "only in RUN": _sites(difference.mine),
            "only in REF": _sites(difference.theirs),
        }
        finding = _finding("structure-differs", "warning", claim, [(step, row)], evidence=evidence, next=next_)
        return finding, (step, row)
    return None


def _precision_differs(part: DtypesPart, *, found: Sequence[Finding]) -> Finding:
    """The finding on the first place of another precision; it leads what was ``found`` after it."""
    value, at = part.row.value, part.step.frame(part.row.value)
    whose = "only the reference" if part.row.run_value is None else "only the run" if part.row.ref_value is None else ""
    made = f"{value.api or value.kind}{', ' + at if at else ''}{', a call of ' + whose if whose else ''}"
    claim = (
        f"The run computes in {part.dtype} where the reference computes in {part.ref_dtype}, first at {value.site} "
        f"({made}); most of the model has one precision in both."
    )
    severity = "error" if any(each.severity == "error" for each in found) else "warning"
    next = ("Look for what casts here: autocast, a buffer or cache of another dtype, or a call of .to().",)
    command = command_for(part.step.run.path, value.site)
    evidence = {"dtypes": [part.dtype, part.ref_dtype], "where": at}
    return _finding("dtype-differs", severity, claim, [(part.step, part.row)], evidence=evidence, next=(*next, command))


def _explained(steps: Sequence[Step]) -> list[Finding]:
    within = [(step, row) for step in steps for row in step.rows if row.judgement == "within"]
    if not within:
        return []
    largest = max(within, key=lambda found: found[1].times or 0.0)
    differ = f"{counted(len(within), 'value')} {'differs' if len(within) == 1 else 'differ'}"
    claim = (
        f"Rounding explains every difference that could be judged: {differ}, by at most "
        f"{largest[1].times or 0.0:.2g} times what is expected, at {largest[1].value.site}. Up to "
        f"{LIMIT['tensor']:.0f} times, or {LIMIT['statistics']:.0f} where it is measured less well, counts as rounding."
    )
    return [_finding("explained-by-rounding", "info", claim, [largest])]


def _finding(
    code: str,
    severity: Any,
    claim: str,
    found: Sequence[First],
    *,
    ranks: tuple[int, ...] | None = None,
    evidence: Mapping[str, Any] | None = None,
    next: tuple[str, ...] = (),
) -> Finding:
    rows = [row for _, row in found]
    first = rows[0] if rows else None
    seen = sorted({rank for row in rows for rank in row.value.ranks})
    steps = [step.step for step, _ in found]
    distance, expectation = (None, None) if first is None else (first.distance, first.expectation)
    return Finding(
        code=code,
        severity=severity,
        claim=claim,
        ranks=tuple(seen) if ranks is None else ranks,
        step_first=min(steps, default=None),
        step_last=max(steps, default=None),
        sites=tuple(str(row.value.site) for row in rows[:5]),
        measured=None if distance is None else distance.rel,
        expected=None if expectation is None else expectation.rel,
        unit="relative L2 difference" if distance is not None else "",
        evidence=dict(evidence or {}),
        next=next,
    )


def _next(step: Step, row: Compared, cause: Cause) -> tuple[str, ...]:
    seen = command_for(step.run.path, row.value.site)
    if cause.reason == "random" and differing_arguments(step, row):
        return (_DO["arguments"], seen)
    if cause.reason == "random" and cause.different:
        return ("Draw as often in both runs, or give what draws in one alone a torch.Generator of its own.", seen)
    if cause.reason in _DO:
        return (_DO[cause.reason], seen)
    if all(side is not None and side.load is not None for side in (row.run_value, row.ref_value)):
        return (seen,)
    record = 'Record the values of this call in both runs: put its name under names in the Plan, and depth = "tensor".'
    decides = cause.by_statistics or cause.unknown
    return (seen, f"{record} They show whether its inputs or its computation differ." if decides else record)


def _by(row: Compared) -> str:
    """By how much a value differs, as a text."""
    if row.distance is None:
        return ""
    if row.distance.nonfinite_differ:
        return NONFINITE
    if row.distance.rel is None:
        return "by an amount that checksums do not show" if _by_checksum(row) else "it cannot be compared"
    if row.distance.reordered:
        return "in the order of its numbers, which are the same as far as statistics show"
    if row.distance.factor is not None:
        return f"by {_multiple(row.distance.factor)}"
    times = row.times
    factor = "" if times is None or math.isinf(times) else f", {times:.3g} times what rounding explains"
    return f"by {row.distance.size_text}{factor}"


def _multiple(factor: float) -> str:
    """In words, how a value differs that is ``factor`` times its twin."""
    if not factor:
        return "being 0 throughout, in this run only"
    name = "its sign" if abs(factor + 1) < _ROUGHLY else f"a factor of about {factor:.3g}"
    return f"{name}, and rounding makes no multiples"


_ROUGHLY = 0.05
"""Up to which a factor is called -1."""

_DO = {
    "random": "Seed both runs equally, with trueline.seed_all(1234), and draw as often before this call in both.",
    "parameters": "Load the same checkpoint into both runs, then compare again.",
    "arguments": "Make the arguments the same, then compare again.",
    "user": "Make the arguments the same, then compare again.",
    "received": "Look for register_hook, or an autograd function of your own, on this tensor in either run.",
}

_FINDING_OF = {
    "given": _input_differs,
    "call": _first_divergence,
    "gradient": _first_divergence,
    "update": _update_differs,
    "unrecorded": _unrecorded_differs,
}
"""The finding on the first difference, by its origin."""
