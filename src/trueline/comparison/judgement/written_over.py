"""The finding on values of which blocks were written over, and whose numbers are in them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trueline.comparison.expect.rounding import coarser
from trueline.comparison.judgement.step import Step
from trueline.comparison.judgement.values.block_pattern import (
    LEAST_BITS,
    BlockPattern,
    Writer,
    block_pattern,
    together,
    writer_of,
    wrong_elements,
)
from trueline.comparison.judgement.values.compared import Compared
from trueline.comparison.result import command_for
from trueline.judge.recorded.step_values import Value
from trueline.judge.stats.tails import probability
from trueline.schema.errors import RunError
from trueline.schema.finding import Finding
from trueline.schema.text.words import counted

MOST_VALUES = 64
"""Values of a step that are looked at, those that differ first."""
_NEXT = (
    "Look for what writes past its end, is freed too early, or runs on another stream without waiting: run the job "
    "with CUDA_LAUNCH_BLOCKING=1, and with PYTORCH_NO_CUDA_MEMORY_CACHING=1."
)


def written_over(steps: Sequence[Step], *, max_bytes: int) -> list[Finding]:
    """The finding, of the first step that has one; [] where no stored values differ in blocks."""
    for step in steps:
        rows = [row for row in step.rows if row.judgement == "beyond" and _is_stored(row, max_bytes)][:MOST_VALUES]
        patterns = {number: pattern for number, row in enumerate(rows) if (pattern := _pattern_of(row)) is not None}
        numbers, bits = together(patterns.items())
        # Later steps only carry the damage on.
        if bits > LEAST_BITS:
            return [_finding(step, [(rows[number], patterns[number]) for number in numbers], bits, max_bytes)]
    return []


def _is_stored(row: Compared, max_bytes: int) -> bool:
    value, ref_value = row.run_value, row.ref_value
    if value is None or ref_value is None or value.load is None or ref_value.load is None:
        return False
    return value.shape == ref_value.shape and value.dtype == ref_value.dtype and 64 * value.numel <= max_bytes


def _pattern_of(row: Compared) -> BlockPattern | None:
    assert row.run_value is not None
    assert row.ref_value is not None
    array, ref_array = _array(row.run_value), _array(row.ref_value)
    if array is None or ref_array is None or array.shape != ref_array.shape:
        return None
    dtype = coarser(row.run_value.dtype, row.ref_value.dtype)
    return block_pattern(wrong_elements(array, ref_array, dtype), array.shape)


def _array(value: Value) -> NDArray[Any] | None:
    try:
        return None if value.load is None else np.asarray(value.load())
    except RunError:
        return None


def _finding(step: Step, patterns: Sequence[tuple[Compared, BlockPattern]], bits: float, max_bytes: int) -> Finding:
    row, pattern = patterns[0]
    value = row.run_value
    assert value is not None
    ends = sum(len(later.runs) for _, later in patterns)
    begin, end = pattern.runs[0]
    more = f" but {counted(ends - 1, 'further block')}" if ends > 1 else ""
    multiple = min(later.block for _, later in patterns)
    claim = (
        f"Elements {begin:,} to {end - 1:,} of {value.site} differ from the reference, and no others{more}: their ends "
        f"are multiples of {multiple:,} elements, by chance with a probability of {2.0**-bits:.1g}. Memory was written "
        "over."
    )
    writer = _writer_of(step, value, pattern, max_bytes)
    if writer is not None:
        claim += f" What is there are the numbers of {writer[0].site} from element {writer[1].begin:,} on."
    return Finding(
        code="corruption-pattern",
        severity="error",
        claim=claim,
        ranks=value.ranks,
        step_first=step.step,
        step_last=step.step,
        sites=tuple(str(wrong.run_value.site) for wrong, _ in patterns[:5] if wrong.run_value is not None),
        measured=float(sum(last - first for first, last in pattern.runs)),
        expected=0.0,
        unit="elements",
        false_alarm_rate=probability(-bits * math.log(2)),
        evidence={
            "runs": [list(ends_of_run) for ends_of_run in pattern.runs],
            "multiples_of": pattern.block,
            "writer": "" if writer is None else str(writer[0].site),
        },
        next=(_NEXT, command_for(step.run.path, value.site)),
    )


def _writer_of(step: Step, value: Value, pattern: BlockPattern, max_bytes: int) -> tuple[Value, Writer] | None:
    """The value whose numbers are in the first block, of those that the run stored at the step."""
    array_written = _array(value)
    if array_written is None:
        return None
    values = step.alignment.mine.values

    def stored_arrays() -> Iterator[tuple[int, NDArray[Any]]]:
        for other_value in values:
            # Only first sightings: an alias has the numbers of the value itself.
            fits = other_value.load is not None and 64 * other_value.numel <= max_bytes
            array = _array(other_value) if fits and other_value.root == other_value.index != value.root else None
            if array is not None:
                yield other_value.index, array

    writer = writer_of(array_written, pattern.runs[0], stored_arrays())
    return None if writer is None else (next(source for source in values if source.index == writer.number), writer)
