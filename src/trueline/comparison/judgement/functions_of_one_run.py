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
    # A function that both call without a twin is probably the same computation, moved.
    lone_calls = [
        [call for call in side if function_of(call.first.api) not in other_names and _computes(call)]
        for side, other_names in zip(calls, reversed(names), strict=True)
    ]
    run_calls, ref_calls = (
        {call.key: call for call in (*computing, *_scaling_calls(computing, side))}.values()
        for computing, side in zip(lone_calls, calls, strict=True)
    )
    return GraphDifference(sorted(run_calls, key=_index_of), sorted(ref_calls, key=_index_of))


def _index_of(call: Call) -> int:
    return call.first.index


def _computes(call: Call) -> bool:
    # Casts are of the class of rounded functions, and compute nothing.
    function = function_of(call.first.api)
    return op_class_of(function) in _COMPUTING and function not in ("to", "float", "half", "bfloat16", "double", "type")


def _scaling_calls(computing: Sequence[Call], side: Sequence[Call]) -> Iterator[Call]:
    """Calls that scale what one of ``computing`` takes, or what it returns, in the same module."""
    for call in side:
        if function_of(call.first.api) not in _SCALING:
            continue
        inputs, outputs = ({value.root for value in values} for values in (call.ins, call.outs))
        for computing_call in computing:
            before = outputs & {value.root for value in computing_call.ins}
            joined = before or inputs & {value.root for value in computing_call.outs}
            if joined and call.module == computing_call.module:
                yield call
                break
