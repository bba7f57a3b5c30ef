"""Tensors of torch as values to be stored, and the values of safetensors files as tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from trueline.schema.columns.records import SAFETENSORS_NAMES, TensorRecord
from trueline.store.records.tensor_files import TensorValue

TORCH_NAMES: dict[str, str] = {code: name for name, code in SAFETENSORS_NAMES.items()}
"""The name of a dtype in torch by that in safetensors."""


def dtype_name(x: Any) -> str:
    """The dtype of a tensor as the column ``dtype`` has it."""
    return str(x.dtype).removeprefix("torch.")


def to_store(x: Any, *, step: int, key: str) -> TensorRecord | None:
    """A ``torch.Tensor`` in host memory as it is stored; None for a dtype that safetensors does not know. Its bytes
    are those of ``x`` itself where it is contiguous.
    """
    import torch

    code = SAFETENSORS_NAMES.get(dtype_name(x))
    if code is None:
        return None
    x = x.detach().resolve_conj().resolve_neg().contiguous()
    content = memoryview(x.reshape(-1).view(torch.uint8).numpy()) if x.numel() else memoryview(b"")
    return TensorRecord(step, key, code, tuple(x.shape), content)


def as_tensor(value: TensorValue) -> Any:
    """A ``torch.Tensor`` over the memory of a value of a safetensors file, of which nobody may change anything.

    Raises ``KeyError`` for a dtype that torch has no name for.
    """
    import torch

    dtype = getattr(torch, TORCH_NAMES[value.dtype])
    if not value.data.size:
        return torch.empty(value.shape, dtype=dtype)
    bits = np.ascontiguousarray(value.data).reshape(-1).view(np.uint8)
    if bits.ctypes.data % dtype.itemsize or not bits.flags.writeable:
        bits = bits.copy()
    return torch.from_numpy(bits).view(dtype).reshape(value.shape)
