"""What differs between two jobs as an Excel workbook, a sheet each kind, or as one self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from trueline.render.comparison.compare_xlsx import require_xlsxwriter
from trueline.render.output import replacing, save
from trueline.render.wording import visible
from trueline.same_job.diff import JobDiff
from trueline.same_job.difference import Difference
from trueline.schema.text.words import clipped

COLUMNS = (
    "likely",
    "code",
    "topic",
    "what",
    "run",
    "reference",
    "set in the run by",
    "set in the reference by",
    "note",
)
_WIDTHS = (8, 18, 16, 46, 30, 30, 40, 40, 40)
_MAX_CELL = 32_767
_MAX_NAME = 31
"""Characters of a cell and of a sheet's name that Excel takes."""


def _cells(each: Difference) -> tuple[str, ...]:
    texts = (each.code, each.topic, each.says, each.run, each.ref, each.run_where, each.ref_where, each.note)
    return tuple(clipped(str(visible(text)), _MAX_CELL) for text in texts)


def write_xlsx(target: Path, found: JobDiff) -> None:
    """Write the workbook: sheet ``summary``, one for each kind of finding, and ``settings`` with what both jobs tell.
    Raises ``InputError`` where it cannot be written or XlsxWriter is missing.
    """
    require_xlsxwriter()
    import xlsxwriter

    with replacing(target, what="workbook") as temporary, temporary.open("wb") as file:
        book = xlsxwriter.Workbook(file)
        bold = book.add_format({"bold": True, "bottom": 1})
        wrap = book.add_format({"text_wrap": True, "valign": "top"})
        summary = book.add_worksheet("summary")
        summary.set_column(0, 0, 14)
        summary.set_column(1, 1, 110)
        lines = [("verdict", found.headline), ("run", found.run), ("reference", found.ref), ("losses", found.began)]
        for place, (label, text) in enumerate([*lines, *(("note", note) for note in found.notes)]):
            summary.write_string(place, 0, label, bold)
            summary.write_string(place, 1, clipped(str(visible(text)), _MAX_CELL), wrap)
        for code in dict.fromkeys(each.code for each in found.differences):
            rows = [(each.likely, *_cells(each)) for each in found.differences if each.code == code]
            _sheet(book, code, COLUMNS, _WIDTHS, rows)
        mine, theirs = found.settings
        settings = [(name, mine.get(name, ""), theirs.get(name, "")) for name in sorted({**mine, **theirs})]
        _sheet(book, "settings", ("setting", "run", "reference"), (34, 40, 40), settings)
        book.close()


def _sheet(
    book: object, name: str, head: Sequence[str], widths: Sequence[int], rows: Sequence[Sequence[object]]
) -> None:
    sheet = book.add_worksheet(name[:_MAX_NAME])  # type: ignore[attr-defined]
    bold = book.add_format({"bold": True, "bottom": 1})  # type: ignore[attr-defined]
    for place, (title, width) in enumerate(zip(head, widths, strict=True)):
        sheet.set_column(place, place, width)
        sheet.write_string(0, place, title, bold)
    sheet.freeze_panes(1, 0)
    for line, row in enumerate(rows, start=1):
        for place, value in enumerate(row):
            if isinstance(value, int):
                sheet.write_number(line, place, value)
            else:
                sheet.write_string(line, place, clipped(str(visible(str(value))), _MAX_CELL))


def write_html(target: Path, found: JobDiff) -> None:
    """Write the page: the verdict, a row for each difference, notes. Raises ``InputError``."""
    rows = "\n".join(_row(each) for each in found.differences)
    notes = "\n".join(f"<p>{escape(str(visible(note)))}</p>" for note in found.notes)
    head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    text = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Is it the same job?</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem; color: #1c2127; background: #fff }}
table {{ border-collapse: collapse; width: 100% }}
th, td {{ text-align: left; vertical-align: top; padding: .3rem .6rem; border-bottom: 1px solid #d9dde1 }}
.warning td:first-child {{ color: #855400; font-weight: 600 }}
</style></head><body>
<h1>{escape(str(visible(found.headline)))}</h1>
<p>Run: {escape(str(visible(found.run)))}<br>Reference: {escape(str(visible(found.ref)))}</p>
<table><thead><tr>{head}</tr></thead><tbody>
{rows}
</tbody></table>
{notes}
</body></html>
"""
    save(target, text, what="page")


def _row(each: Difference) -> str:
    cells = "".join(f"<td>{escape(text)}</td>" for text in (str(each.likely), *_cells(each)))
    return f'<tr class="{each.severity}">{cells}</tr>'
