"""Findings on what a step begins with: parameters, data, buffers and the states of optimizers."""

from __future__ import annotations

from collections.abc import Sequence

from trueline.comparison.expect.rounding import UNIT_ROUNDOFF
from trueline.comparison.judgement.cause import cause_of, in_words
from trueline.comparison.judgement.findings.finding import SEED_ALIKE, difference_text, finding_on
from trueline.comparison.judgement.step import Step, StepRow
from trueline.comparison.op_names import function_of
from trueline.judge.recorded.step_values import Value
from trueline.schema.finding import Finding
from trueline.schema.text.words import capitalized, counted, named_some

BUFFERS = {
    (function, slot): name
    for function in ("batch_norm", "instance_norm")
    for slot, name in (("in1", "running_mean"), ("in2", "running_var"))
}
"""The buffers that functions of torch take and write, by function and slot."""

_BEFORE_MODEL = (
    "If the script computes this value before the model, call trueline.watch in the script before its loop: under "
    "trueline run, calls before the very first forward pass are recorded with `--plan bits` alone."
)


def input_differs(differing: Sequence[StepRow]) -> Finding:
    """The finding on a value that no recorded call computed: data where the model itself, or code before it, takes it
    first; a buffer or a constant where a module inside of the model does.
    """
    first = differing[0]
    if first.site.phase == "opt":
        return _state_differs(first)
    return _buffer_differs(first) if _is_inside(first.step, first.value) else _data_differs(first)


def _data_differs(first: StepRow) -> Finding:
    value = first.value
    if value.kind == "op" and value.returned:
        return _made_of_no_tensor(first)
    claim = (
        f"The value {value.site}, which no recorded call computed, differs from the reference "
        f"{difference_text(first.row)}."
    )
    compare = "Compare the data first: samples, their order and the seed of the sampler, of both runs at this step"
    if value.kind != "module":
        compare += "; and the constants that the script uses before the model, such as a schedule or a mean"
    earlier = (before for before in first.step.alignment.mine.values if before.index < value.index)
    # Calls of a script ahead of the model are recorded at all steps but the very first under ``trueline run``.
    script_recorded = any(
        before.kind == "op" and not before.module and before.site.phase == "fwd" for before in earlier
    )
    watch = () if script_recorded or value.kind != "module" else (_BEFORE_MODEL,)
    return finding_on("input-differs", "error", claim, [first], advice=(f"{compare}.", *watch, first.command))


def _made_of_no_tensor(first: StepRow) -> Finding:
    """The finding on what a call returned that took no tensor: random numbers, or what torch does not see."""
    cause = cause_of(*first)
    begin = f"The first value that differs is what {first.call_text} makes, from no tensor, at {first.site}"
    if cause.reason == "random":
        why, advice = in_words(cause), SEED_ALIKE
    elif cause.reason == "arguments":
        why, advice = f"its arguments differ: {cause.different}.", "Make the arguments the same, then compare again."
    else:
        why = "what it is made of is no tensor of torch, and was not recorded."
        advice = "Compare what this line reads in both runs: a file, an array, another library's random numbers."
    claim = f"{begin}: {difference_text(first.row)}; {why}"
    return finding_on(
        "input-differs", "error", claim, [first], evidence={"where": first.frame}, advice=(advice, first.command)
    )


def _buffer_differs(first: StepRow) -> Finding:
    value = first.value
    buffer = BUFFERS.get((value.function, value.site.slot))
    name = f"the buffer {value.module}.{buffer}" if buffer else f"a buffer or constant of {value.module}"
    claim = (
        f"{capitalized(f'{name}, taken by {value.site}')}, differs from the reference {difference_text(first.row)}; no "
        "recorded call computed it."
    )
    load = "Load the same checkpoint into both runs, and compare how the module makes what it does not load."
    return finding_on("weight-differs", "error", claim, [first], advice=(load, first.command))


def _state_differs(first: StepRow) -> Finding:
    """The finding on a state that the optimizer of one run had before the first update that was compared."""
    value, row = first.value, first.row
    sums = [None if side is None or side.stats is None else side.stats.sum for side in (row.run_value, row.ref_value)]
    is_count = value.numel == 1 and value.dtype in UNIT_ROUNDOFF and function_of(value.api) == "add"
    numbers = f": {sums[0]:.6g} in RUN and {sums[1]:.6g} in REF" if value.numel == 1 and None not in sums else ""
    state = "the number of updates so far" if is_count else "a state"
    claim = (
        f"The optimizers begin with different states, of which no recorded call made any: first {value.site}, {state}, "
        f"differs {difference_text(row)}{numbers}."
    )
    load = "Load the optimizer's state in both runs, or in neither."
    return finding_on("optimizer-differs", "error", claim, [first], advice=(load, first.command))


def _is_inside(step: Step, value: Value) -> bool:
    """True where a module inside of the model takes a value: neither the model itself nor code outside of it."""
    values = step.alignment.mine.values
    models = {result.site.name for result in values if result.kind == "module" and not result.module}
    return value.module not in ("", *models)


def weights_differ(differing: Sequence[StepRow]) -> list[Finding]:
    """The finding on parameters that differ before any update that was compared; [] without any."""
    if not differing:
        return []
    step, first_row = differing[0]
    names = _param_names(differing)
    # A parameter is named by its own site, not by that of the call that took it first.
    own_sites_first = sorted(differing, key=lambda step_row: step_row.site.phase != "param")
    num_params = len({row.param for row in step.rows} | set(names)) - 1
    claim = (
        f"{len(names)} of {counted(num_params, 'parameter')} {'differs' if len(names) == 1 else 'differ'} from the "
        f"reference at step {step.step}, before any update that was compared: {named_some(names)}, "
        f"{difference_text(first_row)}."
    )
    load = "Load the same checkpoint into both runs, or seed both before the model is made."
    if 2 * len(names) < num_params:
        load = "Look for what writes to these parameters after the model is made or loaded: the others are equal."
    evidence = {"parameters": names[:100]}
    return [finding_on("weight-differs", "error", claim, own_sites_first, evidence=evidence, advice=(load,))]


def update_result_differs(differing: Sequence[StepRow]) -> Finding:
    """The finding on parameters that differ although they and their gradients were equal before the update."""
    step, first_row = differing[0]
    assert step.before is not None
    names = _param_names(differing)
    lone = next((row for row in step.before.rows if row.unmatched and row.value.site.phase == "opt"), None)
    claim = (
        f"The update at step {step.before.step} differs from the reference: all parameters and gradients are equal "
        f"before it, and at step {step.step} {counted(len(names), 'parameter')} "
        f"{'differs' if len(names) == 1 else 'differ'}: {named_some(names)}, {difference_text(first_row)}."
    )
    if lone is not None:
        claim += f" {lone.value.site.name} is {lone.note}."
    build = "Build both optimizers from one configuration, and compare what else changes parameters between two steps."
    evidence = {"parameters": names[:100]}
    return finding_on("optimizer-differs", "error", claim, differing, evidence=evidence, advice=(build,))


def _param_names(differing: Sequence[StepRow]) -> list[str]:
    return list(dict.fromkeys(row.param or row.value.site.name for _, row in differing))
