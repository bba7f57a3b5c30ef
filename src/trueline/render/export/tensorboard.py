"""Numbers of a Run as event files of TensorBoard: a folder each rank, so that their curves lie over each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from trueline.schema.columns.table import worker_columns
from trueline.schema.text.shown import library
from trueline.store.reader import Run

_NUMBERS = ("float64", "float32", "int64", "int32")
_LEFT_OUT = frozenset({"step", "rank", "time_ns", "loss_operations"})


def write_tensorboard(run: Run, folder: Path) -> tuple[int, int]:
    """Write every number that a rank measured at a step below ``folder``; how many ranks and how many points. NaN and
    infinities are written as such. Raises ``InputError`` where TensorBoard is not installed, ``OSError``.
    """
    library("tensorboard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    names = [column.name for column in worker_columns() if column.type in _NUMBERS and column.name not in _LEFT_OUT]
    tables = {name: run.pivot(name) for name in names}
    tables = {name: values_and_measured for name, values_and_measured in tables.items() if values_and_measured[1].any()}
    times_TN, _ = run.pivot("time_ns")
    points = 0
    for index, rank in enumerate(run.ranks):
        writer: Any = EventFileWriter(str(folder / f"rank-{rank:05d}"), filename_suffix=".trueline")
        for at, step in enumerate(run.steps.tolist()):
            values = [
                Summary.Value(tag=f"trueline/{name}", simple_value=float(values_TN[at, index]))
                for name, (values_TN, measured_TN) in tables.items()
                if measured_TN[at, index]
            ]
            if values:
                written_s = float(times_TN[at, index]) / 1e9
                summary = Summary(value=values)
                writer.add_event(Event(step=step, wall_time=0.0 if np.isnan(written_s) else written_s, summary=summary))
                points += len(values)
        writer.close()
    return len(run.ranks), points
