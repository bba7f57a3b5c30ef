"""Measure how far what a model returns for some rows of its batch depends on other rows, or on padding.

Letters: B rows, T positions, K leading dimensions that are looked at; of samples that are joined into one batch, as
graphs are, N rows of all together, G samples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from trueline.capture.model.contents import Walk, is_tensor
from trueline.capture.model.graph import gradients_of, nodes_below, shape_of
from trueline.capture.model.outputs import differentiable
from trueline.capture.probes.arguments import named_arguments
from trueline.capture.probes.batch import token_ids
from trueline.capture.probes.filling import NO_FILLING, filling_of
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


class _Entry(NamedTuple):
    """A module that reads the model's inputs: what it read first, what it returned, and the index of each cell."""

    input: Tensor
    output: Tensor
    indices: Tensor


class RowReader:
    """Inputs of one forward pass of ``module``, the modules that read them first, and outputs.

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
        inputs = [tensor for tensor in (*args, *kwargs.values()) if is_tensor(tensor)]
        if not inputs or any(tensor.grad_fn is not None for tensor in inputs):
            return
        # recurrent modules and attention return what they computed first, and states or weights behind it
        first = output[0] if isinstance(output, tuple) and output else output
        if isinstance(first, Tensor) and first.requires_grad and len(self._entries) < MAX_ENTRIES:
            self._entries.append((inputs[0], first))
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                self._pads.add(module.padding_idx)
            if isinstance(module, nn.RNNBase) and inputs[0].dim() > 1:
                self._recurrent.append((inputs[0], int(module.batch_first and inputs[0].dim() == 3)))

    def at_output(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """The model has returned ``output`` of what it read."""
        self._inputs = _inputs_of(self._module, args, kwargs)
        self._sample_of = _sample_of(self._inputs)
        self._num_rows = _num_rows(self._inputs) if self._sample_of is None else len(self._sample_of)
        tensors = {id(tensor): tensor for tensor in differentiable(output) if tensor.is_floating_point()}.values()
        self.outputs = [tensor for tensor in tensors if self._has_rows(tensor, self._num_rows)]
        # the first dimension may be of positions; not where the loader puts as many samples into a batch
        if not self.outputs and self._sample_of is None and self._samples != self._num_rows:
            behind = _rows_behind(self._inputs)
            self.outputs = [tensor for tensor in tensors if tensor.dim() > 1 and self._has_rows(tensor, behind)]
            if self.outputs:
                self._num_rows, self._axis = behind, 1

    def judged(self, *, in_order: bool, usable: bool) -> list[float]:
        """The column. ``in_order``: another dimension is known to be of positions; ``usable``: the graph may be used
        once more.
        """
        doubt = 0 if usable else OWN_BACKWARD
        entries = [_Entry(*pair, rows) for pair in self._entries if (rows := self._rows_of(*pair)) is not None]
        # each line overrules those above it: what is missing entirely is said before what is doubtful
        doubt = RECURRENT if any(self._varies(entry_input, dim) for entry_input, dim in self._recurrent) else doubt
        doubt = doubt if entries else NO_ENTRY
        doubt = doubt if self.outputs else NO_OUTPUT
        doubt = doubt if self._num_rows else NO_ROWS
        influence = RowInfluence(doubt) if doubt else self._measured(entries, in_order)
        return list(astuple(replace(influence, lost=float(self._loses()))))

    def _loses(self) -> bool:
        """True if a number of each row, [B] or [B, 1], is read by no first module, while one of these reads [B] or
        [B, features], made of no input that is seen, that is equal for all rows, and no other can have read it.
        """
        rows = self._num_rows if self._axis == 0 and self._sample_of is None else 0
        if rows < 2:
            return False
        input_storages = {x.untyped_storage().data_ptr() for _, x in self._inputs}
        numbers = [x for name, x in self._inputs if tuple(x.shape) in ((rows,), (rows, 1)) and _tells(name, x)]
        entry_inputs = [x for x, _ in self._entries if x.dim() in (1, 2) and len(x) == rows]
        read_storages = {tensor.untyped_storage().data_ptr() for tensor in entry_inputs}
        unread = [x for x in numbers if x.untyped_storage().data_ptr() not in read_storages]
        computed = [
            tensor
            for tensor in entry_inputs
            if tensor.untyped_storage().data_ptr() not in input_storages and bool((tensor != 0).any())
        ]
        constant = [tensor for tensor in computed if bool((tensor == tensor[0]).all())]
        return bool(constant) and len(computed) - len(constant) < len(unread)

    def _measured(self, entries: list[_Entry], in_order: bool) -> RowInfluence:
        rows = self._num_rows
        sample_N = torch.arange(rows) if self._sample_of is None else self._sample_of.cpu()
        is_chosen_G = torch.zeros(int(sample_N.max()) + 1, dtype=torch.bool)
        is_chosen_G[_chosen_rows(len(is_chosen_G))] = True
        is_chosen_B = is_chosen_G[sample_N]
        masks = [is_chosen_B if len(output) == rows else is_chosen_G for output in self.outputs]
        reached_B = _reached(self.outputs, masks, entries, rows)
        own_gradient, others_N = float(reached_B[is_chosen_B].amax()), reached_B[~is_chosen_B]
        other_gradient = float(others_N.amax())
        if not 0 < max(own_gradient, other_gradient) < math.inf:
            return RowInfluence(NOT_FINITE)
        if other_gradient > 0 and self._normalises():
            return RowInfluence(NORMALISED)
        is_only_axis = all(rows not in (*x.shape[: self._axis], *x.shape[self._axis + 1 :]) for _, x in self._inputs)
        is_of_samples = self._samples == rows or in_order or self._axis == 1
        return RowInfluence(
            0,
            float(self._sample_of is not None or (is_only_axis and is_of_samples)),
            own_gradient,
            other_gradient,
            float((others_N > 0).sum()),
            float(len(others_N)),
            convolved=float(
                any(max(part.kernel_size) > 1 for part in self._module.modules() if isinstance(part, _ConvNd))
            ),
            eps=max(torch.finfo(output.dtype).eps for output in (*self.outputs, *(entry.output for entry in entries))),
            counted=self._counted(),
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
        sample_2E = self._sample_of[edges[0].to(self._sample_of.device)]
        inner_samples = sample_2E[0][sample_2E[0] == sample_2E[1]]
        return {"samples": float(self._sample_of[-1]) + 1, "with_edges": float(len(inner_samples.unique()))}

    def _counted(self) -> float:
        """Of ``RowInfluence``: by how many places padding on the left of rows of several lengths moves their text,
        where an embedding reads positions that are the same in all rows.
        """
        ids, keeps_BT = token_ids(**dict(self._inputs)), _keeps(self._inputs)
        if ids is not None and keeps_BT is None:
            keeps_BT = self._indexed(ids)
        if ids is None or keeps_BT is None or ids.shape != keeps_BT.shape:
            return 0.0
        length = ids.shape[1]
        moved_B = (keeps_BT.long().cumsum(1) == 0).sum(1)
        moved_B = moved_B[moved_B < length]  # of what has text
        places = torch.arange(length, device=ids.device)
        counts = any(
            not x.is_floating_point() and x.shape[-1:] == (length,) and bool((x - x[..., :1] == places).all())
            for x, _ in self._entries
        )
        return float(moved_B.max()) if counts and len(moved_B.unique()) > 1 else 0.0

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
        located = [(pair, _flat_indices(*pair, ids, 2)) for pair in self._entries]
        entries = [_Entry(*pair, indices) for pair, indices in located if indices is not None]
        outputs = [
            output
            for output in self.outputs
            if output.dim() < 3 or (output.dim() == 3 and output.shape[1] == ids.shape[1])
        ]
        # convolutions and shifts join neighbours on purpose, so that only padding further away than one position counts
        is_far_BT = nn.functional.max_pool1d(keeps_BT.float(), 3, 1, 1).cpu() == 0
        if not entries or not outputs or not bool(is_far_BT.any()):
            return unknown
        any_B = keeps_BT.any(1)
        masks = [keeps_BT if output.dim() > 1 and output.shape[1] == ids.shape[1] else any_B for output in outputs]
        reached_BT = _reached(outputs, masks, entries, ids.numel()).view(ids.shape)
        kept_gradient, padding_gradient = float(reached_BT[keeps_BT.cpu()].amax()), float(reached_BT[is_far_BT].amax())
        if not 0 < max(kept_gradient, padding_gradient) < math.inf:
            return unknown
        # a further backward pass, which is needed only to tell an inverted mask from a missing one
        among = _among(outputs, keeps_BT, entries) if padding_gradient > 0 else math.nan
        return {"kept": kept_gradient, "padding": padding_gradient, "among": among, "by_index": float(by_index)}

    def _indexed(self, ids: Tensor) -> Tensor | None:
        """Bool [B, T]: where ``ids`` are not what the embeddings that read the inputs take for padding, or, where these
        declare none, what rows of several lengths are filled up with.
        """
        if not self._pads:
            filling = filling_of(ids.detach())
            return None if int(filling) == NO_FILLING else ids.detach() != filling
        return ids.detach() != next(iter(self._pads)) if len(self._pads) == 1 else None

    def _has_rows(self, output: Tensor, rows: int) -> bool:
        """True if it has so many, and is no table of rows against rows, as contrastive models return, be it of all
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

    def _rows_of(self, source: Tensor, output: Tensor) -> Tensor | None:
        """int64, as ``_flat_indices``: the row of the inputs that each cell of what a module returned is of."""
        rows, dims = self._num_rows, self._axis + 1
        for _, x in self._inputs:
            if x.dim() >= dims and x.shape[self._axis] == rows:
                indices = _flat_indices(source, output, x, dims)
                if indices is not None:
                    return indices % rows
                has_layout = (
                    x.dim() > dims and source.shape[: x.dim()] == x.shape and output.shape[:dims] == x.shape[:dims]
                )
                if has_layout and rows not in (*x.shape[: self._axis], *x.shape[dims:]):
                    return torch.arange(rows).expand(x.shape[:dims])
        return None

    def _varies(self, entry_input: Tensor, dim: int) -> bool:
        """True if cells along this dimension of what a module read are of several rows."""
        rows = self._rows_of(entry_input, entry_input)
        return rows is not None and dim < rows.dim() and bool((rows.diff(dim=dim) != 0).any())

    def _normalises(self) -> bool:
        def normalises_batches(part: nn.Module) -> bool:
            is_named = any(
                "BatchNorm" in kind.__name__ or "BatchRenorm" in kind.__name__ for kind in type(part).__mro__
            )
            by_batch = isinstance(part, _BatchNorm) and part.running_mean is None
            return is_named and (part.training or by_batch)

        return any(map(normalises_batches, self._module.modules())) or any(
            "BatchNorm" in node.name() for node in nodes_below(self.outputs)
        )


def _among(outputs: list[Tensor], keeps_BT: Tensor, entries: list[_Entry]) -> float:
    """Largest gradient of outputs at every other position that is kept to those in between; NaN where no output has
    positions.
    """
    with_positions = [output for output in outputs if output.dim() > 1 and output.shape[1] == keeps_BT.shape[1]]
    if not with_positions:
        return math.nan
    is_even_BT = keeps_BT & (torch.arange(keeps_BT.shape[1], device=keeps_BT.device) % 2 == 0)
    reached_BT = _reached(with_positions, [is_even_BT] * len(with_positions), entries, keeps_BT.numel()).view(
        keeps_BT.shape
    )
    gradients = reached_BT[(keeps_BT & ~is_even_BT).cpu()]
    return float(gradients.amax()) if len(gradients) else math.nan


def _tells(name: str, x: Tensor) -> bool:
    """True for a condition of samples that differs between them."""
    is_secondary = any(word in name.lower() for word in BESIDE)
    return not is_secondary and x.dtype != torch.bool and bool((x != x[0]).any())


def _is_as_wide_as_a_parameter(output: Tensor) -> bool:
    """True if the width of ``output`` comes from a parameter, as of a linear layer, along each way that it was made;
    not where two tensors that both depend on data make it, as in a table of pairs.
    """
    pending: list[Any] = [output.grad_fn]
    visited = set[Any]()
    while pending:
        node: Any = pending.pop()
        if node in visited:
            continue
        visited.add(node)
        parents = [next_node for next_node, _ in node.next_functions if next_node is not None]
        parameters = [leaf for parent in parents if (leaf := _leaf_of(parent)) is not None]
        features = {*shape_of(node)[1:]}  # of this operation: the output may be a part of what it made
        if any(features.intersection(leaf.shape) for leaf in parameters):
            continue
        data = [parent for parent in parents if _leaf_of(parent) is None]
        # concatenation keeps the width of a parameter as part of its own; a product of two data tensors does not
        if not data or (len(data) > 1 and "Cat" not in node.name() and len({*map(shape_of, (node, *data))}) > 1):
            return False
        pending += data
    return True


def _leaf_of(node: Any) -> Tensor | None:
    """The leaf of the graph that ``node`` is a view or a transposition of; None where it depends on more than that."""
    while len(node.next_functions) == 1 and node.next_functions[0][0] is not None:
        node = node.next_functions[0][0]
    return getattr(node, "variable", None)


def _chosen_rows(rows: int) -> slice:
    """An odd number of rows, near half of them and without the first: an order that is reversed, or exchanged in pairs,
    and attention to earlier rows all cross its border.
    """
    half = rows // 2
    return slice(1, 1 + half - (half > 1 and half % 2 == 0))


def _inputs_of(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[tuple[str, Tensor]]:
    """The tensors that a forward pass reads with the names of its arguments; none where there may be more."""
    walk = Walk()
    tensors = [
        pair for name, value in named_arguments(module, args, kwargs).items() for pair in walk.tensors(name, value)
    ]
    return tensors if walk.is_complete else []


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
    candidates: list[Tensor] = []
    for name, x in inputs:
        if x.dim() != 1 or x.is_floating_point() or x.dtype == torch.bool or len(x) < 2 or bool((x.diff() < 0).any()):
            continue
        if name in _SAMPLE_OF and int(x[0]) == 0:
            candidates.append(x.long())
        elif name in _BORDERS and int(x[0]) == 0:
            candidates.append(torch.arange(len(x) - 1, device=x.device).repeat_interleave(x.long().diff()))
    if not candidates or any(len(candidate) != len(candidates[0]) for candidate in candidates):
        return None
    num_rows = len(candidates[0])
    is_read = any(x.dim() and len(x) == num_rows and name not in _SAMPLE_OF for name, x in inputs)
    is_of_edges = any(x.dim() == 2 and tuple(x.shape) == (2, num_rows) for _, x in inputs)
    return candidates[0] if is_read and not is_of_edges and 0 < int(candidates[0][-1]) < num_rows - 1 else None


def _keeps(inputs: Iterable[tuple[str, Tensor]]) -> Tensor | None:
    """Bool [B, T]: the positions that the only such mask keeps."""
    masks: list[Tensor] = []
    for name, x in inputs:
        if x.dim() == 2 and name == "attention_mask":
            masks.append(x != 0)
        elif x.dim() == 2 and name.endswith("padding_mask") and x.dtype == torch.bool:
            masks.append(~x)
    return masks[0].detach() if len(masks) == 1 else None


def _flat_indices(source: Tensor, output: Tensor, x: Tensor, dims: int) -> Tensor | None:
    """int64 [K dimensions of ``output``]: the flat index into the first ``dims`` dimensions of ``x`` that each of
    its cells is of; None where ``source`` is no view of ``x``, or mixes indices.

    ``output`` is taken to keep as many leading dimensions of ``source`` as are needed to tell them apart.
    """
    is_view = source.untyped_storage().data_ptr() == x.untyped_storage().data_ptr() and source.dtype == x.dtype
    # memory between two indices; what a module reads within one unit belongs to one index
    unit = x.stride(dims - 1)
    row_extent = sum((size - 1) * stride for size, stride in zip(x.shape[dims:], x.stride()[dims:], strict=True))
    is_dense = all(x.stride(dim) == x.shape[dim + 1] * x.stride(dim + 1) for dim in range(dims - 1))
    if not is_view or not is_dense or row_extent >= unit:
        return None
    at = torch.tensor(source.storage_offset() - x.storage_offset())
    for dim in range(min(source.dim(), output.dim()) + 1):
        extent = sum(
            (size - 1) * stride for size, stride in zip(source.shape[dim:], source.stride()[dim:], strict=True)
        )
        if dim and bool((at // unit == (at + extent) // unit).all()):
            indices = at // unit
            is_inside = bool((indices >= 0).all()) and bool((indices < math.prod(x.shape[:dims])).all())
            return indices if is_inside else None
        if dim == min(source.dim(), output.dim()) or output.shape[dim] != source.shape[dim]:
            return None
        at = at[..., None] + torch.arange(source.shape[dim]) * source.stride(dim)
    return None


def _reached(outputs: list[Tensor], masks: list[Tensor], entries: list[_Entry], size: int) -> Tensor:
    """float64 [size]: the largest magnitude of the gradient of a fixed weighted sum over the cells of outputs in
    ``masks``, with respect to what the first modules returned for each index of the input.
    """
    weights: list[Tensor] = []
    for output, is_of in zip(outputs, masks, strict=True):
        # cosines of whole numbers never repeat: an equal weight for all elements could cancel, as below a softmax
        row = torch.arange(math.prod(output.shape[1:]), device=output.device).cos().to(output.dtype)
        shape = (*is_of.shape, *[1] * (output.dim() - is_of.dim()))
        weights.append(row.view(output.shape[1:]) * is_of.to(output.device).view(shape))
    gradients = gradients_of(outputs, [entry.output for entry in entries], weights)
    reached = torch.zeros(size, dtype=torch.float64)
    for gradient, entry in zip(gradients, entries, strict=True):
        if gradient is not None:
            num_dims = entry.indices.dim()
            largest = gradient.detach().abs().flatten(num_dims).amax(-1) if gradient.dim() > num_dims else gradient
            reached.scatter_reduce_(0, entry.indices.flatten(), largest.detach().abs().flatten().double().cpu(), "amax")
    return reached
