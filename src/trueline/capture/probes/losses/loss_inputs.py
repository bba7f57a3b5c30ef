"""Read what functions of a loss are given from its graph before backward uses it: probabilities where logits belong,
logits that an activation bounds, rows that are compared with rows, targets outside of their range or of what the last
activation can give, targets of padding.

Letters: B samples, T positions of the input, L of the target.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trueline.capture.model.graph import is_hooked, shape_of, signed
from trueline.capture.probes.filling import filling_of
from trueline.capture.probes.losses.attached_targets import attached_factor, attached_target
from trueline.capture.probes.losses.cross_entropy import (
    LINEAR,
    MAX_NODES,
    SINK,
    first_position,
    ignored_index,
    operation_of,
)
from trueline.capture.probes.losses.saved import saved_tensor
from trueline.schema.columns.input_values import InputFact
from trueline.schema.columns.loss_inputs import (
    ARGUMENTS_SWAPPED,
    CLASSES_SCRAMBLED,
    DIVERGENCE_BY_CLASS,
    DIVERGENCE_OF_PROBABILITIES,
    KINDS,
    LOG_MISSING,
    LOGITS_BOUNDED,
    LOGITS_CLIPPED,
    LOGITS_COSINES,
    ROWS_WITH_ROWS,
    SIGMOID_TWICE,
    SOFTMAX_OF_SAMPLES,
    SOFTMAX_TWICE,
)

_ABOVE = re.compile(f"{LINEAR.pattern}|NllLoss.*|Pow|Abs|Sqrt|Log|Log1P|Cosh|Clamp|ClampMin|Relu|Maximum|Max")
"""Operations between a loss and the functions that it is made of, or the difference that it is of."""
_LOOKED_THROUGH = re.compile(
    "ToCopy|View|UnsafeView|ReshapeAlias|Clone|Squeeze|Unsqueeze|Alias|Transpose|T|Permute|Slice|Select|Index|"
    f"IndexSelect|{SINK}"
)
"""Operations whose elements are those of their input."""
_LAYERS = ("Addmm", "Mm", "Bmm", "Convolution", "MkldnnLinear")
"""Operations that return numbers of any sign: no probabilities, and no logarithms of any."""
_PROBABILITIES = ("Softmax", "Sigmoid")
_DISTANCES = ("MseLoss", "SmoothL1Loss", "HuberLoss", "Sub")
_BINARY = ("BinaryCrossEntropy", "BinaryCrossEntropyWithLogits")
_COMPARES = {
    "MseLoss": "mse_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "NllLoss": "cross_entropy",
}
"""Functions that keep what they compare with."""
_CTC = ("CtcLoss", "CudnnCtcLoss")
_NUMBERS = 20
"""Of ``LossInputs``, but for its kinds."""
_MASKED, _UNMASKED = 2, 17
"""Where counts of targets beside a mask, and beside none, stand among them."""
_LOGITS_OF = {"Relu": LOGITS_CLIPPED, "Tanh": LOGITS_BOUNDED}
_SAME_PLACES = re.compile(f"ToCopy|View|UnsafeView|ReshapeAlias|Clone|Squeeze|Unsqueeze|Alias|{SINK}")
"""Operations that return the elements of their input, all of them, in its order."""


class _Range(NamedTuple):
    """What an activation can give, and where its counts stand among the numbers of ``LossInputs``."""

    least: float
    greatest: float
    place: int


_RANGES = {
    "Relu": _Range(0.0, torch.inf, 7),
    "Softplus": _Range(0.0, torch.inf, 7),
    "Sigmoid": _Range(0.0, 1.0, 9),
    "Softmax": _Range(0.0, 1.0, 9),
    "Tanh": _Range(-1.0, 1.0, 11),
}
_OVERSHOOT_FRAC = 1 / 256
"""Of the largest target: pictures of 8 bits that are scaled to a range, and resized, overshoot it by a grey level."""
_AVERAGES = (1, 2)
"""Of torch's reductions: mean and sum. Of the other a script may leave out what it likes afterwards."""

_MAX_LOOKED_THROUGH = 16


def row_of(roots: Iterable[Tensor], ids: Tensor | None, mask: Tensor | None, device: torch.device) -> Tensor:
    """int64 [numbers of ``LossInputs``] of what backward is called on, on ``device``; ``ids`` [B, T] are the tokens
    that the model was called on, ``mask`` [B, T] is 0 at padding; None where there are none. No graph is kept, nothing
    waits.
    """
    bits = 0
    counts: list[Tensor] = [torch.zeros(_NUMBERS, dtype=torch.int64, device=device)]
    for node, operation, below in functions_of(roots):
        kinds = [*_misused(node, operation, below), attached_target(node, operation), attached_factor(node, operation)]
        bits |= sum(1 << KINDS.index(kind) for kind in kinds if kind is not None)
        if operation in _CTC:
            counts += _of_ctc(node, device)
        if operation == "Div" and (marks := _marks(node, device)) is not None:
            counts.append(marks)
        if (reach := _beyond_reach(node, operation, below, device)) is not None:
            counts.append(reach)
        is_binary = operation in _BINARY
        if not (is_binary or operation.startswith("NllLoss")) or is_hooked(node._raw_saved_target):
            continue
        if is_binary:
            counts.append(_out_of_range(node._saved_target, device))
        elif ids is not None:
            keeps = ids != filling_of(ids) if mask is None else mask
            counts.append(_padded(node, ids, keeps, device, place=_UNMASKED if mask is None else _MASKED))
    total = torch.stack(counts).sum(0)
    return torch.cat([torch.full_like(total[:1], bits), total])


def targets_of(roots: Iterable[Tensor]) -> Iterator[tuple[InputFact, Tensor]]:
    """The targets that functions of the loss keep, in a cross-entropy another in place of those that stand for none."""
    for node, operation, below in functions_of(roots):
        name = next((function for kind, function in _COMPARES.items() if operation.startswith(kind)), "")
        if not name or is_hooked(node._raw_saved_target):
            continue
        target, classes = node._saved_target.detach(), 0
        if target.numel() and operation.startswith("NllLoss"):
            target = torch.where(target != ignored_index(node), target, target.amax())  # all of them: below 0
            classes = _classes(below)
        yield InputFact(name, True, str(target.dtype), tuple(target.shape), classes), target


def _classes(below: list[Any]) -> int:
    """Of logits that a layer with weights of its own returns; 0 of others, as of similarities."""
    return layer_of(below)[0]


def layer_of(below: Sequence[Any]) -> tuple[int, list[Tensor]]:
    """Of the edges below a cross-entropy the number of classes, and the tensors that the layer has which returns the
    logits; 0 and none of logits that no layer with tensors of its own returns.
    """
    if len(below) != 1 or operation_of(below[0][0]) != "LogSoftmax" or len(below[0][0].next_functions) != 1:
        return 0, []
    shape, layer = shape_of(below[0][0]), _source(below[0][0].next_functions[0])
    if layer is None or operation_of(layer) not in _LAYERS or len(shape) < 2:
        return 0, []
    sources = [_source(edge) for edge in layer.next_functions]
    variables = [source.variable for source in sources if hasattr(source, "variable")]
    return (shape[1], variables) if variables else (0, [])


def functions_of(roots: Iterable[Tensor]) -> Iterator[tuple[Any, str, list[Any]]]:
    """The nodes between loss and model, with their operation and what needs a gradient below them."""
    pending = deque((root.grad_fn, root.output_nr) for root in roots)
    visited: set[Any] = set()
    while pending and len(visited) < MAX_NODES:
        node, output = pending.popleft()
        if node is None or node in visited:
            continue
        visited.add(node)
        operation, edges = operation_of(node), node.next_functions
        edges = edges[output : output + 1] if operation == SINK else edges
        below = [edge for edge in edges if edge[0] is not None]
        yield node, operation, below
        if _ABOVE.fullmatch(operation):
            pending.extend(below)


def _source(edge: Any, looked_through: re.Pattern[str] = _LOOKED_THROUGH) -> Any:
    """The node that made the elements that pass along ``edge``: views, casts and choices of them are looked through."""
    node, output = edge
    for _ in range(_MAX_LOOKED_THROUGH):
        if node is None or looked_through.fullmatch(operation_of(node)) is None:
            break
        at = output if operation_of(node) == SINK else 0
        node, output = node.next_functions[at] if len(node.next_functions) > at else (None, 0)
    return node


def _source_operation(edge: Any) -> str:
    node = _source(edge)
    return "" if node is None else operation_of(node)


def _misused(node: Any, operation: str, below: list[Any]) -> Iterator[str]:
    if len(below) != 1:
        return
    (edge,) = below
    if operation in _BINARY and node.next_functions[0][0] is None:
        yield ARGUMENTS_SWAPPED
    if operation.startswith("NllLoss"):
        yield from _misplaced_classes(_places_of(edge))
    if operation in ("LogSoftmax", "BinaryCrossEntropyWithLogits"):
        yield from _bounded(_source(edge))
    if operation == "LogSoftmax" and _source_operation(edge) in _PROBABILITIES:
        yield SOFTMAX_TWICE
    elif operation == "BinaryCrossEntropyWithLogits" and _source_operation(edge) in _PROBABILITIES:
        yield SIGMOID_TWICE
    elif operation.startswith("NllLoss") and _source_operation(edge) in (*_PROBABILITIES, *_LAYERS):
        yield LOG_MISSING
    elif operation == "Mean" and operation_of(edge[0]) == "Sub" and _divergence_of(edge[0]) == "LogSoftmax":
        yield DIVERGENCE_BY_CLASS
    elif operation == "Sub" and _divergence_of(node) in _PROBABILITIES:
        yield DIVERGENCE_OF_PROBABILITIES
    elif operation in _DISTANCES and _rows_with_rows(node, edge):
        yield ROWS_WITH_ROWS


def _bounded(logits: Any) -> Iterator[str]:
    """What bounds the logits that this node made."""
    activation = "" if logits is None else operation_of(logits)
    if activation in _LOGITS_OF:
        yield _LOGITS_OF[activation]
    elif activation in ("Mm", "Bmm") and all(map(_is_normalized, logits.next_functions)):
        yield LOGITS_COSINES


def _misplaced_classes(log_softmax: Any) -> Iterator[str]:
    """Of what makes the elements of a cross-entropy, all of them and in its order: classes that are no outputs of the
    last layer, as a view takes them across its rows, and logarithms that are normalized over samples or positions.
    """
    if log_softmax is None or operation_of(log_softmax) != "LogSoftmax":
        return
    shape = shape_of(log_softmax)
    if len(shape) < 2:
        return
    dim = signed(log_softmax._saved_dim) % len(shape)
    layer = _places_of(log_softmax.next_functions[0])
    if dim != 1:
        # with more dimensions a view to [N, C] may be behind it, for which any other than the first can be right
        if len(shape) == 2 or dim == 0:
            yield SOFTMAX_OF_SAMPLES
        return
    made = () if layer is None else shape_of(layer)
    if layer is None or operation_of(layer) not in _LAYERS or len(made) < 2 or math.prod(made) != math.prod(shape):
        return
    is_convolution = operation_of(layer) == "Convolution"
    num_classes = made[1] if is_convolution else made[-1]
    of_rows = math.prod(made[2:]) if is_convolution else math.prod(shape[2:])
    # [B, C, H, W] that is viewed as [B * H * W, C], or [B * T, C] as [B, C, T]; a layer may return [C * T] on purpose
    if of_rows > 1 and num_classes == shape[1] and (len(shape) == 2) == is_convolution:
        yield CLASSES_SCRAMBLED


def _is_normalized(edge: Any) -> bool:
    """True of rows that are divided by a norm of themselves, as ``functional.normalize`` does it."""
    quotient = _source(edge)
    while quotient is not None and operation_of(quotient) == "Expand":
        quotient = _source(quotient.next_functions[0])
    if quotient is None or operation_of(quotient) != "Div" or len(quotient.next_functions) != 2:
        return False
    divided, divisor = (_source(side) for side in quotient.next_functions)
    for _ in range(_MAX_LOOKED_THROUGH):
        if divisor is None or operation_of(divisor) not in ("Expand", "ClampMin", "Clamp", "Add", "Maximum"):
            break
        divisor = _source(divisor.next_functions[0])
    if divisor is None or operation_of(divisor) not in ("LinalgVectorNorm", "Norm"):
        return False
    return _source(divisor.next_functions[0]) is divided


def _beyond_reach(node: Any, operation: str, below: list[Any], device: torch.device) -> Tensor | None:
    """int64 [numbers of ``LossInputs``]: targets of a regression, and those that the activation which made its
    predictions cannot give; None of anything else.
    """
    if len(below) != 1:
        return None
    if operation in ("MseLoss", "SmoothL1Loss", "HuberLoss"):
        reach, source = _reach_of(below[0])
        if reach is None or is_hooked(node._raw_saved_target):
            return None
        target = node._saved_target.detach()
    elif operation in ("Abs", "Pow") and operation_of(below[0][0]) == "Sub":
        # a difference keeps neither of its sides: the target is what it is less than the prediction, or more
        sides = below[0][0].next_functions
        constants = [side for side in sides if side[0] is None]
        reach, source = _reach_of(next((side for side in sides if side[0] is not None), (None, 0)))
        if len(constants) != 1 or reach is None or is_hooked(node._raw_saved_self):
            return None
        moved = next(_places_of(side) for side in sides if side[0] is not None) is not source
        if moved or is_hooked(source._raw_saved_result):
            return None
        difference, prediction = node._saved_self.detach(), source._saved_result.detach()
        if difference.numel() != prediction.numel():
            return None
        sign = 1 if sides[0][0] is not None else -1
        target = prediction.reshape(difference.shape) - sign * difference
    else:
        return None
    if not target.numel() or target.is_complex():
        return None
    target = target.double() if target.is_floating_point() else target
    overshoot = target.abs().amax() * _OVERSHOOT_FRAC
    num_beyond = ((target < reach.least - overshoot) | (target > reach.greatest + overshoot)).sum().to(device)
    return _at(reach.place, torch.full_like(num_beyond, target.numel()), num_beyond)


def _reach_of(edge: Any) -> tuple[_Range | None, Any]:
    """What the activation can give that made the elements along ``edge``, and its node; None of others."""
    source = _source(edge)
    return (None if source is None else _RANGES.get(operation_of(source))), source


def _places_of(edge: Any) -> Any:
    """The node that made the elements that pass along ``edge``, where all of them do and in its order; else the one
    that chose or moved them.
    """
    return _source(edge, _SAME_PLACES)


def _divergence_of(sub: Any) -> str:
    """Of ``target.xlogy(target) - target * x``, which is how torch computes a Kullback-Leibler divergence whose target
    needs no gradient: what made x; '' of another difference.
    """
    edges = sub.next_functions
    if len(edges) != 2 or edges[0][0] is not None or edges[1][0] is None or operation_of(edges[1][0]) != "Mul":
        return ""
    factors = [edge for edge in edges[1][0].next_functions if edge[0] is not None]
    return _source_operation(factors[0]) if len(factors) == 1 else ""


def _rows_with_rows(node: Any, edge: Any) -> bool:
    """True where one number a sample, [B] or [B, 1], becomes [B, B] on the way into a distance to constants, although
    nobody asked for a dimension more: each prediction then meets the target of every sample.
    """
    shape, source = shape_of(node), edge
    if operation_of(node) != "Sub" and operation_of(edge[0]) != "Expand":
        return False
    if operation_of(edge[0]) == "Expand":
        shape, source = shape_of(edge[0]), edge[0].next_functions[0]
    if source[0] is None or operation_of(source[0]) == "Unsqueeze" or len(shape) != 2:
        return False
    rows = shape[0]
    return rows > 1 and shape[1] == rows and shape_of(source[0], source[1]) in ((rows,), (rows, 1))


def _out_of_range(target: Tensor, device: torch.device) -> Tensor:
    values = target.detach()
    num_outside = ((values < 0) | (values > 1)).sum().to(device)
    return _at(0, torch.full_like(num_outside, values.numel()), num_outside)


def _at(place: int, *counts: Tensor) -> Tensor:
    """int64 [numbers of ``LossInputs``]: ``counts``, int64 [], from ``place`` on, and zeros."""
    behind = _NUMBERS - place - len(counts)
    return torch.cat([counts[0].new_zeros(place), torch.stack(counts), counts[0].new_zeros(behind)])


def _of_ctc(node: Any, device: torch.device) -> Iterator[Tensor]:
    """Counts of blanks among the targets, and of rows whose loss is infinite: the input is too short for the target.
    torch replaces these by 0 where ``zero_infinity`` is on.
    """
    if not is_hooked(node._raw_saved_targets):
        yield _blanks(node, device)
    if bool(node._saved_zero_infinity) and not is_hooked(node._raw_saved_result0):
        losses = node._saved_result0.detach()
        num_infinite = losses.isinf().sum().to(device)
        yield _at(13, torch.full_like(num_infinite, losses.numel()), num_infinite)


def _marks(quotient: Any, device: torch.device) -> Tensor | None:
    """Rows of 0 and 1 that are the probabilities of classes in a cross-entropy of torch over the outputs of a layer,
    and those with several 1; None of other quotients. A likelihood of several draws, which scripts write out, has such
    rows on purpose: torch's divides by a number, not by a tensor.
    """
    product = quotient
    for operation in ("Div", "Neg", "Sum"):
        if product is None or operation_of(product) != operation or len(product.next_functions) != 1:
            return None
        product = product.next_functions[0][0]
    if quotient.name() != "DivBackward1" or product is None or operation_of(product) != "Mul":
        return None
    below = [edge for edge in product.next_functions if edge[0] is not None]
    if len(below) != 1 or operation_of(below[0][0]) != "LogSoftmax":
        return None
    weights = saved_tensor(product, "other" if product.next_functions[0][0] is not None else "self")
    layer, shape = _source(below[0][0].next_functions[0]), shape_of(below[0][0])
    if weights is None or weights.dim() != 2 or tuple(weights.shape) != shape or layer is None:
        return None
    # similarities of samples have marks of all that belong together; a layer's own classes exclude each other
    if operation_of(layer) not in _LAYERS or not any(
        hasattr(_source(side), "variable") for side in layer.next_functions
    ):
        return None
    is_mark = ((weights == 0) | (weights == 1)).all(1)
    numbers = [(is_mark & (weights != 0).any(1)).sum(), (is_mark & (weights.sum(1) > 1)).sum()]
    return _at(15, *numbers).to(device)


def _blanks(node: Any, device: torch.device) -> Tensor:
    """Of targets [B, L], each row as far as it is long, or of all rows one behind the other."""
    targets = node._saved_targets.detach()
    counts = torch.ones_like(targets, dtype=torch.bool)
    if targets.dim() == 2:
        lengths = torch.as_tensor(node._saved_target_lengths, device=targets.device)
        counts = torch.arange(targets.shape[1], device=targets.device) < lengths[:, None]
    blanks = ((targets == int(node._saved_blank)) & counts).sum()
    return _at(5, counts.sum(), blanks).to(device)


def _padded(node: Any, ids_BT: Tensor, mask_BT: Tensor, device: torch.device, *, place: int) -> Tensor:
    """Of targets that are tokens of the same place, or of the next one: labels of a decoder may be as many as the
    tokens of its encoder, which the mask is of.
    """
    target = node._saved_target.detach().flatten()
    rows, length = ids_BT.shape
    whole = rows > 0 and ids_BT.shape == mask_BT.shape and target.numel() in (rows * length, rows * (length - 1))
    whole = whole and first_position(node) == 0
    if not (whole and target.device == mask_BT.device == ids_BT.device and int(node._saved_reduction) in _AVERAGES):
        return torch.zeros(_NUMBERS, dtype=torch.int64, device=device)
    target_BL = target.view(rows, -1)
    end = target_BL.shape[1]
    counts_BL = target_BL != ignored_index(node)
    is_token_BL = (target_BL == ids_BT[:, :end]) | (target_BL == ids_BT.roll(-1, 1)[:, :end])
    padded_BL = counts_BL & is_token_BL & (mask_BT[:, :end] == 0)
    numbers = [counts_BL.sum(), padded_BL.sum(), padded_BL.any(1).sum()]
    return _at(place, *numbers).to(device)
