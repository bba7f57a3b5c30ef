"""Whether what a loss compares with, or weighs by, is made from the trained model, and gradients go into it: a
bootstrap target, r + gamma * max Q(s'), an advantage, the probabilities of a teacher, that are not detached.
"""

from __future__ import annotations

import itertools
import re
from collections import deque
from collections.abc import Iterator
from typing import Any

from trueline.capture.model.outputs import differentiable
from trueline.capture.probes.losses.cross_entropy import LINEAR, MAX_NODES, SINK, operation_of
from trueline.schema.columns.loss_inputs import (
    ADVANTAGE_ATTACHED,
    SOFT_TARGET_ATTACHED,
    TARGET_ATTACHED,
    VALUE_ATTACHED,
)

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

_LOGARITHMS = ("LogSoftmax", "Logsumexp", "Log")
"""One of them is in the logarithm of a probability that a model gives."""
_OF_ADVANTAGE = re.compile(f"{LINEAR.pattern}|Std|Var|Sqrt|Clamp|ClampMin")
"""Operations between an advantage, which may be normalized, and the value in it."""
_LAYERS = ("Addmm", "Mm", "Bmm", "MkldnnLinear")

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


def attached_factor(node: Any, operation: str) -> str | None:
    """The kind of factor that a product of two of the model's outputs has by which one of them is only to be weighed:
    returns less a value, beside the logarithm of a probability, or probabilities of other logits.
    """
    if operation != "Mul" or len(node.next_functions) != 2 or any(edge[0] is None for edge in node.next_functions):
        return None
    for score, weight in itertools.permutations(node.next_functions):
        of_score, of_weight = _source(score)[0], _source(weight)[0]
        if of_score is None or of_weight is None:
            continue
        if (operation_of(of_score), operation_of(of_weight)) == ("LogSoftmax", "Softmax"):
            return SOFT_TARGET_ATTACHED if _logits_of(of_score) is not _logits_of(of_weight) else None
        if _has_residual(weight) and not _comes_to_logarithm(weight) and _comes_to_logarithm(score):
            return ADVANTAGE_ATTACHED
    return None


def _logits_of(softmax: Any) -> Any:
    """The node whose output this (log-)softmax is of, behind a temperature."""
    edge: Edge | None = softmax.next_functions[0]
    below = edge
    while below is not None and below[0] is not None:
        edge = _source(below)
        below = _only(edge, ("Mul", "Div"))
    return None if edge is None else edge[0]


def _comes_to_logarithm(edge: Edge) -> bool:
    return any(operation_of(node) in _LOGARITHMS for node in _below(edge, _ON_THE_WAY))


def _has_residual(edge: Edge) -> bool:
    """True where what a layer returns has been taken from constants on the way to ``edge``."""
    for node in _below(edge, _OF_ADVANTAGE):
        sides = [side for side in node.next_functions if side[0] is not None]
        if operation_of(node) == "Sub" and len(node.next_functions) == 2 and len(sides) == 1:
            value = _source(sides[0])[0]
            while value is not None and operation_of(value) in ("Select", "Slice", "Index"):
                value = _source(value.next_functions[0])[0]
            if value is not None and operation_of(value) in _LAYERS:
                return True
    return False


def _below(edge: Edge, passes: re.Pattern[str]) -> Iterator[Any]:
    """The nodes below ``edge`` as far as operations that match ``passes`` lead, and one further."""
    ahead, visited = deque([edge[0]]), set[Any]()
    while ahead and len(visited) < MAX_NODES:
        node = ahead.popleft()
        if node is None or node in visited:
            continue
        visited.add(node)
        yield node
        if passes.fullmatch(operation_of(node)) or operation_of(node) in ("Exp", "Gather"):
            ahead.extend(side[0] for side in node.next_functions)


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
