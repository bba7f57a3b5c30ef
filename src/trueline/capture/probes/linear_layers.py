"""Which linear layers follow each other in the graph of a loss with nothing between them that is not linear.

The graph is read before backward uses it, by the names and shapes of its operations; nothing of it is kept. An axis is
followed from where a layer sums over it to where the layer before made it, through all that moves it as a whole.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from trueline.capture.model.graph import MAX_NODES, shape_of, signed
from trueline.capture.probes.losses.cross_entropy import operation_of
from trueline.capture.probes.losses.saved import saved_tensor

MAX_BETWEEN = 24
"""Operations between two layers that are looked through."""
MAX_AROUND = 48
"""Operations behind a layer that are looked at for what it is part of."""

_PRODUCTS = ("Mm", "Bmm", "Addmm", "Baddbmm")
_ATTENTION = re.compile("ScaledDotProduct.*|.*FlashAttention.*|.*EfficientAttention.*")
_RESHAPES = re.compile("View|UnsafeView|ReshapeAlias|Squeeze|Unsqueeze")
_ELEMENTWISE = re.compile("Clone|Alias|ToCopy|Contiguous")
_OF_WEIGHTS = re.compile(
    f"T|Transpose|Permute|Expand|Select|Slice|Split|SplitWithSizes|Chunk|Narrow|Unbind|AsStrided|{_RESHAPES.pattern}|"
    f"{_ELEMENTWISE.pattern}"
)
"""Operations between a parameter and the layer that multiplies by it."""
_ON = re.compile(f"{_OF_WEIGHTS.pattern}|Add|Sub|Mul|Div|Neg|Cat|Stack|Index|NativeDropout")
"""Operations between the layer that makes queries, keys or values and the product of attention."""

Edge = tuple[Any, int]
Axes = tuple[int, int]
"""First and last of neighbouring axes of a tensor."""


@dataclass(frozen=True)
class LinearLayer:
    """An operation that multiplies its input by a parameter: the ``node``, its ``weight`` and ``data``, the edge to its
    input. It sums over ``takes`` of that, of ``inputs`` elements (channels), and ``makes`` the axis of ``outputs``.
    ``kernel`` is that of a convolution, () of other layers.
    """

    node: Any
    weight: Tensor
    data: Edge
    takes: int
    makes: int
    inputs: int
    outputs: int
    kernel: tuple[int, ...] = ()


@dataclass(frozen=True)
class LinearPair:
    """Two layers in a row, and what is ``between``: "dropout", "a scaling". ``channels`` is False where all that a
    convolution returns for a sample goes into the second one, ``elements`` numbers, made of ``taken``.
    """

    first: LinearLayer
    second: LinearLayer
    between: tuple[str, ...]
    channels: bool = True
    taken: int = 0
    elements: int = 0


class LayersBelow:
    """The linear layers below ``roots``, and who uses what each operation returns."""

    def __init__(self, roots: Sequence[Tensor]) -> None:
        self.is_complete = True
        self._num_uses: Counter[Edge] = Counter((root.grad_fn, root.output_nr) for root in roots)
        self._users: dict[Any, list[Any]] = {}
        nodes = self._walk([root.grad_fn for root in roots])
        self.layers = {node: layer for node in nodes if (layer := layer_of(node)) is not None}

    def pairs(self) -> Iterator[tuple[LinearLayer, LinearPair | None]]:
        """Each layer, with the pair that it is the second of."""
        for layer in self.layers.values():
            pair = self._pair(layer)
            yield layer, None if pair is None or self._is_part(pair) else pair

    def _walk(self, ahead: list[Any]) -> set[Any]:
        visited = set[Any]()
        while ahead:
            node = ahead.pop()
            if node is None or node in visited:
                continue
            if len(visited) >= MAX_NODES:
                self.is_complete = False
                break
            visited.add(node)
            for edge in node.next_functions:
                if edge[0] is not None:
                    self._num_uses[edge] += 1
                    self._users.setdefault(edge[0], []).append(node)
                    ahead.append(edge[0])
        return visited

    def _pair(self, second: LinearLayer) -> LinearPair | None:
        """Up to the layer before, while nobody else uses what is on the way."""
        edge, words = second.data, list[str]()
        axes = (second.takes, second.takes)
        for _ in range(MAX_BETWEEN):
            node, output = edge
            if node is None or self._num_uses[edge] != 1:
                return None
            if (first := self.layers.get(node)) is not None:
                return _joined(first, second, axes, tuple(dict.fromkeys(words)))
            step = _through(node, output, axes)
            if step is None:
                return None
            edge, axes, word = step
            words += [word] if word else []
        return None

    def _is_part(self, pair: LinearPair) -> bool:
        """True where attention has a layer of the pair as its own, or the pair is a low-rank branch beside a layer."""
        return self._is_of_product(pair.first) or self._leads_to_product(pair.second) or self._is_branch(pair)

    def _is_of_product(self, layer: LinearLayer) -> bool:
        node, _ = _source(layer.data)
        return node is not None and node not in self.layers and _is_product(node)

    def _leads_to_product(self, layer: LinearLayer) -> bool:
        ahead, visited = list(self._users.get(layer.node, ())), set[Any]()
        while ahead and len(visited) < MAX_AROUND:
            node = ahead.pop()
            if node in visited or node in self.layers:
                continue
            visited.add(node)
            if _is_product(node):
                return True
            if _ON.fullmatch(operation_of(node)):
                ahead += self._users.get(node, ())
        return False

    def _is_branch(self, pair: LinearPair) -> bool:
        """True where what the pair makes is added to what another layer makes of the same input, as adapters are."""
        origin, node = _source(pair.first.data), pair.second.node
        for _ in range(MAX_BETWEEN):
            users = self._users.get(node, ())
            if len(users) != 1:
                return False
            below, node = node, users[0]
            operation = operation_of(node)
            if operation in ("Add", "Sub"):
                others = [edge for edge in node.next_functions if edge[0] is not below]
                return any(_is_layer_of(edge, origin) for edge in others)
            if not (_scales(operation) or _OF_WEIGHTS.fullmatch(operation)):
                return False
        return False


def layer_of(node: Any) -> LinearLayer | None:
    """What ``node`` is, if one of its factors is a parameter and the other is not; None of any other operation."""
    operation, edges = operation_of(node), node.next_functions
    shape = _shape((node, 0))
    if operation == "Convolution" and len(edges) >= 2:
        return _convolution(node, edges, shape)
    if operation == "Linear" and len(edges) >= 2:
        weight = _parameter(edges[1])
        taken = _shape(edges[1])
        if weight is None or len(taken) != 2 or not shape:
            return None
        return LinearLayer(node, weight, edges[0], len(shape) - 1, len(shape) - 1, taken[1], taken[0])
    if operation not in _PRODUCTS or len(shape) < 2:
        return None
    has_bias = operation in ("Addmm", "Baddbmm")
    if has_bias and edges[0][0] is not None and _parameter(edges[0]) is None:
        return None  # what is added is computed: a residual
    left, right = edges[-2:]
    weights = _parameter(left), _parameter(right)
    if (weights[0] is None) == (weights[1] is None):
        return None
    last = len(shape) - 1
    if weights[1] is not None:
        return LinearLayer(node, weights[1], left, last, last, _shape(right)[-2], shape[-1])
    assert weights[0] is not None
    return LinearLayer(node, weights[0], right, last - 1, last - 1, _shape(left)[-1], shape[-2])


def _convolution(node: Any, edges: Sequence[Edge], shape: tuple[int, ...]) -> LinearLayer | None:
    weight = _parameter(edges[1])
    of_weight = _shape(edges[1])
    if weight is None or node._saved_groups != 1 or node._saved_transposed or len(of_weight) < 3:
        return None
    if len(shape) != len(of_weight):
        return None
    return LinearLayer(node, weight, edges[0], 1, 1, of_weight[1], of_weight[0], of_weight[2:])


def _joined(first: LinearLayer, second: LinearLayer, axes: Axes, between: tuple[str, ...]) -> LinearPair | None:
    if axes == (first.makes, first.makes):
        return LinearPair(first, second, between)
    made = _shape((first.node, 0))
    if not first.kernel or second.kernel or axes != (1, len(made) - 1):
        return None
    read = saved_tensor(first.node, "input")
    taken = _shape(first.data) or (() if read is None else tuple(read.shape))
    if not taken:
        return None
    return LinearPair(first, second, between, False, math.prod(taken[1:]), math.prod(made[1:]))


def _through(node: Any, output: int, axes: Axes) -> tuple[Edge, Axes, str] | None:
    """The edge below ``node``, where ``axes`` of what it returns are there, and a word for what it does beside moving
    them; None where it does more.
    """
    operation, edges = operation_of(node), node.next_functions
    if operation in ("Mul", "Div", "Neg"):
        return _scaled(node, operation, axes)
    if operation == "Add":
        return _biased(node, edges, axes)
    if not edges or edges[0][0] is None:
        return None
    below, shape = _shape(edges[0]), _shape((node, output))
    moved: Axes | None = None
    word = ""
    if operation == "NativeDropout" and output == 0:
        moved, word = axes, "dropout"
    elif _ELEMENTWISE.fullmatch(operation):
        moved = axes
    elif _RESHAPES.fullmatch(operation):
        moved = _reshaped(shape, axes, below)
    elif operation == "T" and len(shape) == 2:
        moved = _permuted(axes, (1, 0))
    elif operation == "Transpose":
        dims = list(range(len(shape)))
        first, second = (signed(number) % len(shape) for number in (node._saved_dim0, node._saved_dim1))
        dims[first], dims[second] = dims[second], dims[first]
        moved = _permuted(axes, dims)
    elif operation == "Permute":
        moved = _permuted(axes, [signed(number) % len(shape) for number in node._saved_dims])
    elif operation == "Select":
        gone = signed(node._saved_dim) % len(below)
        moved = (axes[0] + (gone <= axes[0]), axes[1] + (gone <= axes[1]))
        moved = None if axes[0] < gone <= axes[1] else moved
    elif operation == "Slice":
        cut = signed(node._saved_dim) % len(below)
        moved = None if axes[0] <= cut <= axes[1] and shape != below else axes
    return None if moved is None else (edges[0], moved, word)


def _scaled(node: Any, operation: str, axes: Axes) -> tuple[Edge, Axes, str] | None:
    """Of a product with, or quotient by, one number, and of a product with a mask of dropout."""
    edges = node.next_functions
    if operation == "Neg":
        return edges[0], axes, "a scaling"
    at = 0 if edges[0][0] is not None and _parameter(edges[0]) is None else 1
    other = edges[1 - at]
    if edges[at][0] is None or (operation == "Div" and at == 1):
        return None
    if other[0] is not None:
        number = _parameter(other)
        return (edges[at], axes, "a scaling") if number is not None and number.numel() == 1 else None
    factor = saved_tensor(node, "other" if at == 0 else "self")
    if factor is None:
        return None
    if factor.numel() == 1:
        return edges[at], axes, "a scaling"
    return (edges[at], axes, "dropout") if operation == "Mul" and _is_dropped(factor) else None


def _is_dropped(mask: Tensor) -> bool:
    """True of a mask of 0 and one number above 1, as dropout multiplies by on the host; a ReLU that is written as a
    product has 1 there. On other devices dropout is an operation of its own, and nothing is waited for.
    """
    if mask.device.type != "cpu" or not mask.is_floating_point() or not mask.numel():
        return False
    greatest = mask.max()
    return bool(greatest > 1) and bool(((mask == 0) | (mask == greatest)).all())


def _biased(node: Any, edges: Sequence[Edge], axes: Axes) -> tuple[Edge, Axes, str] | None:
    """Of a sum with a parameter that has one number for each place of the axis, a bias."""
    parameters = [_parameter(edge) for edge in edges]
    at = 0 if parameters[0] is None else 1
    bias, shape = parameters[1 - at], _shape((node, 0))
    if bias is None or parameters[at] is not None or edges[at][0] is None:
        return None
    is_bias = axes[0] == axes[1] and bias.numel() == shape[axes[0]] and _shape(edges[at]) == shape
    return (edges[at], axes, "") if is_bias else None


def _reshaped(shape: Sequence[int], axes: Axes, below: Sequence[int]) -> Axes | None:
    """Where the same elements of each row are in a tensor of the shape ``below``."""
    before, size = math.prod(shape[: axes[0]]), math.prod(shape[axes[0] : axes[1] + 1])
    for first in range(len(below)):
        if math.prod(below[:first]) != before or below[first] == 1 != size:
            continue
        for last in range(first, len(below)):
            if math.prod(below[first : last + 1]) == size:
                return first, last
    return None


def _permuted(axes: Axes, dims: Sequence[int]) -> Axes | None:
    moved = [dims[axis] for axis in range(axes[0], axes[1] + 1)]
    return (moved[0], moved[-1]) if moved == list(range(moved[0], moved[0] + len(moved))) else None


def _parameter(edge: Edge) -> Tensor | None:
    """The tensor that an edge leads to by views and casts alone."""
    node = edge[0]
    for _ in range(MAX_BETWEEN):
        if node is None:
            return None
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            return leaf
        if len(node.next_functions) != 1 or _OF_WEIGHTS.fullmatch(operation_of(node)) is None:
            return None
        node = node.next_functions[0][0]
    return None


def _source(edge: Edge) -> Edge:
    """The edge to what made the elements that pass along ``edge``: views, casts, dropout and scalings are passed."""
    for _ in range(MAX_BETWEEN):
        node, _output = edge
        if node is None:
            break
        operation, edges = operation_of(node), node.next_functions
        ahead = [below for below in edges if below[0] is not None]
        passes = _OF_WEIGHTS.fullmatch(operation) or operation == "NativeDropout" or operation in ("Mul", "Div", "Neg")
        if not passes or len(ahead) != 1:
            break
        edge = ahead[0]
    return edge


def _is_layer_of(edge: Edge, origin: Edge) -> bool:
    """True where a few scalings lead along ``edge`` to a layer, frozen or not, whose input is ``origin``; a frozen one
    on what needs no gradient is not seen, as is its input.
    """
    ahead = [edge]
    for _ in range(MAX_BETWEEN):
        if not ahead:
            return False
        node, _output = ahead.pop()
        if node is None:
            return origin[0] is None
        operation, edges = operation_of(node), node.next_functions
        if operation in (*_PRODUCTS, "Convolution", "Linear"):
            ahead_of = edges[-2:] if operation in _PRODUCTS else edges[:1]
            return any(_source(below) == origin for below in ahead_of)
        if _scales(operation) or _OF_WEIGHTS.fullmatch(operation):
            ahead += [below for below in edges if below[0] is not None]
    return False


def _scales(operation: str) -> bool:
    return operation in ("Mul", "Div", "Neg", "NativeDropout")


def _is_product(node: Any) -> bool:
    """True of attention, and of a product of two tensors that are both computed."""
    operation, edges = operation_of(node), node.next_functions
    if _ATTENTION.fullmatch(operation):
        return True
    factors = edges[-2:]
    return operation in _PRODUCTS and all(edge[0] is not None and _parameter(edge) is None for edge in factors)


def _shape(edge: Edge) -> tuple[int, ...]:
    """Of what passes along ``edge``; () where torch does not say, and of nothing."""
    return tuple(map(int, shape_of(*edge)))
