"""What a notebook shows of an answer, and the same as a data frame."""

from __future__ import annotations

import html
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from trueline.schema.errors import InputError

MAX_ROWS = 50
"""Rows that a notebook shows; a data frame has all."""


class Shown:
    """Gives an answer that has a title, columns and notes the faces that a notebook asks for. Its ``repr`` is the
    title: a dataclass that takes it is made with ``repr=False``.
    """

    def _title(self) -> str:
        """What it comes to, in a sentence."""
        raise NotImplementedError

    def _columns_shown(self) -> Mapping[str, Sequence[Any]]:
        """Its rows, by column; all of the same length."""
        raise NotImplementedError

    def _notes(self) -> Sequence[str]:
        """What stands below the rows, a line each."""
        return ()

    def to_pandas(self) -> Any:
        """The rows as a ``pandas.DataFrame``. Raises ``InputError`` where pandas is not installed."""
        return library("pandas").DataFrame(dict(self._columns_shown()))

    def to_polars(self) -> Any:
        """The rows as a ``polars.DataFrame``. Raises ``InputError`` where Polars is not installed."""
        return library("polars").DataFrame(dict(self._columns_shown()), strict=False)

    def __repr__(self) -> str:
        return self._title()

    def _repr_html_(self) -> str:
        return "".join(_page(self._title(), self._columns_shown(), self._notes()))


def library(name: str) -> Any:
    """A library of data frames. Raises ``InputError`` where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError:
        raise InputError(f"{name} is not installed here. Install it with: pip install {name}") from None


def _page(title: str, columns: Mapping[str, Sequence[Any]], notes: Sequence[str]) -> Iterator[str]:
    """The parts of a table in HTML, in which nothing that was recorded is markup."""
    yield f"<div><p><b>{html.escape(title)}</b></p>"
    num_rows = max(map(len, columns.values()), default=0)
    if num_rows:
        yield "<table><thead><tr>" + "".join(f"<th>{html.escape(name)}</th>" for name in columns) + "</tr></thead>"
        for row in range(min(num_rows, MAX_ROWS)):
            cells = (f'<td style="text-align: left">{_cell(values[row])}</td>' for values in columns.values())
            yield f"<tr>{''.join(cells)}</tr>"
        yield "</table>"
    if num_rows > MAX_ROWS:
        yield f"<p>and {num_rows - MAX_ROWS:,} more: to_pandas() and to_polars() have all</p>"
    yield "".join(f"<p>{html.escape(note)}</p>" for note in notes) + "</div>"


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return html.escape(", ".join(map(str, cast(list[Any], value))))
    return html.escape(str(value))
