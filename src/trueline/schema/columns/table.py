"""The table ``workers`` as it is with the laws that are installed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache

from trueline.schema.column import Column
from trueline.schema.columns.workers import SHARED_COLUMNS
from trueline.schema.law import installed_laws


@cache
def worker_columns() -> tuple[Column, ...]:
    """All columns of the table, in its order."""
    return compose(SHARED_COLUMNS, [law.columns for law in installed_laws()])


@cache
def column_names() -> frozenset[str]:
    """The names of all columns of the table."""
    return frozenset(column.name for column in worker_columns())


@cache
def param_columns() -> frozenset[str]:
    """The columns whose lists are about the parameters and groups of ``ParamLists``."""
    return frozenset(
        name
        for name in column_names()
        if name.startswith(("param_", "group_", "used_param_")) or name in ("sketch", "closing_digests")
    )


def compose(shared: Iterable[Column], of_laws: Iterable[Sequence[Column]]) -> tuple[Column, ...]:
    """The ``shared`` columns, and those of each law where they say that they stand."""
    table = list(shared)
    names = [column.name for column in table]
    waiting = [
        (column, column.after or (columns[index - 1].name if index else ""))
        for columns in of_laws
        for index, column in enumerate(columns)
    ]
    while waiting:
        waiting_still: list[tuple[Column, str]] = []
        for column, before in waiting:
            if before in names:
                position = names.index(before) + 1
                table.insert(position, column)
                names.insert(position, column.name)
            else:
                waiting_still.append((column, before))
        if len(waiting_still) == len(waiting):  # behind nothing, or behind what no law that is installed has
            column, _ = waiting_still.pop(0)
            table.append(column)
            names.append(column.name)
        waiting = waiting_still
    return tuple(table)
