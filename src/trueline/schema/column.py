"""One column of a table of a Run, as who measures it declares it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

ColumnType = Literal[
    "int64",
    "int32",
    "uint64",
    "float64",
    "float32",
    "string",
    "list<int32>",
    "list<int64>",
    "list<uint64>",
    "list<float64>",
    "list<float32>",
]
COLUMN_TYPES: tuple[ColumnType, ...] = get_args(ColumnType)


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its Arrow type, unit, and meaning. Runs of all versions are read under it, so its type stays.

    A column of a law stands behind the one that it names as ``after``, else behind the law's column before it, and the
    first of a law at the end of the table.
    """

    name: str
    type: ColumnType
    unit: str
    meaning: str
    after: str = ""


def column_fault(column: Any) -> str:
    """A sentence on what keeps ``column`` from being one of a table; empty where nothing does."""
    if not isinstance(column, Column):
        return f"Its columns have {column!r}. Write Column(name, type, unit, meaning)."
    name, texts = column.name, (column.name, column.unit, column.meaning)
    if not all(type(text) is str for text in texts) or not column.meaning:
        return f"Its column {name!r} does not say what it holds. Write its name, unit and meaning as texts."
    if not (name.isidentifier() and name.isascii()):
        return f"Its column '{name}' has no name of letters, digits and underscores. Give it one."
    if column.type not in COLUMN_TYPES:
        return f"Its column '{name}' has the type {column.type!r}. Use one of {', '.join(COLUMN_TYPES)}."
    return ""
