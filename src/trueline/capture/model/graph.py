"""The graph of a forward pass, asked without the engine of autograd.

The engine calls what is hooked to tensors and nodes, whoever hooked it: noise that a script draws there, counters,
gathering of parameters. It also fills ``.grad`` of tensors that retain it. So nodes are called here one by one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import get_gradient_edge

MAX_NODES = 20_000
"""Operations of a graph that is asked, each of which is called from Python."""

_UNKNOWN = object()
"""Stands for the hook in versions of torch that do not say whether hooks keep a saved tensor."""


def nodes_below(roots: Iterable[Tensor]) -> Iterator[Any]:
    """The operations that ``roots`` were made by."""
    ahead: list[Any] = [root.grad_fn for root in roots]
    visited = set[Any]()
    while ahead:
        node: Any = ahead.pop()
        if node is not None and node not in visited:
            visited.add(node)
            yield node
            ahead.extend(below for below, _ in node.next_functions)


def shape_of(node: Any, output: int = 0) -> tuple[int, ...]:
    """Of what the operation of ``node`` returns; () where torch does not say, and of no node."""
    metadata = getattr(node, "_input_metadata", ())
    return tuple(metadata[output].shape) if output < len(metadata) else ()


def signed(number: Any) -> int:
    """A number that an operation keeps, as a dimension or an index: torch shows negative ones without their sign."""
    return int(number) - (2**64 if number >= 2**63 else 0)


def is_hooked(saved: Any) -> bool:
    """True if hooks keep this saved tensor: to read it may run a forward pass again."""
    return getattr(saved, "unpack_hook", _UNKNOWN) is not None


def can_be_asked(roots: Iterable[Tensor]) -> bool:
    """True if all operations below ``roots`` are torch's own, and what they keep for backward is there, as it was, and
    is read by no hook. A library that shards may have freed the memory of parameters until backward begins, and to
    read it then ends the process.
    """
    for number, node in enumerate(nodes_below(roots)):
        if number >= MAX_NODES or isinstance(node, BackwardCFunction) or type(node).__name__ == "CppFunction":
            return False
        if not hasattr(node, "_input_metadata"):  # in a torch that does not say what forms gradients have
            return False
        for name in saved_names(type(node)):
            raw = getattr(node, f"_raw_saved_{name}")
            if any(
                saved is not None and is_hooked(saved) for saved in (raw if isinstance(raw, (tuple, list)) else (raw,))
            ):
                return False
            try:
                values = getattr(node, f"_saved_{name}")
            except RuntimeError:  # changed in place, or freed: backward will raise, too
                return False
            if not all(
                saved is None or in_memory(saved)
                for saved in (values if isinstance(values, (tuple, list)) else (values,))
            ):
                return False
    return True


@cache
def saved_names(kind: type) -> tuple[str, ...]:
    """Names of what operations of this type keep for backward."""
    prefix = "_raw_saved_"
    return tuple(name.removeprefix(prefix) for name in dir(kind) if name.startswith(prefix))


def in_memory(x: Tensor) -> bool:
    """True of a plain tensor all of whose elements can be read."""
    if type(x) not in (Tensor, nn.Parameter) or x.layout != torch.strided:
        return False
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    needed = (x.storage_offset() + last + 1) * x.element_size() if x.numel() else 0
    return x.untyped_storage().nbytes() >= needed


def gradients_of(outputs: Sequence[Tensor], inputs: Sequence[Tensor], weights: Sequence[Tensor]) -> list[Tensor | None]:
    """The gradients of a weighted sum of ``outputs``, whose graph ``can_be_asked``, with respect to ``inputs``, None
    where there is none. No hook is called, and the graph and every ``.grad`` stay as they are.
    """
    edges = [tuple(get_gradient_edge(tensor)[:2]) for tensor in inputs]
    targets, slots = {node for node, _ in edges}, set(edges)
    roots = [tuple(get_gradient_edge(tensor)[:2]) for tensor in outputs]
    gradient_at: dict[Any, Tensor] = {}
    incoming: dict[Any, list[Tensor | None]] = {}
    with torch.no_grad():
        for root, weight in zip(roots, weights, strict=True):
            _add(incoming, root, weight)
        for node, leads in _in_order([node for node, _ in roots], targets):
            gradients = incoming.pop(node, None)
            if gradients is None:
                continue
            gradient_at |= {
                (node, slot): x for slot, x in enumerate(gradients) if x is not None and (node, slot) in slots
            }
            if leads:
                below = node(*gradients)
                for edge, x in zip(node.next_functions, below if isinstance(below, tuple) else (below,), strict=True):
                    if edge[0] in leads and x is not None:
                        _add(incoming, edge, x)
    return [gradient_at.get(edge) for edge in edges]


def _in_order(roots: Sequence[Any], targets: set[Any]) -> list[tuple[Any, set[Any]]]:
    """(operation, operations below it) on the ways from ``roots`` to ``targets``, each after all that need it; of the
    operations below only those that lead to a target.
    """
    after: list[tuple[Any, set[Any]]] = []
    reaches: dict[Any, bool] = {}
    ahead = [(node, False) for node in roots]
    while ahead:
        node, is_done = ahead.pop()
        if is_done:
            leads = {below for below, _ in node.next_functions if below is not None and reaches[below]}
            reaches[node] = bool(leads) or node in targets
            after += [(node, leads)] if reaches[node] else []
        elif node not in reaches:
            reaches[node] = False
            ahead.append((node, True))
            ahead += [(below, False) for below, _ in node.next_functions if below is not None and below not in reaches]
    return after[::-1]


def _add(incoming: dict[Any, list[Tensor | None]], edge: tuple[Any, int], x: Tensor) -> None:
    """Add gradient ``x`` to the ``incoming`` of an operation, in shape and dtype of what it returned, as the engine
    does: what was broadcast gets the sum.
    """
    node, slot = edge
    form = node._input_metadata[slot]
    shape = tuple(form.shape)
    x = x if tuple(x.shape) == shape else x.sum_to_size(shape)
    x = x if x.dtype == form.dtype else x.to(form.dtype)
    slots = incoming.setdefault(node, [None] * len(node._input_metadata))
    before = slots[slot]
    slots[slot] = x if before is None else before + x
