"""The inputs of a recorded call: stored values where the Run has them, else numbers drawn to what was recorded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trueline.capture.record.buffer import UNFILLED
from trueline.schema.errors import CannotTell, RunError
from trueline.schema.formats import MASKS
from trueline.store.reader import Run
from trueline.trials.op.recalled import laid_out
from trueline.trials.op.recorded_calls import RecordedCall, RecordedValue

MAX_ELEMENTS = 64 * 2**20
"""Of one value: beyond it float64 on a CPU takes minutes and gigabytes."""


@dataclass(frozen=True)
class Inputs:
    """``tensors`` by slot, of gradients that arrive under ``grad of out0``; ``drawn`` are slots of those not stored."""

    tensors: dict[str, Tensor]
    drawn: tuple[str, ...]


def inputs_of(run: Run, call: RecordedCall, *, backward: bool, seed: int = 0) -> Inputs:
    """The values that ``call`` was given, with their strides; ``backward``: and the gradients that arrived. Raises
    ``CannotTell`` where a value is neither stored nor may be drawn.
    """
    values = dict(call.inputs)
    if backward:
        values |= {f"grad of {slot}": call.gradients[slot] for slot in call.outputs if slot in call.gradients}
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    drawn: list[str] = []
    for slot, value in values.items():
        if value.row["mesh"] is not None:
            raise CannotTell("it works on shards of a distributed tensor")
        if math.prod(value.shape) > MAX_ELEMENTS:
            raise CannotTell(f"its input {slot} has more than {MAX_ELEMENTS:,} elements")
        x = _stored(run, value)
        if x is None:
            x = _drawn(value, generator)
            drawn.append(slot)
        tensors[slot] = laid_out(x, value.strides)
    return Inputs(tensors, tuple(drawn))


def repeating(inputs: Inputs, *, indices: bool) -> Inputs:
    """The inputs with three of four rows of what was drawn like the first one, and (``indices``) as many integers: no
    statistic shows whether rows repeat, and what adds up many that do rounds otherwise.
    """
    tensors = {slot: _repeated(x, indices) if slot in inputs.drawn else x for slot, x in inputs.tensors.items()}
    return Inputs({slot: laid_out(x, inputs.tensors[slot].stride()) for slot, x in tensors.items()}, inputs.drawn)


def _repeated(x: Tensor, indices: bool) -> Tensor:
    if x.is_floating_point() and x.dim() > 1:
        rows = x.reshape(-1, x.shape[-1]).clone()
    elif indices and x.dtype in (torch.int32, torch.int64):
        rows = x.reshape(-1).clone()
    else:
        return x
    is_kept = torch.arange(len(rows)) % 4 == 3
    return torch.where(is_kept.view(-1, *[1] * (rows.dim() - 1)), rows, rows[:1]).view(x.shape)


def stored_output(run: Run, call: RecordedCall, slot: str) -> Tensor | None:
    """The value that the call returned, None where that was not stored."""
    return _stored(run, call.outputs[slot]) if slot in call.outputs else None


def _stored(run: Run, value: RecordedValue) -> Tensor | None:
    if value.row["tensor"] is None:
        return None
    try:
        stored = run.tensor(value.row)
    except RunError:
        return None
    if stored.shape != value.shape:
        return None  # only some of its rows were stored
    # bfloat16 has no dtype in NumPy: it comes as integers of its width
    data = torch.from_numpy(stored.data.copy())
    dtype: torch.dtype = getattr(torch, value.dtype)
    return data.view(dtype) if data.dtype != dtype else data


def _drawn(value: RecordedValue, generator: torch.Generator) -> Tensor:
    """Numbers with the recorded extremes, mean, deviation and share of zeros. Of integers only the range is kept, of
    negative ones the smallest, as labels that are left out are written.
    """
    row, dtype = value.row, getattr(torch, value.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise CannotTell(f"its input {value.slot} is {value.dtype}, which is no dtype of torch")
    if row["note"] == UNFILLED:
        return torch.zeros(value.shape, dtype=dtype)
    numel, low, high = row["numel"], row["min"], row["max"]
    if numel is None or row["sum"] is None:
        raise CannotTell(f"of its input {value.slot} neither values nor statistics were recorded")
    if (row["nan"] or 0) + (row["pos_inf"] or 0) or low is None or high is None:
        raise CannotTell(f"its input {value.slot} has NaN or infinity, and was not stored")
    if dtype is torch.bool:
        return torch.rand(value.shape, generator=generator) >= row["zero"] / max(numel, 1)
    if not (dtype.is_floating_point or dtype.is_complex):
        return _integers(value, dtype, int(low), int(high), generator)
    if low <= -MASKS.get(value.dtype, math.inf) or row["neg_inf"]:
        return _mask(row, value.shape, dtype, generator)
    mean = row["sum"] / max(numel, 1)
    # rounding may make the difference of squares negative
    std = math.sqrt(max(row["sum_sq"] / max(numel, 1) - mean**2, 0.0))
    x = torch.randn(value.shape, dtype=torch.float64, generator=generator).mul_(std).add_(mean).clamp_(low, high)
    x[torch.rand(value.shape, generator=generator) < row["zero"] / max(numel, 1)] = 0.0
    # the recorded extremes are there for certain: overflow and masks hang on them
    if numel > 1:
        x.view(-1)[0], x.view(-1)[-1] = low, high
    return x.to(dtype)


def _integers(value: RecordedValue, dtype: torch.dtype, low: int, high: int, generator: torch.Generator) -> Tensor:
    x = torch.randint(max(low, 0), max(high, 0) + 1, value.shape, generator=generator)
    if low < 0:
        x[torch.rand(value.shape, generator=generator) < 0.2] = low
    return x.to(dtype)


def _mask(row: Mapping[str, Any], shape: tuple[int, ...], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Zeros, and the lowest number in the same share: masks have nothing else. Each row keeps its first element."""
    share = row["zero"] / max(row["numel"], 1)
    lowest = -math.inf if row["neg_inf"] else row["min"]
    x = torch.where(torch.rand(shape, generator=generator) < share, 0.0, lowest)
    if x.dim():
        x[..., 0] = 0.0
    return x.to(dtype)
