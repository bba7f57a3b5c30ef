"""A second tensor over the memory of a first: what is done to it leaves no mark on the first one's storage.

``Tensor.numpy`` takes from a storage for good that it can be resized (torch/csrc/utils/tensor_numpy.cpp), and FSDP2
resizes the storages of its unsharded parameters.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor


def alias(x: Tensor) -> Tensor:
    """A tensor with the dtype, shape, strides and memory of ``x``, a detached CPU tensor, and a storage of its own.

    It is valid as long as ``x`` is, which it does not keep alive. A lazily conjugated or negated ``x`` is copied, as
    its memory is not what it stands for; one that is empty, or whose storage is fixed already, comes back itself.
    """
    if x.is_conj() or x.is_neg():
        return x.resolve_conj().resolve_neg()
    if x.numel() == 0 or not x.untyped_storage().resizable():
        return x
    span = x.numel() if x.is_contiguous() else 1 + sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    memory = (ctypes.c_char * (span * x.element_size())).from_address(x.data_ptr())
    return torch.frombuffer(memory, dtype=x.dtype).as_strided(x.shape, x.stride())
