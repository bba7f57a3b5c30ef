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
    roots = {spot_of(each.value): each.root for each in step.rows if each.value.site.phase == "fwd"}
    root = roots.get(spot_of(value))
    around = [
        each.value.site.name
        for each in step.rows
        if each.value.site.phase == "bwd" and _is_returned(each) and each.judgement in ("equal", "within")
        if root is not None and roots.get(spot_of(each.value)) == root
    ]
    outer = [name for name in around if value.site.name.startswith(f"{name}.")]
    return max(outer, key=len, default=row.expectation.within)


def is_of_modules(step: Step) -> bool:
    """Whether only calls of modules were recorded."""
    return all(value.kind != "op" for side in step.alignment.sides for value in side.values)


def user_of(step: Step, row: Compared) -> str | None:
    """The module whose unrecorded code uses a parameter whose gradient ``row`` is; None where a function of torch alone
    does, or calls were recorded. A gradient of 0 throughout is none that such code computed: nothing is then known.
    """
    value = row.value
    module = value.site.name.rpartition(".")[0]
    if value.kind != "param" or not is_of_modules(step) or value.stats is None or not value.stats.norm:
        return None
    forward = [each.value for each in step.rows if each.value.site.phase == "fwd"]
    own = [each for each in forward if each.site.name == module]
    has_code = any(each.module == module for each in forward) or not all(is_of_torch(each) for each in own)
    return module if own and has_code else None


def taken_by(step: Step, row: Compared) -> Compared | None:
    """The gradient ``row`` of what a module returned, as the only module that takes it has it: one that computes it
    there. None where several do, or unrecorded code does; or where it is 0 throughout, as a hook leaves it.
    """
    stats = row.value.stats
    if not is_of_modules(step) or not row.value.returned or stats is None or not stats.norm:
        return None
    place, forward = spot_of(row.value), [each for each in step.rows if each.value.site.phase == "fwd"]
    root = next((each.root for each in forward if spot_of(each.value) == place), None)
    users = [each.value for each in forward if each.root == root and not each.value.returned]
    places = {spot_of(each) for each in users if is_of_torch(each)}
    if len(users) != 1 or not places:
        return None
    return next((each for each in step.rows if each.root == row.root and spot_of(each.value) in places), None)


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
    return next((row for row in calls if row.position > first.position), None) or next(reversed(calls), None)


def lonely_calls(step: Step, module: str) -> GraphDifference:
    """The calls without a twin that the code of ``module`` makes itself."""
    alone = step.graph_diff.alone
    mine, theirs = ([call for call in calls if _is_by(call, module)] for calls in (alone.mine, alone.theirs))
    return GraphDifference(mine, theirs)


def _is_by(call: Call, module: str) -> bool:
    return call.first.kind == "module" and call.first.module == module


def _is_returned(row: Compared) -> bool:
    value = row.value
    return value.kind == "module" and value.returned
