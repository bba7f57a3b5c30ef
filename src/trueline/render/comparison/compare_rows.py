"""The rows of a comparison as flat lines of cells, and which of them are most relevant."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from trueline.comparison.result import JUDGEMENTS, ComparedRow, Judgement
from trueline.schema.site import SITE_FORM
from trueline.schema.text.documents import plain

Cell = str | int | float | None

JUDGEMENT_WORDS: dict[Judgement, str] = {
    "equal": "equal",
    "within": "within rounding",
    "beyond": "beyond rounding",
    "propagated": "propagated",
    "not-comparable": "not comparable",
}
"""Each judgement in words."""


def _number(value: float | None) -> float | None:
    return value


@dataclass(frozen=True, slots=True)
class RowColumn:
    """One column of the written tables: its name, its unit or meaning in a few words, the value that it takes from a
    row (``of``), and the cell for that value (``text``); rows may share values. ``text`` is None where the value is
    its own cell and equal ones are written alike, as texts and whole numbers are, and 0.0 and -0.0 are not.
    """

    name: str
    meaning: str
    value_of: Callable[[ComparedRow], Any]
    text: Callable[[Any], Cell] | None = None

    def cell(self, row: ComparedRow) -> Cell:
        """The cell of a row."""
        value = self.value_of(row)
        return value if self.text is None else self.text(value)


def shape_text(shape: Sequence[int]) -> str:
    """``4x32x64``; ``scalar`` for no dims."""
    return "x".join(map(str, shape)) or "scalar"


def details_text(details: Mapping[str, Any] | None) -> str | None:
    """``details`` as JSON, in which NaN and infinities, for which it has no form, are texts; None for none."""
    if not details:
        return None
    try:
        return _JSON.encode(dict(details))
    except ValueError:
        text = json.dumps(dict(details), default=plain)
        return json.dumps(json.loads(text, parse_constant=str), ensure_ascii=False)


_JSON = json.JSONEncoder(ensure_ascii=False, default=plain, allow_nan=False)


COLUMNS: tuple[RowColumn, ...] = (
    RowColumn("step", "optimizer step, from 0", attrgetter("step")),
    RowColumn("rank", "global rank; empty: several merged", attrgetter("rank")),
    RowColumn("place", "order of execution in the step", attrgetter("place")),
    RowColumn("judgement", ", ".join(JUDGEMENTS), attrgetter("judgement")),
    RowColumn("times", "measured over expected", attrgetter("times"), _number),
    RowColumn("measured", "relative L2 difference", attrgetter("measured"), _number),
    RowColumn(
        "expected", "relative L2 difference that rounding and its inputs explain", attrgetter("expected"), _number
    ),
    RowColumn("how", "what it was measured on: tensor, fingerprint or statistics", attrgetter("how")),
    RowColumn("site", SITE_FORM, attrgetter("site")),
    RowColumn("ref_site", "the same in REF", attrgetter("ref_site")),
    RowColumn("kind", "module, op, param, collective or value", attrgetter("kind")),
    RowColumn("api", "what was called", attrgetter("api")),
    RowColumn("dtype", "torch dtype", attrgetter("dtype")),
    RowColumn("ref_dtype", "torch dtype in REF", attrgetter("ref_dtype")),
    RowColumn("shape", "elements", attrgetter("shape"), shape_text),
    RowColumn("where", "line of code that made the call", attrgetter("where")),
    RowColumn("note", "why it cannot be compared, and what else is known", attrgetter("note")),
    RowColumn("details", "further numbers, as JSON", attrgetter("details"), details_text),
)


@dataclass(frozen=True, slots=True)
class RelevantRow:
    """A relevant row, and the number of other rows that show the same difference of the same value at other sites."""

    row: ComparedRow
    also: int = 0


def most_relevant(rows: Sequence[ComparedRow], first: ComparedRow | None, limit: int) -> list[RelevantRow]:
    """At most ``limit`` rows without ``first``: those beyond rounding in their order, then propagated ones, the largest
    of the earliest step first, then those that cannot be compared, then those within rounding, the largest first. Equal
    ones are left out.

    A value that is seen at several sites (the output of one module is the input of the next) is shown once.
    """
    groups: dict[object, list[ComparedRow]] = {}
    for row in rows:
        if row.judgement != "equal" and not (first is not None and same_row(row, first)):
            groups.setdefault(_same_value(row), []).append(row)
    if first is not None:
        groups.pop(_same_value(first), None)
    relevant = [RelevantRow(group[0], len(group) - 1) for group in groups.values()]
    relevant.sort(key=lambda relevant_row: _weight(relevant_row.row))
    return relevant[:limit]


def same_row(row: ComparedRow, other_row: ComparedRow) -> bool:
    """True if both are the same line of a comparison."""
    return (row.step, row.rank, row.place, row.site) == (
        other_row.step,
        other_row.rank,
        other_row.place,
        other_row.site,
    )


def _same_value(row: ComparedRow) -> object:
    """Equal for rows that show one difference of one value."""
    if row.judgement == "not-comparable":
        return (row.step, row.rank, row.judgement, row.note, row.site is None, row.ref_site is None)
    if row.measured is None:
        return id(row)
    return (row.step, row.rank, row.judgement, row.measured, row.expected, row.how, row.dtype, math.prod(row.shape))


_ORDER = {"beyond": 0, "propagated": 1, "not-comparable": 2, "within": 3, "equal": 4}


def _weight(row: ComparedRow) -> tuple[int, int, float]:
    step = row.step if row.judgement == "propagated" else 0
    size = {"propagated": row.measured, "within": row.times}.get(row.judgement)
    return _ORDER[row.judgement], step, -size if size is not None and not math.isnan(size) else 0.0


def place_text(row: ComparedRow) -> str:
    """The site of a row, or that of REF and that it is only there."""
    return row.site or f"{row.ref_site} (only in REF)"
