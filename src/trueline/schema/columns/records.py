"""What a recorded step is: one row per (site, value), and the values themselves where a Plan asks for them.

A value that is seen at several sites of a step (the output of one module is the input of the next) is measured once:
the first row has its numbers, the others say which row that was. ``None`` means not measured, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.schema.column import Column

PROJECTION_NAMES: tuple[str, ...] = ("projection_0", "projection_1", "projection_2")
"""Sums of the finite elements, each with a fixed sign by its place (``tensor.projections``)."""

STAT_NAMES: tuple[str, ...] = (
    *("nan", "pos_inf", "neg_inf", "zero", "subnormal", "min", "max", "sum", "sum_sq"),
    *PROJECTION_NAMES,
)
"""The statistics of one value, in the order in which they are measured; all but the first three over finite ones."""


class Unmeasured(StrEnum):
    """Why a value has no numbers of its own, or not all, where the program acts on that. The column ``note`` says it in
    these words, or in a sentence that has them.
    """

    UNDER_WAY = "a collective that is still under way"
    """The result of a collective that no one has waited for."""

    UNCOUNTED = "not all elements are finite, and nothing was counted"
    """Of an imported value nothing else is known."""

    @classmethod
    def of(cls, note: str) -> Unmeasured | None:
        """The reason that a ``note`` of a Run gives; None for any other."""
        return next((reason for reason in cls if reason in note), None)


RECORD_COLUMNS: tuple[Column, ...] = (
    Column("step", "int64", "optimizer steps", "Optimizer step, from 0."),
    Column("rank", "int32", "", "Global rank."),
    Column("row", "int32", "", "Order in which the values of this step were seen on this rank, from 0."),
    Column("micro", "int32", "", "Micro-batch within the step, from 0."),
    Column("phase", "string", "", "fwd, bwd, param, grad, opt, comm or save."),
    Column(
        "name",
        "string",
        "",
        "FQN of a module or parameter; of an op, that of its module, a dot and its name.",
    ),
    Column("call", "int32", "", "Zero-based index of the call of that name in the phase of the micro-batch."),
    Column("slot", "string", "", "Which value of the call: in0, kwarg name, out0, out.logits, …"),
    Column("kind", "string", "", "module, op, param, collective or value."),
    Column("api", "string", "", "What was called: the module's class, or the path of the torch function."),
    Column("module", "string", "", "FQN of the innermost module that ran, '' outside of the model."),
    Column("args", "string", "", "JSON of the arguments that are no tensors; on the first row of a call only."),
    Column("stack", "int32", "", "Number of the call stack in stacks/; None where none was taken."),
    Column("flags", "string", "", "Comma-separated: recomputed, no_grad, compiled, inplace, pending_sum."),
    Column("dtype", "string", "", "torch dtype without 'torch.'; Python's type name for numbers."),
    Column("shape", "list<int64>", "elements", "Shape of the value as seen (of the local shard of a DTensor)."),
    Column(
        "strides",
        "list<int64>",
        "elements",
        "Strides of the value as seen, where it does not lie in memory row by row.",
    ),
    Column("mesh", "string", "", "JSON of a DTensor's mesh, placements, whole shape and offset of the shard."),
    Column("same_as", "int32", "", "Row of this step that has the numbers of this value; None where this row has."),
    Column("numel", "int64", "elements", "Numbers measured: the elements, or two for each complex one."),
    Column("nan", "int64", "elements", "NaN elements."),
    Column("pos_inf", "int64", "elements", "+inf elements."),
    Column("neg_inf", "int64", "elements", "-inf elements."),
    Column("zero", "int64", "elements", "Elements equal to zero."),
    Column("subnormal", "int64", "elements", "Subnormal elements."),
    Column("min", "float64", "value", "Smallest finite element."),
    Column("max", "float64", "value", "Largest finite element."),
    Column("sum", "float64", "value", "Sum of the finite elements."),
    Column("sum_sq", "float64", "value²", "Sum of the squares of the finite elements."),
    *(
        Column(name, "float32", "value", "Sum of finite elements, each with a fixed sign by its place in the whole.")
        for name in PROJECTION_NAMES
    ),
    Column("fingerprint", "uint64", "", "Fingerprint of the bits, merged over shards by global index."),
    Column(
        "exponents",
        "list<int64>",
        "elements",
        "[256] Finite non-zero elements by floor(log2|x|) + 127, clipped to 0 and 255; where the Plan asks for it.",
    ),
    Column("tensor", "string", "", "Key of the value in tensors/rank-*/step-*.safetensors."),
    Column("note", "string", "", "Why a value was not measured, or measured in part."),
)


SAFETENSORS_NAMES: Mapping[str, str] = MappingProxyType(
    {
        "float64": "F64",
        "float32": "F32",
        "float16": "F16",
        "bfloat16": "BF16",
        "int64": "I64",
        "int32": "I32",
        "int16": "I16",
        "int8": "I8",
        "uint8": "U8",
        "uint16": "U16",
        "uint32": "U32",
        "uint64": "U64",
        "bool": "BOOL",
        "complex64": "C64",
        "float8_e4m3fn": "F8_E4M3",
        "float8_e5m2": "F8_E5M2",
    }
)
"""The name of a dtype in a safetensors header (huggingface/safetensors, ``Dtype``) by torch's without 'torch.'."""


@dataclass(frozen=True)
class StepRecords:
    """The R rows of one step on one rank, of which M were measured. The last that is written of a step.

    ``columns`` are the columns that are neither statistics nor ``step``, ``rank``, ``row``, each of length R; one that
    is left out is None throughout. A column equal to that of the step before may be the same object, which a Sink may
    use. ``measured_M`` (int32) are rows, ascending; ``stats_MS`` (float64, S as ``STAT_NAMES``) their statistics, with
    NaN for the extremes where nothing is finite, for projections that were not taken, and for whatever was not
    measured in rows whose NaN count is NaN;
    ``fingerprint_M`` uint64; ``exponents_ME`` int64 [M, 256]; each None where the Plan does not ask for it.
    """

    step: int
    columns: Mapping[str, Sequence[Any]]
    measured_M: NDArray[np.int32]
    stats_MS: NDArray[np.float64] | None = None
    fingerprint_M: NDArray[np.uint64] | None = None
    exponents_ME: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class TensorRecord:
    """One value to be stored as it is, ``data`` being its bytes in row-major order, which nobody changes any more.

    ``key`` is distinct within the step; ``dtype`` as safetensors spells it (``F32``, ``BF16``, ``I64``, ``BOOL``, …).
    """

    step: int
    key: str
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True)
class StackRecord:
    """A call stack, innermost frame first, one text ``file:line function`` a frame. Stored once, referred to by id."""

    id: int
    frames: tuple[str, ...]
