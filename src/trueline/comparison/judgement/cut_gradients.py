"""Where gradients end or turn in one run: at a call that passes numbers on and that only one run makes, as ``detach``.

The forward pass does not show it. The first gradient, in the order of the backward pass, that differs or that only one
run has belongs to a forward call; a call without a twin that takes what this one returned, or took, is to blame.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from trueline.comparison.expect.rounding import UNIT_ROUNDOFF
from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.structure import Structure, agrees
from trueline.comparison.judgement.unrecorded_code import is_of_modules
from trueline.comparison.judgement.values.compared import COARSE_REL, Compared
from trueline.comparison.match.graph_diff import GraphDifference
from trueline.judge.recorded.step_values import Call, CallKey, Value, key_of, spot_of

_PASSING_ON = frozenset({"detach", "view_as", "alias", "clone", "requires_grad"})
"""Functions that return the numbers they are given; a custom autograd function shows as one of them."""


class CutGradient(NamedTuple):
    """Calls that only one run makes (none where no such call was recorded), the ``row`` to show of them, the first
    gradient ``after`` them that differs, and the parameters that only one run (``of_run``) has gradients of.
    """

    difference: GraphDifference
    row: Compared
    after: Compared
    params: list[str]
    of_run: bool


def cut_gradient(step: Step) -> CutGradient | None:
    """The place where gradients of a step end or turn, if the forward pass agrees and those of parameters do not."""
    first = step.first
    of_backward = first is not None and first.value.site.phase != "fwd"
    # A forward pass that differs explains its gradients.
    if first is not None and not of_backward:
        return None
    params = list(_without_twin(step))
    rows = _first_gradients(step)
    if not params and not of_backward and not (first is None and step.rewired_rows):
        alike = {spot_of(row.value) for row in step.rows if row.value.site.phase == "fwd" and agrees(row)}
        # With nothing else to go by, only gradients of values that agree count, lost or altogether others.
        received = _received(step)
        rows = [row for row in rows if _is_another(row) or _is_lost(row, received)]
        rows = [row for row in rows if spot_of(row.value) in alike]
    structure = Structure(step)
    for row in rows:
        behind = structure.passing_on(_forward_calls(step, row), _PASSING_ON)
        if behind is not None:
            return CutGradient(*behind, row, [param.value.site.name for param in params], _is_of_run(params))
    lost_row = _first_lost(step) if params else None
    if not params or (first is not None and (lost_row is None or lost_row.position > first.position)):
        return None
    after = lost_row or params[0]
    return CutGradient(
        GraphDifference((), ()), after, after, [param.value.site.name for param in params], _is_of_run(params)
    )


def _first_lost(step: Step) -> Compared | None:
    """The gradient to name where only calls of modules were recorded: of what the module returned whose code made the
    first value without a gradient, in the order of the backward pass. Where that is a function of torch, it is the
    module of the first parameter without one, or the module around both.
    """
    if not is_of_modules(step):
        return None
    rows = [row for row in step.rows if row.unmatched and row.value.site.phase == "bwd"]
    # Gradients that the same run lacks as the first one.
    rows = [row for row in rows if (row.run_value is None) == (rows[0].run_value is None)]
    values = {row.value.site.name: row for row in reversed(rows) if row.value.kind == "module"}
    if not values:
        return None
    side = step.alignment.sides[rows[0].run_value is None].values
    first = next(row for row in rows if row.value.kind == "module").value
    param = next((row.value.site.name.rpartition(".")[0] for row in rows if row.value.kind == "param"), "")
    maker_value = next((value for value in side if value.site.phase == "fwd" and _is_of(value, first)), first)
    maker = side[maker_value.root]
    names = (maker.site.name, param, maker.module)
    modules = {value.module for value in side}
    no_code = {value.site.name for value in side if value.api.startswith("torch.nn.modules.")} - modules
    return next((values[name] for name in names if name in values and name not in no_code), values[first.site.name])


def _is_of(value: Value, gradient: Value) -> bool:
    site, ref_site = value.site, gradient.site
    return (site.micro, site.name, site.call, site.slot) == (
        ref_site.micro,
        ref_site.name,
        ref_site.call,
        ref_site.slot,
    )


def calls_behind(step: Step, row: Compared) -> tuple[GraphDifference, Compared] | None:
    """Forward calls that only one run has, of what the call of a gradient took or returned, or of the parameter that it
    is of, and the row to show.
    """
    value = row.value
    if value.kind != "param":
        return Structure(step).passing_on(_forward_calls(step, row), None)
    roots, ref_roots = (
        {param.root for param in side.values if param.site.phase == "param" and param.site.name == value.site.name}
        for side in step.alignment.sides
    )
    return Structure(step).taking(roots, ref_roots)


def own_backward(step: Step, modules: frozenset[str]) -> str:
    """`` In RUN, calls at train.py:22 Norm.forward have no gradients of their own: …``, of calls in ``modules`` that
    both runs make, and that have gradients in one run only: those of an autograd function have none; '' without any.
    """
    forward_rows = (row for row in step.rows if row.value.site.phase == "fwd" and not row.unmatched)
    matched = {spot_of(row.value): row for row in forward_rows}
    for row in step.rows:
        value = row.value
        forward = matched.get(spot_of(value))
        # An autograd function shows no calls of its own in the backward pass.
        if value.site.phase != "bwd" or value.kind != "op" or not row.unmatched or forward is None:
            continue
        name, side = ("REF", forward.ref_value) if row.ref_value is None else ("RUN", forward.run_value)
        if side is None or side.module not in modules:
            continue
        at = step.frame(side, of_reference=name == "REF")
        if at:
            return f" In {name}, calls at {at} have no gradients of their own: an autograd function, or no_grad."
    return ""


def _is_of_run(params: list[Compared]) -> bool:
    return bool(params) and params[0].run_value is not None


def _is_another(row: Compared) -> bool:
    """True where a gradient is another one altogether, however little of it is left in those of parameters."""
    return row.rewired and row.distance is not None and (row.distance.rel or 0.0) > COARSE_REL


def _received(step: Step) -> dict[CallKey, float]:
    """By call that receives gradients in both runs: what rounds in a sum over the largest of them, at most."""
    rounding_of_call: dict[CallKey, float] = {}
    autocast = {side.autocast for side in step.alignment.sides} - {""}
    for row in step.rows:
        value = row.value
        if value.site.phase == "bwd" and value.returned and value.stats is not None and not row.unmatched:
            # Under autocast gradients are summed in its dtype, whatever theirs is.
            unit = max(UNIT_ROUNDOFF.get(dtype, 0.0) for dtype in (value.dtype, *autocast))
            rounding_of_call[key_of(value)] = max(rounding_of_call.get(key_of(value), 0.0), unit * value.stats.norm)
    return rounding_of_call


def _is_lost(row: Compared, received: dict[CallKey, float]) -> bool:
    """True where only one run has a gradient of what a call took that received gradients in both, and it is more than
    what rounding left of a sum that is 0, as that of a maximum which softmax subtracts.
    """
    value = row.value
    if not row.unmatched or value.returned or value.stats is None:
        return False
    return value.stats.norm > _REAL * received.get(key_of(value), math.inf)


_REAL = 16.0
"""Roundings of the addends that a sum which ought to be 0 hardly exceeds."""


def _without_twin(step: Step) -> Iterator[Compared]:
    """Gradients, not all zero, of parameters that both runs have, where only one run has a gradient."""
    pairs = [(row.run_value, row.ref_value) for row in step.rows if row.run_value and row.ref_value]
    shared_names = {value.site.name for pair in pairs for value in pair if value.site.phase == "param"}
    phases = [{value.site.phase for value in side.values if value.kind == "param"} for side in step.alignment.sides]
    # What the update takes is final; gradients of the backward pass stand in where one run did not record it.
    shared_phases = phases[0] & phases[1]
    phase = "grad" if "grad" in shared_phases else "bwd"
    for row in step.rows if phase in shared_phases else ():
        value = row.value
        if not row.unmatched or value.kind != "param" or value.site.phase != phase:
            continue
        if value.site.name in shared_names and value.stats is not None and value.stats.sum_sq > 0:
            yield row


def _first_gradients(step: Step) -> list[Compared]:
    """Gradients that differ or that only one run has, in the order of the backward pass."""
    rows = [row for row in step.rows if row.value.site.phase == "bwd" and row.value.kind == "op"]
    return sorted((row for row in rows if not agrees(row)), key=lambda row: _in_order(step, row))


def _in_order(step: Step, row: Compared) -> float:
    """Both runs go backwards through the same calls: the share of the step that came before."""
    side = 0 if row.run_value is not None else 1
    return row.value.index / len(step.alignment.sides[side].values)


def _forward_calls(step: Step, row: Compared) -> tuple[Call, Call] | None:
    """The forward call that a gradient belongs to, of both runs."""
    site, side = row.value.site, 0 if row.run_value is not None else 1
    for pair in step.alignment.calls:
        call = pair[side]
        if call is not None and call.key == (site.micro, "fwd", site.name, site.call):
            return (pair[0], pair[1]) if pair[0] is not None and pair[1] is not None else None
    return None
