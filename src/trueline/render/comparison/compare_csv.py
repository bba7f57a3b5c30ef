"""Every row of a comparison as a CSV file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path

from trueline.comparison.result import ComparedRow
from trueline.render.comparison.compare_rows import COLUMNS, RowColumn
from trueline.render.output import replacing
from trueline.render.wording import visible

_COMPUTED = tuple("=+-@|\uff1d\uff0b\uff0d\uff20")
"""First characters of what a spreadsheet takes for a formula (OWASP, CSV injection), also of full width."""
_NUMBER = re.compile(r"[-+]?(?:[\d.,]+(?:e[-+]?\d+)?|inf|nan)", re.IGNORECASE)
_ROWS = 8192
"""Rows of which the text is in memory at once."""


def write_csv(target: Path, rows: Sequence[ComparedRow]) -> None:
    """Write a header and one line a row to ``target`` (UTF-8, RFC 4180): numbers in full precision, nothing where
    something was not measured, ``nan`` and ``inf`` by name. A text that a spreadsheet would compute has an apostrophe
    in front. Raises ``InputError`` where it cannot be written.
    """
    # A name of a Run may hold what UTF-8 has no form for; it becomes a question mark.
    opening = {"mode": "w", "encoding": "utf-8", "errors": "replace", "newline": ""}
    with replacing(target, kind="CSV file") as temporary, temporary.open(**opening) as file:
        file.write(_line(column.name for column in COLUMNS))
        remaining = iter(rows)
        while part := list(islice(remaining, _ROWS)):
            file.writelines(map(_line, zip(*(_texts(column, part) for column in COLUMNS), strict=True)))


def _line(texts: Iterable[str]) -> str:
    return ",".join(texts) + "\r\n"


def _texts(column: RowColumn, rows: Sequence[ComparedRow]) -> list[str]:
    """The cells of a column as the file has them. Many rows share their values: each is formatted once,
    which takes half the time of the module ``csv``.
    """
    shared = list(map(column.value_of, rows))
    keys = shared if column.text is None else list(map(id, shared))
    distinct = dict(zip(keys, shared, strict=True))
    cells = distinct.values() if column.text is None else map(column.text, distinct.values())
    texts = dict(zip(distinct, _quoted(["" if cell is None else _harmless(cell) for cell in cells]), strict=True))
    return list(map(texts.__getitem__, keys))


def _harmless(cell: object) -> str:
    """A number as it is; a text as what it reads, for spreadsheets and terminals, too."""
    if not isinstance(cell, str):
        return str(cell)
    text = str(visible(cell))
    return f"'{text}" if text.lstrip()[:1] in _COMPUTED and text.strip() and not _NUMBER.fullmatch(text) else text


def _quoted(texts: list[str]) -> list[str]:
    """In quotes where a text has characters that would end a cell (RFC 4180, section 2)."""
    if not _has_marks("".join(texts)):
        return texts
    return ['"' + text.replace('"', '""') + '"' if _has_marks(text) else text for text in texts]


def _has_marks(text: str) -> bool:
    return '"' in text or "," in text or "\n" in text or "\r" in text
