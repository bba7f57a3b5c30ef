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
FACT_COLUMNS = ("fact", "run", "reference")
_WIDTHS = (8, 18, 16, 46, 30, 30, 40, 40, 40)
_MAX_CELL = 32_767
_MAX_NAME = 31
"""Characters of a cell and of a sheet's name that Excel takes."""


def _cells(difference: Difference) -> tuple[str, ...]:
    texts = (
        difference.code,
        difference.topic,
        difference.says,
        difference.run,
        difference.ref,
        difference.run_where,
        difference.ref_where,
        difference.note,
    )
    return tuple(clipped(str(visible(text)), _MAX_CELL) for text in texts)


def write_xlsx(target: Path, job_diff: JobDiff) -> None:
    """Write the workbook: sheet ``summary``, ``facts`` that differ, one for each kind of finding, and ``settings`` with
    what both jobs tell.
    Raises ``InputError`` where it cannot be written or XlsxWriter is missing.
    """
    require_xlsxwriter()
    import xlsxwriter

    with replacing(target, kind="workbook") as temporary, temporary.open("wb") as file:
        book = xlsxwriter.Workbook(file)
        bold = book.add_format({"bold": True, "bottom": 1})
        wrap = book.add_format({"text_wrap": True, "valign": "top"})
        summary = book.add_worksheet("summary")
        summary.set_column(0, 0, 14)
        summary.set_column(1, 1, 110)
        lines = [
            ("verdict", job_diff.headline),
            ("run", job_diff.run),
            ("reference", job_diff.ref),
            ("losses", job_diff.began),
        ]
        for line, (label, text) in enumerate([*lines, *(("note", note) for note in job_diff.notes)]):
            summary.write_string(line, 0, label, bold)
            summary.write_string(line, 1, clipped(str(visible(text)), _MAX_CELL), wrap)
        if job_diff.facts:
            facts = [(pair.name, pair.run, pair.ref) for pair in job_diff.facts]
            _sheet(book, "facts", FACT_COLUMNS, (20, 60, 60), facts)
        for code in dict.fromkeys(difference.code for difference in job_diff.differences):
            rows = [(entry.likely, *_cells(entry)) for entry in job_diff.differences if entry.code == code]
            _sheet(book, code, COLUMNS, _WIDTHS, rows)
        run_settings, ref_settings = job_diff.settings
        settings = [
            (name, run_settings.get(name, ""), ref_settings.get(name, ""))
            for name in sorted({**run_settings, **ref_settings})
        ]
        _sheet(book, "settings", ("setting", "run", "reference"), (34, 40, 40), settings)
        book.close()


def _sheet(
    book: object, name: str, head: Sequence[str], widths: Sequence[int], rows: Sequence[Sequence[object]]
) -> None:
    sheet = book.add_worksheet(name[:_MAX_NAME])  # type: ignore[attr-defined]
    bold = book.add_format({"bold": True, "bottom": 1})  # type: ignore[attr-defined]
    for column, (title, width) in enumerate(zip(head, widths, strict=True)):
        sheet.set_column(column, column, width)
        sheet.write_string(0, column, title, bold)
    sheet.freeze_panes(1, 0)
    for line, row in enumerate(rows, start=1):
        for column, value in enumerate(row):
            if isinstance(value, int):
                sheet.write_number(line, column, value)
            else:
                sheet.write_string(line, column, clipped(str(visible(str(value))), _MAX_CELL))


def write_html(target: Path, job_diff: JobDiff) -> None:
    """Write the page: the verdict, facts that differ, a row for each difference, notes. Raises ``InputError``."""
    rows = "\n".join(_row(difference) for difference in job_diff.differences)
    notes = "\n".join(f"<p>{escape(str(visible(note)))}</p>" for note in job_diff.notes)
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
<h1>{escape(str(visible(job_diff.headline)))}</h1>
<p>Run: {escape(str(visible(job_diff.run)))}<br>Reference: {escape(str(visible(job_diff.ref)))}</p>
{_facts(job_diff)}<table><thead><tr>{head}</tr></thead><tbody>
{rows}
</tbody></table>
{notes}
</body></html>
"""
    save(target, text, kind="page")


def _facts(job_diff: JobDiff) -> str:
    """Table of the facts of two trainings that differ; '' without one."""
    if not job_diff.facts:
        return ""
    head = "".join(f"<th>{name}</th>" for name in FACT_COLUMNS)
    rows = (
        "".join(f"<td>{escape(str(visible(text)))}</td>" for text in (pair.name, pair.run, pair.ref))
        for pair in job_diff.facts
    )
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    return f"<h2>What they did otherwise</h2>\n<table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table>\n"


def _row(difference: Difference) -> str:
    cells = "".join(f"<td>{escape(text)}</td>" for text in (str(difference.likely), *_cells(difference)))
    return f'<tr class="{difference.severity}">{cells}</tr>'
