"""Recorded steps made by hand, and the rows that they are, one dict a row by plain loops."""

import math

import numpy as np

from trueline.schema.columns.records import PROJECTION_NAMES, RECORD_COLUMNS, STAT_NAMES, StepRecords, TensorRecord

NAMES = ("", "layers.0.attn", "layers.0.attn.linear", "layers.0.mlp", "layers.1.attn", "lm_head[0]")


def make_step(step, *, num_rows=12, seed=0, exponents=False, fingerprints=True, stats=True):
    """A step of which every third row is the same as the one before it and every fifth was not measured."""
    rng = np.random.default_rng((seed, step))
    same_as = [row - 1 if row % 3 == 2 else None for row in range(num_rows)]
    measured = [row for row in range(num_rows) if same_as[row] is None and row % 5 != 4]
    columns = {
        "micro": [row // 6 for row in range(num_rows)],
        "phase": ["fwd" if row < num_rows * 2 // 3 else "bwd" for row in range(num_rows)],
        "name": [NAMES[row % len(NAMES)] for row in range(num_rows)],
        "call": np.arange(num_rows) // 7,
        "slot": [("in0", "out0", "out.logits")[row % 3] for row in range(num_rows)],
        "kind": ["module"] * num_rows,
        "args": ['{"dim": -1}' if row % 4 == 0 else None for row in range(num_rows)],
        "stack": [row % 2 if row else None for row in range(num_rows)],
        "shape": [tuple(range(row % 4)) for row in range(num_rows)],
        "strides": [(1, row) if row % 4 == 2 else None for row in range(num_rows)],
        "same_as": same_as,
        "numel": [None if same_as[row] is not None else row * 10 for row in range(num_rows)],
        "tensor": [f"t{row}" if row % 3 == 1 else None for row in range(num_rows)],
    }
    stats_MS = rng.integers(0, 2**40, size=(len(measured), len(STAT_NAMES))).astype(np.float64)
    stats_MS[:, 5:] = rng.normal(size=(len(measured), len(STAT_NAMES) - 5))
    if len(measured):
        stats_MS[0, 5:7] = math.nan
        stats_MS[-1, 9:] = math.nan  # projections that were not taken
    return StepRecords(
        step=step,
        columns=columns,
        measured_M=np.array(measured, dtype=np.int32),
        stats_MS=stats_MS if stats else None,
        fingerprint_M=rng.integers(0, 2**64, size=len(measured), dtype=np.uint64) if fingerprints else None,
        exponents_ME=rng.integers(0, 9, size=(len(measured), 256)) if exponents else None,
    )


def rows_of(records, rank, *, resolve):
    """The rows of a step as ``Run.records`` must give them, as dicts, with a text for NaN."""
    num_rows = len(records.columns["name"])
    rows = []
    for row in range(num_rows):
        values = {column.name: None for column in RECORD_COLUMNS}
        values |= {name: plain(column[row]) for name, column in records.columns.items()}
        rows.append(values | {"step": records.step, "rank": rank, "row": row})
    for at, row in enumerate(records.measured_M.tolist()):
        if records.stats_MS is not None:
            for index, name in enumerate(STAT_NAMES):
                value = float(records.stats_MS[at, index])
                if name in PROJECTION_NAMES:
                    rows[row][name] = None if math.isnan(value) else float(np.float32(value))
                else:
                    rows[row][name] = plain(value) if name in ("min", "max", "sum", "sum_sq") else int(value)
        if records.fingerprint_M is not None:
            rows[row]["fingerprint"] = int(records.fingerprint_M[at])
        if records.exponents_ME is not None:
            rows[row]["exponents"] = records.exponents_ME[at].tolist()
    for row in rows if resolve else ():
        if row["same_as"] is not None:
            for name in (*STAT_NAMES, "numel", "fingerprint", "exponents", "tensor"):
                row[name] = row[name] if row[name] is not None else rows[row["same_as"]][name]
    return rows


def plain(value):
    """A value that compares with ==: NaN is a text, NumPy's numbers and tuples are Python's."""
    if isinstance(value, tuple | list):
        return [plain(entry) for entry in value]
    value = value.item() if isinstance(value, np.generic) else value
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def read_rows(table):
    """Rows of a table as ``rows_of`` gives them."""
    return [{name: plain(value) for name, value in row.items()} for row in table.to_pylist()]


def tensor_record(step, key, values):
    """A float32 value to be stored."""
    values = np.ascontiguousarray(values, dtype=np.float32)
    return TensorRecord(step, key, "F32", values.shape, memoryview(values.reshape(-1).view(np.uint8)))
