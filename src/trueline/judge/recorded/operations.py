"""The operations of a recorded step behind a site: the one called there, or those that computed the value there."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from trueline.judge.recorded.step_values import Call, StepValues, Value
from trueline.schema.site import Site

_GRADIENTS = ("bwd", "grad")


def operations_of(step: StepValues, site: Site) -> list[Call]:
    """The calls of operations that ``site``, with or without a slot that is there, is of: the call itself; the one that
    returned this tensor, or as a gradient computed it; of a parameter's gradient all that took the parameter; of a
    module all inside of it. Empty where none was recorded. Calls are those of the forward pass, or of the update.
    """
    calls = step.calls()
    operations = {call.key: call for call in calls if _is_operation(call)}
    for phase in ("fwd", site.phase) if site.phase == "bwd" else (site.phase,):
        operation = operations.get((site.micro, phase, site.name, site.call))
        if operation is not None:
            return [operation]
    call = next((call for call in calls if call.key == (site.micro, site.phase, site.name, site.call)), None)
    if call is None:
        return []
    values = [value for value in call.values if value.site.slot == site.slot]
    return (
        _that_computed(values, operations.values(), calls)
        or _that_took_parameter(site, operations.values(), calls)
        or _inside(call, operations.values(), calls)
    )


def _is_operation(call: Call) -> bool:
    """A backward row without arguments is the gradient of a value of that forward call, and no call."""
    return call.first.kind in ("op", "collective") and (call.phase != "bwd" or call.first.args is not None)


def _that_computed(values: Sequence[Value], operations: Collection[Call], calls: Sequence[Call]) -> list[Call]:
    """The operations whose result, or the gradients of whose inputs, ``values`` are: by the tensor, not the name."""
    roots = {value.root for value in values}
    if values and values[0].site.phase not in _GRADIENTS:
        # a value that its call also took was there before
        return [
            operation
            for operation in operations
            if roots & {value.root for value in operation.outs} - {value.root for value in operation.ins}
        ]
    gradients = {call.key: call for call in calls if call.phase == "bwd"}
    computed = {
        (call.micro, "fwd", call.name, call.number)
        for call in gradients.values()
        if roots & {value.root for value in call.ins}
    }
    return [operation for operation in operations if operation.key in computed]


def _that_took_parameter(site: Site, operations: Collection[Call], calls: Sequence[Call]) -> list[Call]:
    """The operations that a parameter's gradient is the sum of, over uses and micro-batches: those that took the
    parameter; where it was not seen to be the same tensor, as under DDP, those whose gradients it had; else all of its
    module.
    """
    if site.phase not in _GRADIENTS:
        return []
    of_parameter = [call for call in calls if call.name == site.name and call.first.kind == "param"]
    parameter = {value.root for call in of_parameter if call.phase == "param" for value in call.values}
    users = [
        operation
        for operation in operations
        if operation.phase == "fwd" and parameter & {value.root for value in operation.ins}
    ]
    gradients = [value for call in of_parameter if call.phase == "bwd" for value in call.values]
    owner = site.name.rpartition(".")[0]
    return (
        users
        or _that_computed(gradients, operations, calls)
        or [
            operation
            for operation in operations
            if of_parameter and operation.phase == "fwd" and operation.module == owner
        ]
    )


def _inside(call: Call, operations: Collection[Call], calls: Sequence[Call]) -> list[Call]:
    """The operations between what a module took and what it returned."""
    if call.first.kind != "module":
        return []
    forward = next(
        (candidate for candidate in calls if candidate.key == (call.micro, "fwd", call.name, call.number)), None
    )
    if forward is None:
        return []
    begin, end = forward.values[0].index, forward.values[-1].index
    return [operation for operation in operations if operation.phase == "fwd" and begin < operation.first.index < end]
