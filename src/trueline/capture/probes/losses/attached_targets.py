"""Whether what a regression is compared with is made from the trained model, and gradients go into it: a bootstrap
target, r + gamma * max Q(s'), that is not detached.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from typing import Any

from trueline.capture.model.outputs import differentiable
from trueline.capture.probes.losses.cross_entropy import LINEAR, MAX_NODES, SINK, operation_of
from trueline.schema.columns.loss_inputs import TARGET_ATTACHED, VALUE_ATTACHED

MAX_OUTPUTS = 16
"""Tensors of what a model returns that are marked."""
_CALL = "trueline: call"
"""Where the metadata of a node have which call of the model returned it: nothing is kept alive by that."""
_VALUE_KEPT = re.compile("ToCopy|View|UnsafeView|ReshapeAlias|Clone|Squeeze|Unsqueeze|Alias|Expand|T|Transpose|Permute")
_CHOICES = ("Max", "Amax", "Min", "Amin", "Maximum", "Minimum", "Gather", "Logsumexp")
"""By which a script chooses among values of actions, or of several critics."""
_ON_THE_WAY = re.compile(f"{LINEAR.pattern}|{'|'.join(_CHOICES)}|Clamp")
"""Operations between a model and a regression of its outputs."""
_REGRESSIONS = ("MseLoss", "SmoothL1Loss", "HuberLoss")
_SIZES = ("Pow", "Abs")
"""Of a difference."""

Edge = tuple[Any, int]
"""A node of the graph, and which of its outputs; the node is None where no gradient goes."""


def mark(output: Any, call: int) -> None:
    """Note in the graph that ``output`` is of the ``call``-th call of the model in a step."""
    for tensor in itertools.islice(differentiable(output), MAX_OUTPUTS):
        if tensor.grad_fn is not None:
            tensor.grad_fn.metadata[_CALL] = call


def attached_target(node: Any, operation: str) -> str | None:
    """The kind of target that this regression of two outputs of the model has, where one of them is what is compared
    with: a number that needs no gradient plus another one times the output of another call.
    """
    if operation in _SIZES:
        node, operation = _source(node.next_functions[0])[0], "Sub"
        if node is None or operation_of(node) != "Sub":
            return None
    elif operation not in _REGRESSIONS:
        return None
    edges: list[Edge] = [edge for edge in node.next_functions if edge[0] is not None]
    for value, target in itertools.permutations(edges, 2):
        discounted = _discounted(target)
        if discounted is not None and _discounted(value) is None:
            (calls, is_chosen), (own_calls, own_chosen) = _calls(discounted), _calls(value)
            if calls and own_calls and calls.isdisjoint(own_calls):
                return TARGET_ATTACHED if is_chosen or own_chosen else VALUE_ATTACHED
    return None


def _discounted(edge: Edge) -> Edge | None:
    """What is multiplied by what needs no gradient before something that needs none is added, on the way to ``edge``;
    None without.
    """
    below = _only(_source(edge), ("Add",))
    scaled = None if below is None else _only(_source(below), ("Mul", "Div"))
    return None if scaled is None else _source(scaled)


def _only(edge: Edge, operations: tuple[str, ...]) -> Edge | None:
    """The only one below an operation of these that needs a gradient."""
    node = edge[0]
    if node is None or operation_of(node) not in operations or len(node.next_functions) != 2:
        return None
    below = [function for function in node.next_functions if function[0] is not None]
    return below[0] if len(below) == 1 else None


def _source(edge: Edge) -> Edge:
    """``edge`` behind views and casts, of what no call of the model has returned."""
    for _ in range(MAX_NODES):
        node = edge[0]
        if node is None or _CALL in node.metadata or _VALUE_KEPT.fullmatch(operation_of(node)) is None:
            break
        edge = node.next_functions[0]
    return edge


def _calls(edge: Edge) -> tuple[set[int], bool]:
    """Calls of the model whose outputs come to ``edge`` through sums, products and choices, and whether one chooses."""
    ahead, visited, calls, chooses = deque([edge]), set[Any](), set[int](), False
    while ahead and len(visited) < MAX_NODES:
        node, output = ahead.popleft()
        if node is None or node in visited:
            continue
        visited.add(node)
        operation = operation_of(node)
        if _CALL in node.metadata:
            calls.add(node.metadata[_CALL])
        elif _ON_THE_WAY.fullmatch(operation):
            chooses = chooses or operation in _CHOICES
            ahead.extend(node.next_functions[output : output + 1] if operation == SINK else node.next_functions)
    return calls, chooses
