"""The memory of a tensor as a second tensor or as an array of NumPy, without leaving a mark on its storage.

``Tensor.numpy`` takes from a storage for good that it can be resized (torch/csrc/utils/tensor_numpy.cpp), and FSDP2
resizes the storages of its unsharded parameters.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_torch: Any = torch
"""With the parts that have no types."""


class _Memory:
    """Memory at an address, described by NumPy's array interface: ctypes would create a type for each length."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, num_elements: int, typestr: str) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (num_elements,),
            "typestr": typestr,
            "version": 3,
        }


def is_held(x: Tensor) -> bool:
    """True if memory holds all elements of a strided ``x``: not where its storage was resized (FSDP frees parameters
    that it had gathered), nor for a zero that torch makes without any.
    """
    num = x.numel()
    if num == 0:
        return True
    if x.data_ptr() == 0:
        return False
    last = num - 1 if x.is_contiguous() else sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    return x.untyped_storage().nbytes() >= (x.storage_offset() + last + 1) * x.element_size()


def is_readable(x: Tensor) -> bool:
    """True if ``x`` has bits of its own in memory, at strides: not a sparse, nested, meta or functional tensor, one
    that wraps others, or one whose memory was freed.
    """
    dispatch: Any = getattr(type(x), "__torch_dispatch__", None)
    wraps = dispatch is not None and dispatch is not getattr(Tensor, "__torch_dispatch__", None)
    return not (
        wraps
        or x.is_nested
        or x.layout is not torch.strided
        or x.is_meta
        or is_of_functorch(x)
        or is_functional(x)
        or not is_held(x)
    )


def is_of_functorch(x: Tensor) -> bool:
    """True if it is a tensor of torch.func, which has its values in others."""
    return bool(_torch._C._functorch.is_functorch_wrapped_tensor(x))


def is_functional(x: Tensor) -> bool:
    """True if it is a tensor of functionalization, which has no values that can be read."""
    return bool(_torch._is_functional_tensor(x))


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
    memory = np.asarray(_Memory(x.data_ptr(), span * x.element_size(), "|u1"))
    return torch.frombuffer(memory, dtype=x.dtype).as_strided(x.shape, x.stride())


def bits_of(x: Tensor, dtype: np.dtype[Any]) -> NDArray[Any]:
    """[n] the bits of a contiguous CPU tensor that is not empty, as integers no wider than its elements.

    They are its own memory: valid as long as ``x`` is, which they do not keep alive, and not to be written.
    """
    return np.asarray(_Memory(x.data_ptr(), x.numel() * x.element_size() // dtype.itemsize, dtype.str))
