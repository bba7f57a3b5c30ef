"""Whether what a model returns for some rows of its batch depends on other rows, or on padding.

Letters: B rows, T positions, K leading dimensions that are looked at; of samples that are joined into one batch, as
graphs are, N rows of all together, G samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from trueline.capture.model.contents import Walk, is_tensor
from trueline.capture.model.graph import gradients_of, nodes_below
from trueline.capture.model.outputs import differentiable
from trueline.capture.probes.arguments import named_arguments
from trueline.capture.probes.batch import token_ids
from trueline.schema.columns.influence import (
    BESIDE,
    NO_ENTRY,
    NO_OUTPUT,
    NO_ROWS,
    NORMALISED,
    NOT_FINITE,
    OWN_BACKWARD,
    RECURRENT,
    RowInfluence,
)

MAX_ENTRIES = 64
"""Modules that read the model's inputs first; adapters of a frozen model are several."""

_SAMPLE_OF = ("batch", "batch_idx", "batch_index", "graph_ids", "segment_ids", "document_ids", "doc_ids", "seq_idx")
"""Names of vectors [N] that assign each row of a joined batch to its sample."""
_BORDERS = ("ptr", "cu_seqlens", "cu_seqlens_q", "cu_seqlens_k", "offsets")
"""Names of vectors [G + 1] of where each sample begins, and the last one ends."""


class RowReader:
    """What one forward pass of ``module`` reads, what reads it first, and what it returns.

    ``samples`` are those that the loader of the data puts into one batch, where that is known.
    """

    def __init__(self, module: nn.Module, samples: int | None) -> None:
        self._module, self._samples = module, samples
        self._inputs: list[tuple[str, Tensor]] = []
        self._num_rows, self._axis = 0, 0
        self._sample_of: Tensor | None = None
        self._entries: list[tuple[Tensor, Tensor]] = []
        self._recurrent: list[tuple[Tensor, int]] = []
        self._pads: set[int] = set()
        self.outputs: list[Tensor] = []
        """Of what the model returned, those that have a row for each of its inputs."""

    def at_module(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """A module without parts has returned: it is kept if gradients come to its output, and to nothing it read."""
        read = [each for each in (*args, *kwargs.values()) if is_tensor(each)]
        if not read or any(each.grad_fn is not None for each in read):
            return
        first = output[0] if isinstance(output, tuple) and output else output
        if isinstance(first, Tensor) and first.requires_grad and len(self._entries) < MAX_ENTRIES:
            self._entries.append((read[0], first))
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                self._pads.add(module.padding_idx)
            if isinstance(module, nn.RNNBase) and read[0].dim() > 1:
                self._recurrent.append((read[0], int(module.batch_first and read[0].dim() == 3)))

    def at_output(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """The model has returned ``output`` of what it read."""
        self._inputs = _inputs_of(self._module, args, kwargs)
        self._sample_of = _sample_of(self._inputs)
        self._num_rows = _num_rows(self._inputs) if self._sample_of is None else len(self._sample_of)
        found = {id(each): each for each in differentiable(output) if each.is_floating_point()}.values()
        self.outputs = [each for each in found if self._has_rows(each, self._num_rows)]
        if not self.outputs and self._sample_of is None and self._samples != self._num_rows:
            behind = _rows_behind(self._inputs)
            self.outputs = [each for each in found if each.dim() > 1 and self._has_rows(each, behind)]
            if self.outputs:
                self._num_rows, self._axis = behind, 1

    def judged(self, *, in_order: bool, usable: bool) -> list[float]:
        """The column. ``in_order``: another dimension is known to be of positions; ``usable``: the graph may be used
        once more.
        """
        doubt = 0 if usable else OWN_BACKWARD
        placed = [(read, made, rows) for read, made in self._entries if (rows := self._rows_of(read, made)) is not None]
        doubt = RECURRENT if any(self._varies(read, along) for read, along in self._recurrent) else doubt
        doubt = doubt if placed else NO_ENTRY
        doubt = doubt if self.outputs else NO_OUTPUT
        doubt = doubt if self._num_rows else NO_ROWS
        found = RowInfluence(doubt) if doubt else self._measured(placed, in_order)
        return list(astuple(replace(found, lost=float(self._loses()))))

    def _loses(self) -> bool:
        """Whether a number of each row, [B] or [B, 1], is read by no first module, while one of these reads [B] or
        [B, features], made of no input that is seen, that is the same for all rows, and no other can have read it.
        """
        rows = self._num_rows if self._axis == 0 and self._sample_of is None else 0
        if rows < 2:
            return False
        given = {x.untyped_storage().data_ptr() for _, x in self._inputs}
        numbers = [x for name, x in self._inputs if tuple(x.shape) in ((rows,), (rows, 1)) and _tells(name, x)]
        read = [read for read, _ in self._entries if read.dim() in (1, 2) and len(read) == rows]
        directly = {each.untyped_storage().data_ptr() for each in read}
        unread = [x for x in numbers if x.untyped_storage().data_ptr() not in directly]
        made = [each for each in read if each.untyped_storage().data_ptr() not in given and bool((each != 0).any())]
        alike = [each for each in made if bool((each == each[0]).all())]
        return bool(alike) and len(made) - len(alike) < len(unread)

    def _measured(self, placed: list[tuple[Tensor, Tensor, Tensor]], in_order: bool) -> RowInfluence:
        rows = self._num_rows
        sample_N = torch.arange(rows) if self._sample_of is None else self._sample_of.cpu()
        is_chosen_G = torch.zeros(int(sample_N.max()) + 1, dtype=torch.bool)
        is_chosen_G[_chosen(len(is_chosen_G))] = True
        is_chosen_B = is_chosen_G[sample_N]
        of = [is_chosen_B if len(each) == rows else is_chosen_G for each in self.outputs]
        reached_B = _reached(self.outputs, of, placed, rows)
        own, others_N = float(reached_B[is_chosen_B].amax()), reached_B[~is_chosen_B]
        others = float(others_N.amax())
        if not 0 < max(own, others) < math.inf:
            return RowInfluence(NOT_FINITE)
        if others > 0 and self._normalises():
            return RowInfluence(NORMALISED)
        alone = all(rows not in (*x.shape[: self._axis], *x.shape[self._axis + 1 :]) for _, x in self._inputs)
        known = self._samples == rows or in_order or self._axis == 1
        return RowInfluence(
            0,
            float(self._sample_of is not None or (alone and known)),
            own,
            others,
            float((others_N > 0).sum()),
            float(len(others_N)),
            convolved=float(
                any(max(part.kernel_size) > 1 for part in self._module.modules() if isinstance(part, _ConvNd))
            ),
            eps=max(torch.finfo(each.dtype).eps for each in (*self.outputs, *(made for _, made, _ in placed))),
            **self._padding(),
            **self._edges(),
        )

    def _edges(self) -> dict[str, float]:
        """Of ``RowInfluence``: the samples of a joined batch, and in how many an edge begins and ends; none without
        edges [2, E] of its rows.
        """
        edges = [x for name, x in self._inputs if name == "edge_index" and x.dim() == 2 and len(x) == 2]
        if self._sample_of is None or len(edges) != 1 or not edges[0].numel() or int(edges[0].max()) >= self._num_rows:
            return {}
        ends_2E = self._sample_of[edges[0].to(self._sample_of.device)]
        within = ends_2E[0][ends_2E[0] == ends_2E[1]]
        return {"samples": float(self._sample_of[-1]) + 1, "with_edges": float(len(within.unique()))}

    def _padding(self) -> dict[str, float]:
        """Of ``RowInfluence``: largest gradient of outputs at positions that the mask keeps to such positions, and to
        others; none where there is no such mask, or nobody reads the positions that it is about. A position beside one
        that is kept may be joined with it on purpose.
        """
        unknown: dict[str, float] = {}
        ids = token_ids(**dict(self._inputs))
        keeps_BT = _keeps(self._inputs)
        by_index = keeps_BT is None and ids is not None
        if by_index:
            keeps_BT = self._indexed(ids)
        if keeps_BT is None or ids is None or ids.shape != keeps_BT.shape:
            return unknown
        found = [(read, made, _places(read, made, ids, 2)) for read, made in self._entries]
        placed = [(read, made, places) for read, made, places in found if places is not None]
        outputs = [
            each for each in self.outputs if each.dim() < 3 or (each.dim() == 3 and each.shape[1] == ids.shape[1])
        ]
        is_far_BT = nn.functional.max_pool1d(keeps_BT.float(), 3, 1, 1).cpu() == 0
        if not placed or not outputs or not bool(is_far_BT.any()):
            return unknown
        any_B = keeps_BT.any(1)
        of = [keeps_BT if each.dim() > 1 and each.shape[1] == ids.shape[1] else any_B for each in outputs]
        reached_BT = _reached(outputs, of, placed, ids.numel()).view(ids.shape)
        kept, padding = float(reached_BT[keeps_BT.cpu()].amax()), float(reached_BT[is_far_BT].amax())
        if not 0 < max(kept, padding) < math.inf:
            return unknown
        among = _among(outputs, keeps_BT, placed) if padding > 0 else math.nan
        return {"kept": kept, "padding": padding, "among": among, "by_index": float(by_index)}

    def _indexed(self, ids: Tensor) -> Tensor | None:
        """Bool [B, T]: where ``ids`` are not what the embeddings that read the inputs take for padding."""
        return ids.detach() != next(iter(self._pads)) if len(self._pads) == 1 else None

    def _has_rows(self, output: Tensor, rows: int) -> bool:
        """Whether it has so many, and is no table of rows against rows, as contrastive models return, be it of all
        ranks.
        """
        ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        tables = [(rows, rows * more) for more in (1, ranks)]
        if self._sample_of is not None and output.dim() and len(output) == int(self._sample_of.max()) + 1:
            return True
        if output.dim() == 0 or output.shape[0] != rows:
            return False
        # as many features as there are rows are no table: their width is that of a parameter
        return tuple(output.shape) not in tables or _is_as_wide_as_a_parameter(output)

    def _rows_of(self, read: Tensor, made: Tensor) -> Tensor | None:
        """The row of the inputs that each place of what a module made is of, as ``_places``."""
        rows, dims = self._num_rows, self._axis + 1
        for _, x in self._inputs:
            if x.dim() >= dims and x.shape[self._axis] == rows:
                places = _places(read, made, x, dims)
                if places is not None:
                    return places % rows
                alike = x.dim() > dims and read.shape[: x.dim()] == x.shape and made.shape[:dims] == x.shape[:dims]
                if alike and rows not in (*x.shape[: self._axis], *x.shape[dims:]):
                    return torch.arange(rows).expand(x.shape[:dims])
        return None

    def _varies(self, read: Tensor, along: int) -> bool:
        """Whether places along this dimension of what a module read are of several rows."""
        rows = self._rows_of(read, read)
        return rows is not None and along < rows.dim() and bool((rows.diff(dim=along) != 0).any())

    def _normalises(self) -> bool:
        def of_batches(part: nn.Module) -> bool:
            named = any("BatchNorm" in kind.__name__ or "BatchRenorm" in kind.__name__ for kind in type(part).__mro__)
            by_batch = isinstance(part, _BatchNorm) and part.running_mean is None
            return named and (part.training or by_batch)

        return any(map(of_batches, self._module.modules())) or any(
            "BatchNorm" in node.name() for node in nodes_below(self.outputs)
        )


def _among(outputs: list[Tensor], keeps_BT: Tensor, placed: list[tuple[Tensor, Tensor, Tensor]]) -> float:
    """Largest gradient of outputs at every other position that is kept to those in between; NaN where no output has
    positions.
    """
    placewise = [each for each in outputs if each.dim() > 1 and each.shape[1] == keeps_BT.shape[1]]
    if not placewise:
        return math.nan
    is_asked_BT = keeps_BT & (torch.arange(keeps_BT.shape[1], device=keeps_BT.device) % 2 == 0)
    reached_BT = _reached(placewise, [is_asked_BT] * len(placewise), placed, keeps_BT.numel()).view(keeps_BT.shape)
    between = reached_BT[(keeps_BT & ~is_asked_BT).cpu()]
    return float(between.amax()) if len(between) else math.nan


def _tells(name: str, x: Tensor) -> bool:
    """Whether it is a condition of samples, and differs between them."""
    beside = any(word in name.lower() for word in BESIDE)
    return not beside and x.dtype != torch.bool and bool((x != x[0]).any())


def _is_as_wide_as_a_parameter(output: Tensor) -> bool:
    """Whether the width of ``output`` comes from a parameter, as of a linear layer, along each way that it was made;
    not where two tensors that both depend on data make it, as in a table of pairs.
    """
    ahead: list[Any] = [output.grad_fn]
    seen = set[Any]()
    while ahead:
        node: Any = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        below = [next_node for next_node, _ in node.next_functions if next_node is not None]
        parameters = [leaf for each in below if (leaf := _leaf_of(each)) is not None]
        features = {*_shape_of(node)[1:]}  # of this operation: the output may be a part of what it made
        if any(features.intersection(leaf.shape) for leaf in parameters):
            continue
        data = [each for each in below if _leaf_of(each) is None]
        if not data or (len(data) > 1 and "Cat" not in node.name() and len({*map(_shape_of, (node, *data))}) > 1):
            return False
        ahead += data
    return True


def _leaf_of(node: Any) -> Tensor | None:
    """The leaf of the graph that ``node`` is a view or a transposition of; None where it depends on more than that."""
    while len(node.next_functions) == 1 and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
    return getattr(node, "variable", None)


def _shape_of(node: Any) -> tuple[int, ...]:
    """Of what the operation of ``node`` returned first."""
    made = getattr(node, "_input_metadata", ())
    return tuple(made[0].shape) if made else ()


def _chosen(rows: int) -> slice:
    """An odd number of rows, near half of them and without the first: an order that is reversed, or exchanged in pairs,
    and attention to earlier rows all cross its border.
    """
    half = rows // 2
    return slice(1, 1 + half - (half > 1 and half % 2 == 0))


def _inputs_of(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    """The tensors that a forward pass reads with the names of its arguments; none where there may be more."""
    walk = Walk()
    found = [
        pair for name, value in named_arguments(module, args, kwargs).items() for pair in walk.tensors(name, value)
    ]
    return found if walk.is_complete else []


def _num_rows(inputs: list[tuple[str, Tensor]]) -> int:
    """The size of the first dimension that they have in common, apart from masks and what is spread over rows; 0 where
    there is none.
    """
    if any(x.layout != torch.strided for _, x in inputs):
        return 0
    sizes = {x.shape[0] for name, x in inputs if x.dim() > 0 and x.shape[0] != 1 and "mask" not in name}
    return sizes.pop() if len(sizes) == 1 else 0


def _rows_behind(inputs: list[tuple[str, Tensor]]) -> int:
    """The size of the second dimension of the only input, [T, B, features], as recurrent modules of torch read
    sequences; 0 where there is none.
    """
    x = inputs[0][1] if len(inputs) == 1 else torch.empty(0)
    return x.shape[1] if x.layout == torch.strided and x.dim() == 3 and x.shape[1] > 1 else 0


def _sample_of(inputs: list[tuple[str, Tensor]]) -> Tensor | None:
    """int64 [N]: the sample of each row of a joined batch, where the job hands a vector that says so; None without, or
    where something else has as many rows, as edges may.
    """
    found: list[Tensor] = []
    for name, x in inputs:
        if x.dim() != 1 or x.is_floating_point() or x.dtype == torch.bool or len(x) < 2 or bool((x.diff() < 0).any()):
            continue
        if name in _SAMPLE_OF and int(x[0]) == 0:
            found.append(x.long())
        elif name in _BORDERS and int(x[0]) == 0:
            found.append(torch.arange(len(x) - 1, device=x.device).repeat_interleave(x.long().diff()))
    if not found or any(len(each) != len(found[0]) for each in found):
        return None
    num_rows = len(found[0])
    is_read = any(x.dim() and len(x) == num_rows and name not in _SAMPLE_OF for name, x in inputs)
    is_of_edges = any(x.dim() == 2 and tuple(x.shape) == (2, num_rows) for _, x in inputs)
    return found[0] if is_read and not is_of_edges and 0 < int(found[0][-1]) < num_rows - 1 else None


def _keeps(inputs: Iterable[tuple[str, Tensor]]) -> Tensor | None:
    """Bool [B, T]: the positions that the only such mask keeps."""
    found: list[Tensor] = []
    for name, x in inputs:
        if x.dim() == 2 and name == "attention_mask":
            found.append(x != 0)
        elif x.dim() == 2 and name.endswith("padding_mask") and x.dtype == torch.bool:
            found.append(~x)
    return found[0].detach() if len(found) == 1 else None


def _places(read: Tensor, made: Tensor, x: Tensor, dims: int) -> Tensor | None:
    """int64 [K dimensions of ``made``]: the place in the first ``dims`` dimensions of ``x``, in their order, that each
    place of ``made`` is of; None where ``read`` is no view of ``x``, or mixes places.

    ``made`` is taken to keep as many leading dimensions of ``read`` as are needed to tell them apart.
    """
    same = read.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and read.dtype == x.dtype
    unit = x.stride(dims - 1)
    within = sum((size - 1) * stride for size, stride in zip(x.shape[dims:], x.stride()[dims:], strict=True))
    dense = all(x.stride(dim) == x.shape[dim + 1] * x.stride(dim + 1) for dim in range(dims - 1))
    if not same or not dense or within >= unit:
        return None
    at = torch.tensor(read.storage_offset() - x.storage_offset())
    for dim in range(min(read.dim(), made.dim()) + 1):
        rest = sum((size - 1) * stride for size, stride in zip(read.shape[dim:], read.stride()[dim:], strict=True))
        if dim and bool((at // unit == (at + rest) // unit).all()):
            places = at // unit
            inside = bool((places >= 0).all()) and bool((places < math.prod(x.shape[:dims])).all())
            return places if inside else None
        if dim == min(read.dim(), made.dim()) or made.shape[dim] != read.shape[dim]:
            return None
        at = at[..., None] + torch.arange(read.shape[dim]) * read.stride(dim)
    return None


def _reached(
    outputs: list[Tensor], of: list[Tensor], placed: list[tuple[Tensor, Tensor, Tensor]], num_places: int
) -> Tensor:
    """float64 [num_places]: the largest magnitude of the gradient of a fixed weighted sum over these rows, or places,
    of outputs with respect to what was made of each place of the input.
    """
    weights: list[Tensor] = []
    for output, is_of in zip(outputs, of, strict=True):
        row = torch.arange(math.prod(output.shape[1:]), device=output.device).cos().to(output.dtype)
        shape = (*is_of.shape, *[1] * (output.dim() - is_of.dim()))
        weights.append(row.view(output.shape[1:]) * is_of.to(output.device).view(shape))
    made = [each for _, each, _ in placed]
    gradients = gradients_of(outputs, made, weights)
    reached = torch.zeros(num_places, dtype=torch.float64)
    for gradient, (_, _, places) in zip(gradients, placed, strict=True):
        if gradient is not None:
            most = gradient.detach().abs().flatten(places.dim()).amax(-1) if gradient.dim() > places.dim() else gradient
            reached.scatter_reduce_(0, places.flatten(), most.detach().abs().flatten().double().cpu(), "amax")
    return reached
