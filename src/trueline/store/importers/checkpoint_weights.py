"""The tensors of a checkpoint as one step of a Run."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from trueline.schema.errors import InputError
from trueline.schema.files.run_manifest import Manifest
from trueline.store.importers.step_rows import Measure, Measured, StepRows, ValueOwner
from trueline.store.importers.target import new_run
from trueline.store.importers.torch_values import dtype_name, to_store
from trueline.store.writer import RunWriter


@dataclass(frozen=True)
class Weight:
    """A tensor of a checkpoint: ``phase`` param or opt, and what gives it, in host memory, when its turn comes. Those
    with one ``memory`` are one tensor under several names.
    """

    phase: str
    name: str
    slot: str
    load: Callable[[], Any]
    memory: Hashable | None = None


@dataclass(frozen=True)
class Checkpoint:
    """What a source holds. ``source`` is for the manifest: format, absolute path, what the files say of themselves."""

    weights: Sequence[Weight]
    source: dict[str, Any]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class WeightOptions:
    """How a checkpoint is imported: as ``step``; its values are left out of the Run where not ``tensors``."""

    measure: Measure
    step: int = 0
    tensors: bool = True
    version: str = ""


def write_checkpoint(checkpoint: Checkpoint, target: str, options: WeightOptions) -> None:
    """Write a Run of one step at ``target``. Raises ``InputError`` where there are no tensors, or it cannot be
    written.
    """
    if not checkpoint.weights:
        raise InputError(f"'{checkpoint.source['path']}' holds no tensors, so there is nothing to import.")
    manifest = Manifest(
        trueline_version=options.version,
        plan={"depth": "tensor" if options.tensors else "fingerprint"},
        source=checkpoint.source,
        notes=list(checkpoint.notes),
    )
    with new_run(target, manifest) as run, run.rank(0) as writer:
        rows = StepRows(options.step)
        row_by_memory: dict[Hashable, int] = {}
        for weight in checkpoint.weights:
            _add(weight, rows, row_by_memory, writer, options)
        writer.write(rows.records())


def _add(
    weight: Weight, rows: StepRows, row_by_memory: dict[Hashable, int], writer: RunWriter, options: WeightOptions
) -> None:
    x = weight.load()
    owner = ValueOwner(weight.phase, weight.name, kind="param" if weight.phase == "param" else "value")
    same_as = row_by_memory.get(weight.memory) if weight.memory is not None else None
    measured = Measured() if same_as is not None else options.measure(x)
    stored = None
    if same_as is None and measured.note is None and options.tensors:
        record = to_store(x, step=options.step, key=rows.key(owner, weight.slot))
        if record is not None:
            writer.write(record)
            stored = record.key
    row = rows.add(
        owner, weight.slot, measured, dtype=dtype_name(x), shape=tuple(x.shape), same_as=same_as, tensor=stored
    )
    if weight.memory is not None and same_as is None:
        row_by_memory[weight.memory] = row
