"""What one run computes in code that has no counterpart in the other, as where a loss is written anew: the functions
that only one of them calls there, with the calls on either side that scale what they take and return.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.structure import innermost
from trueline.comparison.match.graph_diff import GraphDifference
from trueline.comparison.op_names import function_of, op_class_of
from trueline.judge.recorded.step_values import Call

_COMPUTING = frozenset({"activation", "softmax", "normalization", "attention", "rounded", "loss"})
"""Classes of functions of which one that is called in one run alone makes other numbers."""

_SCALING = frozenset({"mul", "div", "truediv", "add", "sub"})


def functions_of_one_run(step: Step) -> GraphDifference:
    """The calls without a twin, of functions that the other run does not call in what has no twin, in order."""
    alone = step.graph_diff.alone
    calls = [innermost(alone.mine), innermost(alone.theirs)]
    names = [{function_of(call.first.api) for call in side} for side in calls]
    own = [
        [call for call in side if function_of(call.first.api) not in other and _computes(call)]
        for side, other in zip(calls, reversed(names), strict=True)
    ]
    mine, theirs = (
        sorted({call.key: call for call in (*some, *_around(some, side))}.values(), key=lambda call: call.first.index)
        for some, side in zip(own, calls, strict=True)
    )
    return GraphDifference(mine, theirs)


def _computes(call: Call) -> bool:
    function = function_of(call.first.api)
    return op_class_of(function) in _COMPUTING and function not in ("to", "float", "half", "bfloat16", "double", "type")


def _around(some: Sequence[Call], side: Sequence[Call]) -> Iterator[Call]:
    """Calls that scale what one of ``some`` takes, or what it returns, in the same module."""
    for call in side:
        if function_of(call.first.api) not in _SCALING:
            continue
        taken, returned = ({value.root for value in values} for values in (call.ins, call.outs))
        for each in some:
            joined = returned & {value.root for value in each.ins} or taken & {value.root for value in each.outs}
            if joined and call.module == each.module:
                yield call
                break
