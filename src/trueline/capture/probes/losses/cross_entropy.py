"""The cross-entropy below a loss: found in its graph, which is read before backward uses it.

Nothing of the graph is kept, no logits are read. Letters: N targets, in any shape.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trueline.capture.model.graph import is_hooked, signed
from trueline.capture.model.untraced import Hook

MAX_NODES = 64
"""Operations between loss and cross-entropy that are looked at."""

LINEAR = re.compile(
    "Mul|Div|Neg|Add|Sub|Sum|Mean|Dot|ToCopy|View|UnsafeView|ReshapeAlias|Clone|Squeeze|Unsqueeze|Alias|Expand|Index|"
    "Slice|Select|IndexSelect|MaskedSelect|MaskedFill|Where|Stack|Cat|Split|Permute|Transpose|T|AsStrided|_DDPSink"
)
"""Operations whose result is a multiple of, or a sum over, what needs a gradient."""

SINK = "_DDPSink"
"""The operation that DDP passes all outputs of a model through, each to the one in its place."""

_LEAVES = re.compile(
    "LogSoftmax|ToCopy|View|UnsafeView|ReshapeAlias|Clone|Squeeze|Unsqueeze|Alias|Permute|Transpose|T|Slice|"
    "Mul|Div|Neg|Add|Sub|Clamp|ClampMin|ClampMax|Tanh|MaskedFill"
)
"""Operations that leave each position where it is among the others, as a temperature does; of slices this is asked."""
_CHOOSES = re.compile("Index|IndexSelect|MaskedSelect|Gather|Select|Cat|Stack|Roll|Flip")

_SCALINGS = ("Mul", "Div")
_MEAN = 1
_UNREDUCED = 0


@dataclass(frozen=True)
class CrossEntropy:
    """The node of one, the operations above it, those of them that multiply or divide, and its reduction as torch
    numbers it.
    """

    node: Any
    depth: int
    scalings: int

    @property
    def reduction(self) -> int:
        """0: none, 1: mean, 2: sum."""
        return int(self.node._saved_reduction)


def find(roots: Iterable[Tensor]) -> CrossEntropy | int:
    """The only cross-entropy that ``roots`` are a multiple of, or the number of the doubt (``schema.token_weights``).

    Everything that needs a gradient must lead to it: a path that ends elsewhere is another term of the loss.
    """
    pending = deque((root.grad_fn, root.output_nr) for root in roots if root.grad_fn is not None)
    visited: set[Any] = set()
    nodes: list[Any] = []
    strange = False
    scalings = 0
    while pending and len(visited) < MAX_NODES:
        node, output = pending.popleft()
        if node in visited:
            continue
        visited.add(node)
        operation = operation_of(node)
        if operation.startswith("NllLoss"):
            nodes.append(node)
            continue
        strange |= LINEAR.fullmatch(operation) is None
        scalings += operation in _SCALINGS
        edges = node.next_functions
        # DDP's sink has an edge for each output of the model, of which this loss uses one
        edges = edges[output : output + 1] if operation == SINK else edges
        pending.extend(edge for edge in edges if edge[0] is not None)
    if not nodes:
        return 1
    # what ends at a leaf is another term of the loss; what is left in the queue may be one
    if pending or any(not node.next_functions for node in visited):
        return 2
    if len(nodes) > 1:
        return 3
    if is_hooked(nodes[0]._raw_saved_total_weight):
        return 8
    if nodes[0]._saved_weight is not None:
        return 4
    return 5 if strange else CrossEntropy(nodes[0], len(visited), scalings)


def listen(to: CrossEntropy, take: Callable[[Tensor, Tensor, Tensor, torch.dtype], None]) -> None:
    """Call ``take``, once, with the number of its targets that count, their least and greatest weight, float64 [], and
    the dtype that these were in, when the gradient reaches it. The node must not be held by what is registered on it,
    or neither would ever be freed.
    """
    node, reduction = to.node, to.reduction
    ignored = ignored_index(node)
    saved = (node._saved_target if reduction == _UNREDUCED else node._saved_total_weight).detach()

    awaited = [True]

    def reached(gradients: tuple[Tensor | None, ...]) -> None:
        gradient = gradients[0]
        if gradient is None or not awaited:
            return
        awaited.clear()
        g = gradient.detach().to(torch.float64)
        if reduction == _UNREDUCED:
            counts_N = (saved != ignored) & (g != 0)
            least, greatest = (torch.where(counts_N, g, end) for end in (torch.inf, -torch.inf))
            take(counts_N.sum().double(), least.min(), greatest.max(), gradient.dtype)
            return
        total = saved.to(torch.float64)
        weight = g / total if reduction == _MEAN else g
        take(total, weight, weight, gradient.dtype)

    node.register_prehook(Hook(reached))


def targets(roots: Iterable[Tensor]) -> list[tuple[Tensor, int, int | None]]:
    """The targets of the cross-entropies below ``roots``, [N], the number that stands for none, and the
    ``first_position`` that they are of; those that hooks keep are left out.
    """
    return [targets_of(node) for node in nodes_of(roots)]


def targets_of(node: Any) -> tuple[Tensor, int, int | None]:
    """Those of the cross-entropy ``node``."""
    return node._saved_target.detach().flatten(), ignored_index(node), first_position(node)


def nodes_of(roots: Iterable[Tensor]) -> list[Any]:
    """The nodes of the cross-entropies below ``roots`` whose targets no hook keeps."""
    pending = deque(root.grad_fn for root in roots)
    visited: set[Any] = set()
    nodes: list[Any] = []
    while pending and len(visited) < MAX_NODES:
        node: Any = pending.popleft()
        if node is None or node in visited:
            continue
        visited.add(node)
        if not node.name().startswith("NllLoss"):
            pending.extend(parent for parent, _ in node.next_functions)
        elif not is_hooked(node._raw_saved_target):
            nodes.append(node)
    return nodes


def at_weights(node: Any, take: Callable[[Tensor], None]) -> None:
    """Call ``take``, once, with which targets, [N] bool, have a weight in the loss, where they are weighed behind a
    cross-entropy that does not reduce them, when its gradient arrives; otherwise the labels alone tell.
    """
    if int(node._saved_reduction) != _UNREDUCED:
        return
    # taken off once it is called: what it holds is let go, also where the job keeps its graph
    awaited = [take]

    def reached(gradients: tuple[Tensor | None, ...]) -> None:
        if gradients[0] is not None and awaited:
            awaited.pop()(gradients[0].detach().flatten() != 0)

    node.register_prehook(Hook(reached))


def first_position(node: Any) -> int | None:
    """Number of positions of a model's output, [B, T, V], that a cross-entropy does not see in front of the first that
    it does; None where positions are chosen by other means than slices.
    """
    first = 0
    for _ in range(MAX_NODES):
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        node = parents[0] if len(parents) == 1 else None
        operation = "" if node is None else operation_of(node)
        if _CHOOSES.fullmatch(operation):
            return None
        if operation == "Slice" and int(node._saved_dim) == 1 and len(node._saved_self_sym_sizes) == 3:
            start = signed(node._saved_start)
            first += start + (int(node._saved_self_sym_sizes[1]) if start < 0 else 0)
            if int(node._saved_step) != 1:
                return None
        elif _LEAVES.fullmatch(operation) is None:
            break
    return first


def operation_of(node: Any) -> str:
    """The name of the operation of a node of the graph, as ``LogSoftmax``."""
    return node.name().rstrip("0123456789").removesuffix("Backward")


def ignored_index(node: Any) -> int:
    """The target of this cross-entropy that stands for none."""
    return signed(node._saved_ignore_index)
