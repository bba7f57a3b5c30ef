"""Calls that one run puts between two calls that both make, and that change nothing of this step: a cap of logits that
are small, a mask of a batch without padding.

Nothing differs here by more than rounding explains, and other numbers would: that the runs compute differently is
certain. Left out are calls that change no number whatever it is (they move, copy or cast it), and such that multiply by
constants: where these leave one value as it is, they leave all. Left out are also lines that elsewhere, or at another
step, are another way to compute one value: a product in two halves changes nothing where the second half is zero.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast

from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.structure import agrees, innermost, is_apart
from trueline.comparison.judgement.values.compared import Compared
from trueline.comparison.match.graph_diff import GraphDifference
from trueline.comparison.op_names import LINEAR, RANDOM, function_of
from trueline.judge.recorded.step_values import Call

_CHANGING = frozenset({"masked_fill", "where", "triu", "tril", "add", "radd", "sub", "rsub", "sum", "mean", "pad"})
_MOVING = (LINEAR - _CHANGING) | {"detach", "alias", "requires_grad", "identity", "apply", "checkpoint", "zeros_like"}
"""Functions that change no number; ``neg`` is one of them, as it is undone where the result agrees."""

_SCALING = frozenset({"mul", "rmul", "div", "truediv"})


Line = tuple[int | None, int, int | None]
"""Of a rank, of the run (0) or the reference (1): the number of a stack."""


def inserted_calls(steps: Sequence[Step]) -> tuple[Step, GraphDifference] | None:
    """The first step in which one run inserts calls that change nothing of it, and these, in order, with the first
    seam that one leads to; None without one.
    """
    differences_of: list[tuple[Step, list[tuple[int, GraphDifference]]]] = []
    rewritten_lines: set[Line] = set()
    for step in steps:
        if step.alignment.connects_alike:
            continue
        differences, lines = _differences(step)
        differences_of.append((step, differences))
        rewritten_lines |= lines
    for step, differences in differences_of:
        inserting = [
            difference
            for side, difference in differences
            if rewritten_lines.isdisjoint(_lines(step, side, difference.mine or difference.theirs))
        ]
        if inserting:
            return step, _together(inserting)
    return None


def _together(differences: Sequence[GraphDifference]) -> GraphDifference:
    """The calls of all ``differences``, once each, with the seam of the first."""
    run_calls, ref_calls = (
        {call.key: call for difference in differences for call in (difference.theirs if side else difference.mine)}
        for side in (0, 1)
    )
    return GraphDifference(
        sorted(run_calls.values(), key=_index_of), sorted(ref_calls.values(), key=_index_of), differences[0].seam
    )


def _index_of(call: Call) -> int:
    return call.first.index


def _differences(step: Step) -> tuple[list[tuple[int, GraphDifference]], set[Line]]:
    """Differences at which a value agrees that only one run (0: RUN) has changed on its way from a call to the next,
    and the lines that are another way to compute one value.
    """
    if step.rank is None:
        return [], set()  # ranks that are merged gather and cut what one has whole
    graph, first = step.graph_diff, _first_by_root(step)
    differences: list[tuple[int, GraphDifference]] = []
    rewritten_lines: set[Line] = set()
    for row in step.rows:
        if row.run_value is None or row.ref_value is None or row.run_value.site.phase != "fwd" or not agrees(row):
            continue
        seam = graph.seams.get((row.run_value.index, row.ref_value.index))
        if seam is None:
            continue
        difference = graph.leading_to(seam)
        if not difference.mine and not difference.theirs:
            continue  # the value is only connected otherwise
        side = 0 if difference.mine else 1
        calls = difference.mine or difference.theirs
        handed = (seam.theirs if side == 0 else seam.mine).root
        twin = first[1 - side].get(handed)
        handed_on = None if twin is None else (twin.run_value, twin.ref_value)[side]
        # The calls must work on what the other run hands on as it is: else the two runs compute one value in two ways.
        if (difference.mine and difference.theirs) or (twin is not None and is_apart(twin)):
            rewritten_lines |= _lines(step, 0, difference.mine) | _lines(step, 1, difference.theirs)
        elif twin is None or handed_on is None or not agrees(twin):
            continue
        elif any(value.root == handed_on.root for call in calls for value in call.ins) and not all(
            map(_changes_nothing, innermost(calls))
        ):
            differences.append((side, difference))
    return differences, rewritten_lines


def _lines(step: Step, side: int, calls: Sequence[Call]) -> set[Line]:
    """The lines of the user from which ``calls`` of one side are made, by the numbers of their stacks."""
    return {(step.rank, side, call.first.stack) for call in calls if call.first.stack is not None}


def _first_by_root(step: Step) -> tuple[dict[int, Compared], dict[int, Compared]]:
    """The first row of each tensor of the run, and of the reference, that has a twin."""
    first_rows: tuple[dict[int, Compared], dict[int, Compared]] = ({}, {})
    for row in step.rows:
        if row.run_value is not None and row.ref_value is not None and row.run_value.site.phase == "fwd":
            first_rows[0].setdefault(row.run_value.root, row)
            first_rows[1].setdefault(row.ref_value.root, row)
    return first_rows


def _changes_nothing(call: Call) -> bool:
    """True where a call leaves numbers as they are, or is linear and takes one tensor."""
    function = function_of(call.first.api)
    tensors = len({value.root for value in call.ins})
    if function in _MOVING or "dropout" in function or function in RANDOM:
        return True
    if function in ("sum", "mean"):
        return all(value.numel == 1 for value in call.ins)
    if function == "setitem":
        return _writes_whole(call)
    if function in _SCALING:
        return tensors < 2
    return function in ("add", "radd", "sub") and tensors < 2 and _adds_zero(call)


def _writes_whole(call: Call) -> bool:
    """True where a tensor is written over with one as large, which is a copy; of a part, as of padding, it is none."""
    args = cast(dict[str, Any], json.loads(call.first.args or "{}")).get("args", [])
    whole = len(args) == 3 and args[1] in ({"slice": [None, None, None]}, "...", {"ellipsis": True})
    return whole and bool(call.ins) and any(call.ins[-1].numel == value.numel for value in call.outs)


def _adds_zero(call: Call) -> bool:
    document = cast(dict[str, Any], json.loads(call.first.args or "{}"))
    numbers: Sequence[Any] = [number for number in document.get("args", []) if isinstance(number, int | float)]
    return bool(numbers) and all(number == 0 for number in numbers)
