"""The part of a value that can be measured: the tensor itself, or the local shard of a DTensor."""

from __future__ import annotations

import itertools
import json
import math
import operator
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from trueline.capture.model.host_copy import HostCopy
from trueline.capture.model.mesh import is_dtensor
from trueline.capture.record.arguments import Slots
from trueline.schema.columns.records import SAFETENSORS_NAMES, TensorRecord, Unmeasured
from trueline.tensor.measure import unmeasurable

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

PLAIN = frozenset({Tensor, nn.Parameter, nn.Buffer})

SAFETENSORS = {getattr(torch, name): code for name, code in SAFETENSORS_NAMES.items()}


class Measurable(NamedTuple):
    """``local`` is what is measured, None where nothing can be, for the reason in ``note``; ``whole`` are the arguments
    of a fingerprint that say where in the whole tensor it is.
    """

    local: Tensor | None
    mesh: str | None = None
    whole: Mapping[str, Any] = MappingProxyType({})
    pending_sum: bool = False
    note: str | None = None


def is_under_way(x: Tensor) -> bool:
    """True if ``x`` is the result of a collective that no call has waited for yet; the next call that uses it will."""
    return _arrived(x._local_tensor if is_dtensor(x) else x) is None


def split_complete(slots: Slots) -> tuple[Slots, Slots]:
    """The values that are complete, and those whose collective no call has waited for."""
    # Nearly every call has plain tensors only, and gets its own list back.
    for _, x in slots:
        if type(x) not in PLAIN and is_under_way(x):
            waits = [is_under_way(x) for _, x in slots]
            return list(itertools.compress(slots, map(operator.not_, waits))), list(itertools.compress(slots, waits))
    return slots, ()


def opened(x: Tensor) -> Measurable:
    """The part of ``x`` that can be measured, or why there is none."""
    if is_dtensor(x):
        return _of_dtensor(x)
    arrived = _arrived(x)
    reason = Unmeasured.UNDER_WAY if arrived is None else unmeasurable(arrived)
    return Measurable(arrived if reason is None else None, note=reason)


def _arrived(x: Tensor) -> Tensor | None:
    """``x``, or where a collective makes it what that put there; None while it is under way."""
    if not isinstance(x, AsyncCollectiveTensor):
        return x
    return x.elem if x.completed else None


def _of_dtensor(x: DTensor) -> Measurable:
    local = _arrived(x._local_tensor)
    if local is None:
        return Measurable(None, note=Unmeasured.UNDER_WAY)
    spec = x._spec
    whole = tuple(spec.shape)
    offsets = _offsets(x, tuple(local.shape), whole)
    placements = [str(placement) for placement in spec.placements]
    placement_facts = {
        "mesh": list(spec.mesh.shape),
        "names": list(spec.mesh.mesh_dim_names or ()),
        "coordinate": list(spec.mesh.get_coordinate() or ()),
        "placements": placements,
        "shape": list(whole),
        "offsets": offsets,
    }
    pending = any(placement.is_partial() for placement in spec.placements)
    reason = unmeasurable(local)
    text = json.dumps(placement_facts, separators=(",", ":"))
    whole_arguments = {"whole_shape": whole, "offsets": offsets} if offsets is not None else {}
    return Measurable(local if reason is None else None, text, whole_arguments, pending_sum=pending, note=reason)


def _offsets(x: DTensor, local: tuple[int, ...], whole: tuple[int, ...]) -> list[int] | None:
    """Index of the shard's first element along every dim of the whole, as ``torch.chunk`` cuts; None for placements
    that are not contiguous blocks.
    """
    spec = x._spec
    start, size = [0] * len(whole), list(whole)
    coordinate = spec.mesh.get_coordinate()
    if coordinate is None:
        return None
    for axis, placement in enumerate(spec.placements):
        if not placement.is_shard():
            continue
        if type(placement).__name__ != "Shard":
            return None
        dim = placement.dim  # type: ignore[attr-defined]
        piece = math.ceil(size[dim] / spec.mesh.size(axis))
        first = min(coordinate[axis] * piece, size[dim])
        start[dim] += first
        size[dim] = min(piece, size[dim] - first)
    return start if tuple(size) == local else None


def stored(x: Tensor, *, step: int, key: str) -> tuple[HostCopy | None, TensorRecord] | None:
    """A copy of ``x`` to be stored, with the copying that is under way (None: done); None for a dtype that safetensors
    does not know.
    """
    dtype = SAFETENSORS.get(x.dtype)
    if dtype is None:
        return None
    whole = x.contiguous()
    if x.device.type == "cpu":
        if whole.data_ptr() == x.data_ptr():
            whole = whole.clone()
        return None, TensorRecord(step, key, dtype, tuple(x.shape), _bytes(whole))
    copy = HostCopy({"x": whole})
    return copy, TensorRecord(step, key, dtype, tuple(x.shape), _bytes(copy.host["x"]))


def _bytes(x: Tensor) -> memoryview:
    """Bytes of a contiguous tensor. A single element is contiguous with any stride, but has no view as bytes then."""
    return memoryview(x.as_strided((x.numel(),), (1,)).view(torch.uint8).numpy()) if x.numel() else memoryview(b"")
