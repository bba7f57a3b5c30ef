"""A comparison as an Excel workbook: a summary, and every row with filters and a colour for each judgement."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trueline.comparison.result import JUDGEMENTS, ComparedRow, Comparison, Judgement
from trueline.render.comparison.compare_rows import COLUMNS, JUDGEMENT_WORDS, Cell
from trueline.render.comparison.compare_story import Story
from trueline.render.output import replacing
from trueline.render.wording import visible
from trueline.schema.errors import InputError
from trueline.schema.text.words import clipped

MAX_SHEET_ROWS = 1_048_576
"""Rows of a sheet, its header included, and characters of a cell that Excel takes:
https://support.microsoft.com/en-us/office/excel-specifications-and-limits-1672b34d-7043-467e-8e27-269d656771c3
"""
_MAX_CELL = 32_767

COLOURS: dict[Judgement, tuple[str, str]] = {
    "equal": ("#E3F1EA", "#17694D"),
    "within": ("#E3ECF6", "#2B5C8F"),
    "beyond": ("#F8DEDA", "#A62B1F"),
    "propagated": ("#FAEBCF", "#855400"),
    "not-comparable": ("#EDEDEA", "#59616B"),
}
"""Ground and text of a row's judgement: the report's colours on a light ground, at least 4.5 to 1."""

_WIDTHS = {"site": 52, "ref_site": 30, "api": 30, "note": 36, "where": 30, "details": 30, "judgement": 15, "shape": 14}
_NUMBERS = ("times", "measured", "expected")


def require_xlsxwriter() -> None:
    """Raise ``InputError`` where the optional package that writes workbooks is missing."""
    if find_spec("xlsxwriter") is None:
        raise InputError(
            "A workbook needs XlsxWriter, which is not installed. Install it with pip install 'trueline[xlsx]', "
            "or take --csv."
        )


def write_xlsx(target: Path, comparison: Comparison, story: Story) -> None:
    """Write ``comparison`` to the workbook ``target``: sheet ``summary``, and ``rows`` in as many sheets as it takes.

    Memory does not grow with the rows. Raises ``InputError`` where it cannot be written or XlsxWriter is missing.
    """
    require_xlsxwriter()
    import xlsxwriter

    with replacing(target, kind="workbook") as temporary, temporary.open("wb") as file:
        book = xlsxwriter.Workbook(file, {"constant_memory": True})
        formats = _formats(book)
        _write_summary(book.add_worksheet("summary"), comparison, story, formats)
        per_sheet = MAX_SHEET_ROWS - 1
        for part in range(max(1, math.ceil(len(comparison.rows) / per_sheet))):
            name = "rows" if part == 0 else f"rows {part + 1}"
            rows = comparison.rows[part * per_sheet : (part + 1) * per_sheet]
            _write_rows(book.add_worksheet(name), rows, formats)
        book.close()


def _formats(book: Any) -> dict[str, Any]:
    base = {"font_name": "Calibri", "font_size": 11, "valign": "top"}
    return {
        "title": book.add_format({**base, "bold": True, "font_size": 14, "text_wrap": True}),
        "head": book.add_format({**base, "bold": True, "bottom": 1}),
        "text": book.add_format({**base, "text_wrap": True}),
        "plain": book.add_format(base),
        "left": book.add_format({**base, "align": "left"}),
        "number": book.add_format({**base, "num_format": "0.00E+00"}),
        "times": book.add_format({**base, "num_format": "0.00"}),
        **{
            name: book.add_format({**base, "bg_color": ground, "font_color": ink})
            for name, (ground, ink) in COLOURS.items()
        },
    }


def _write_summary(sheet: Any, comparison: Comparison, story: Story, formats: dict[str, Any]) -> None:
    sheet.set_column(0, 0, 18)
    sheet.set_column(1, 1, 110)
    lines: list[tuple[str, str, Any]] = [
        ("verdict", story.headline, formats["title"]),
        *([("judged", story.judged, formats["text"])] if story.judged else []),
        ("run", comparison.run, formats["text"]),
        ("reference", comparison.ref, formats["text"]),
        *((label, text, formats["text"]) for label, text in story.facts),
        *(("next", text, formats["text"]) for text in story.next),
        *((finding.code, finding.claim, formats["text"]) for finding in story.findings),
        *(("steps", text, formats["text"]) for text in story.steps),
        *(("without a twin", text, formats["text"]) for text in story.missing),
        *(("one run only", text, formats["text"]) for text in story.one_sided),
        *(("note", text, formats["text"]) for text in story.notes),
    ]
    for line, (label, text, style) in enumerate(lines):
        sheet.write_string(line, 0, label, formats["head"])
        sheet.write_string(line, 1, _text(text), style)
    line = len(lines) + 1
    for name in JUDGEMENTS:
        sheet.write_string(line, 0, JUDGEMENT_WORDS[name], formats[name])
        sheet.write_number(line, 1, comparison.counts[name], formats["left"])
        line += 1
    for column in COLUMNS:
        line += 1
        sheet.write_string(line, 0, column.name, formats["head"])
        sheet.write_string(line, 1, column.meaning, formats["text"])


def _write_rows(sheet: Any, rows: Sequence[ComparedRow], formats: dict[str, Any]) -> None:
    for index, column in enumerate(COLUMNS):
        sheet.set_column(index, index, _WIDTHS.get(column.name, 11))
        sheet.write_string(0, index, column.name, formats["head"])
    sheet.freeze_panes(1, 0)
    sheet.autofilter(0, 0, len(rows), len(COLUMNS) - 1)
    styles = [formats["times" if column.name == "times" else "number"] for column in COLUMNS]
    for line, row in enumerate(rows, start=1):
        for index, column in enumerate(COLUMNS):
            value = column.cell(row)
            if column.name == "judgement":
                sheet.write_string(line, index, row.judgement, formats[row.judgement])
            elif value is not None and value != "":
                _write_cell(sheet, line, index, value, styles[index] if column.name in _NUMBERS else formats["plain"])


def _write_cell(sheet: Any, line: int, column: int, value: Cell, style: Any) -> None:
    if isinstance(value, str):
        sheet.write_string(line, column, _text(value), style)
    elif isinstance(value, float) and not math.isfinite(value):
        sheet.write_string(line, column, str(value), style)
    else:
        sheet.write_number(line, column, value, style)


def _text(value: str) -> str:
    return clipped(str(visible(value)), _MAX_CELL)
