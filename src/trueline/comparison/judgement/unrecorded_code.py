"""Which call stands for code that was not recorded, where only calls of modules were: that of the module it is in."""

from __future__ import annotations

from trueline.comparison.expect.unrecorded import is_of_torch
from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values.compared import Compared
from trueline.comparison.match.graph_diff import GraphDifference
from trueline.judge.recorded.step_values import Call, spot_of


def module_of(step: Step, row: Compared) -> str | None:
    """The module whose unrecorded code computed a value, '' outside of the model; None where calls were recorded.

    What a module returns as one that it calls has returned it has two gradients where its code put something on the
    way back; where that of its own result agrees, it is this code.
    """
    if row.expectation is None or row.expectation.within is None:
        return None
    value = row.value
    if value.site.phase != "bwd" or not value.returned:
        return row.expectation.within
    forward = (forward_row for forward_row in step.rows if forward_row.value.site.phase == "fwd")
    roots = {spot_of(forward_row.value): forward_row.root for forward_row in forward}
    root = roots.get(spot_of(value))
    callers = [
        gradient.value.site.name
        for gradient in step.rows
        if gradient.value.site.phase == "bwd" and _is_returned(gradient) and gradient.judgement in ("equal", "within")
        if root is not None and roots.get(spot_of(gradient.value)) == root
    ]
    # A gradient that agrees further out says that the code in between is to blame.
    outer = [name for name in callers if value.site.name.startswith(f"{name}.")]
    return max(outer, key=len, default=row.expectation.within)


def is_of_modules(step: Step) -> bool:
    """True where only calls of modules were recorded."""
    return all(value.kind != "op" for side in step.alignment.sides for value in side.values)


def user_of(step: Step, row: Compared) -> str | None:
    """The module whose unrecorded code uses a parameter whose gradient ``row`` is; None where a function of torch alone
    does, or calls were recorded. A gradient of 0 throughout is none that such code computed: nothing is then known.
    """
    value = row.value
    module = value.site.name.rpartition(".")[0]
    if value.kind != "param" or not is_of_modules(step) or value.stats is None or not value.stats.norm:
        return None
    forward = [forward_row.value for forward_row in step.rows if forward_row.value.site.phase == "fwd"]
    calls_of_module = [call_value for call_value in forward if call_value.site.name == module]
    has_code = any(inner.module == module for inner in forward) or not all(map(is_of_torch, calls_of_module))
    return module if calls_of_module and has_code else None


def taken_by(step: Step, row: Compared) -> Compared | None:
    """The gradient ``row`` of what a module returned, as the only module that takes it has it: one that computes it
    there. None where several do, or unrecorded code does; or where it is 0 throughout, as a hook leaves it.
    """
    stats = row.value.stats
    if not is_of_modules(step) or not row.value.returned or stats is None or not stats.norm:
        return None
    spot = spot_of(row.value)
    forward = [forward_row for forward_row in step.rows if forward_row.value.site.phase == "fwd"]
    root = next((forward_row.root for forward_row in forward if spot_of(forward_row.value) == spot), None)
    users = [user_row.value for user_row in forward if user_row.root == root and not user_row.value.returned]
    user_spots = {spot_of(user) for user in users if is_of_torch(user)}
    if len(users) != 1 or not user_spots:
        return None
    gradients = (gradient for gradient in step.rows if gradient.root == row.root)
    return next((gradient for gradient in gradients if spot_of(gradient.value) in user_spots), None)


def call_around(step: Step, first: Compared, module: str) -> Compared | None:
    """A value that the call of ``module`` returned during which ``first`` was computed; None where none was recorded.

    What the model returned goes through code outside of it too: then, and for such code alone, it is the model's call
    in the forward pass.
    """
    value = first.value
    returned = [row for row in step.rows if _is_returned(row) and row.value.site.micro == value.site.micro]
    models = [row for row in returned if not row.value.module]
    of_model = not module or (
        any(row.value.site.name == module for row in models) and any(row.root == first.root for row in models)
    )
    calls = models if of_model else [row for row in returned if row.value.site.name == module]
    phase = "fwd" if of_model else value.site.phase
    calls = [row for row in calls if row.value.site.phase == phase] or calls
    # A call returns after all that it computes: the first to return later is the one around ``first``.
    return next((row for row in calls if row.position > first.position), None) or next(reversed(calls), None)


def lonely_calls(step: Step, module: str) -> GraphDifference:
    """The calls without a twin that the code of ``module`` makes itself."""
    alone = step.graph_diff.alone
    run_calls, ref_calls = ([call for call in calls if _is_by(call, module)] for calls in (alone.mine, alone.theirs))
    return GraphDifference(run_calls, ref_calls)


def _is_by(call: Call, module: str) -> bool:
    return call.first.kind == "module" and call.first.module == module


def _is_returned(row: Compared) -> bool:
    value = row.value
    return value.kind == "module" and value.returned
