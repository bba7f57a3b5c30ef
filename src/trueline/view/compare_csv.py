"""Every row of a comparison as a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from trueline.analyze.comparison import Judged
from trueline.view.compare_rows import COLUMNS
from trueline.view.output import replacing


def write_csv(target: Path, rows: Sequence[Judged]) -> None:
    """Write a header and one line a row to ``target`` (UTF-8, RFC 4180): numbers in full precision, nothing where
    something was not measured, ``nan`` and ``inf`` by name. Raises ``InputError`` where it cannot be written.
    """
    # A name of a Run may hold what UTF-8 has no form for; it becomes a question mark.
    opening = {"mode": "w", "encoding": "utf-8", "errors": "replace", "newline": ""}
    with replacing(target, what="CSV file") as temporary, temporary.open(**opening) as file:
        writer = csv.writer(file)
        writer.writerow([column.name for column in COLUMNS])
        writer.writerows([column.cell(row) for column in COLUMNS] for row in rows)
