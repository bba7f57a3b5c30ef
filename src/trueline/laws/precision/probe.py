"""Read in which dtypes a forward pass computes its products, from the graph that it leaves."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from trueline.capture.job.environment import autocast_of
from trueline.capture.model.graph import MAX_NODES, nodes_below
from trueline.capture.model.outputs import differentiable
from trueline.capture.model.untraced import in_backward
from trueline.capture.probes.base import Moment, Step
from trueline.capture.probes.parts import ProbeParts
from trueline.laws.precision.columns import Products

FIRST, FACTOR, LOOKS = 2, 4, 3
"""Age of the first step that is looked at, how many times as old the next is, and how many there are."""
MAX_NAMES = 8
"""Parameters that are named, of each dtype."""
DEPTH = 8
"""Views and casts between a product and its weight that are looked through."""

_PRODUCTS = ("Addmm", "Mm", "Bmm", "Baddbmm", "Addbmm", "Linear", "Convolution", "ScaledDotProduct")
"""What torch's operations begin with that autocast computes in its dtype (docs.pytorch.org/docs/stable/amp.html)."""
_CASTS = frozenset({
    "T", "ToCopy", "View", "UnsafeView", "ReshapeAlias", "Transpose", "Permute", "Unsqueeze", "Squeeze", "Expand",
})  # fmt: skip
"""Operations that a weight may go through before a product."""
_HIDING = ("Compiled", "Checkpoint", "Thunder")
"""In the names of functions that compute a part of the model without leaving its operations in the graph."""


class ProductsProbe:
    """The column ``products``, of the first forward pass of a few early steps."""

    name = "precision of products"
    moments = ("forward", "output")
    between = None

    def __init__(self) -> None:
        self._next_age, self._looks_left = FIRST, LOOKS
        self._autocast: Mapping[str, str] | None = None
        self._is_due = False

    def begin(self, step: Step) -> bool:
        self._autocast = None
        self._is_due = step.watched and step.sampled and self._looks_left > 0 and step.age >= self._next_age
        return self._is_due

    def take(self, moment: Moment, step: Step) -> dict[str, Any]:
        """``products``, once the pass has returned what has a graph."""
        if not self._is_due or in_backward():
            return {}
        if moment == "forward":
            self._autocast = self._autocast or autocast_of(step.module)
            return {}
        roots = list(differentiable(step.output))
        if self._autocast is None or not roots:
            return {}
        self._is_due, self._next_age, self._looks_left = False, FACTOR * max(step.age, 1), self._looks_left - 1
        return {"products": _products(roots, self._autocast, step).to_json()}

    def columns(self, host: Mapping[str, Tensor], step: Step, row: Mapping[str, Any]) -> dict[str, Any]:
        return {}


def _products(roots: list[Tensor], autocast: Mapping[str, str], step: Step) -> Products:
    counts, weights, elements = Counter[str](), Counter[str](), Counter[str]()
    names = defaultdict[str, list[str]](list)
    hidden, complete = False, True
    for number, node in enumerate(nodes_below(roots)):
        if number >= MAX_NODES:
            complete = False
            break
        kind = type(node).__name__
        hidden = hidden or _hides(kind, node)
        if not kind.removesuffix("Backward0").removesuffix("Backward1").startswith(_PRODUCTS):
            continue
        dtype = _dtype(node)
        counts[dtype] += 1
        if (weight := _weight(node)) is not None:
            weights[dtype] += 1
            elements[dtype] += weight.numel()
            index = step.layout.index_of.get(id(weight))
            if index is not None and len(names[dtype]) < MAX_NAMES:
                names[dtype].append(step.layout.names[index])
    return Products(
        autocast={device: str(dtype).removeprefix("torch.") for device, dtype in autocast.items()},
        device=step.layout.device.type,
        counts=dict(counts),
        weights=dict(weights),
        elements=dict(elements),
        # From the outputs down: the first of the model come last.
        names={dtype: tuple(params[::-1]) for dtype, params in names.items()},
        hidden=hidden,
        complete=complete,
    )


def _dtype(node: Any) -> str:
    """Of its result, as the graph has the form of its gradient."""
    return str(node._input_metadata[0].dtype).removeprefix("torch.")


def _hides(kind: str, node: Any) -> bool:
    """True if ``node`` is a function that a script or compiler wrote and that has a matrix of the model's in it."""
    if not isinstance(node, torch.autograd.function.BackwardCFunction):
        return False
    if any(part in kind for part in _HIDING):
        return True
    variables = [getattr(below, "variable", None) for below, _ in node.next_functions]
    return any(isinstance(variable, Tensor) and variable.dim() > 1 for variable in variables)


def _weight(node: Any) -> Tensor | None:
    """The trained matrix that a product is made with, through casts and views; None for one of activations alone."""
    for below, _ in node.next_functions:
        inner = below
        for _ in range(DEPTH):
            if inner is None:
                break
            variable = getattr(inner, "variable", None)
            if variable is not None:
                if variable.dim() > 1:
                    return variable
                break
            parents = [parent for parent, _ in inner.next_functions]
            if len(parents) != 1 or type(inner).__name__.removesuffix("Backward0") not in _CASTS:
                break
            inner = parents[0]
    return None


def make_probe(parts: ProbeParts) -> ProductsProbe:
    """The probe of this law for one watched model."""
    return ProductsProbe()
