"""write_report: one self-contained HTML file about one or several Runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from markupsafe import Markup

from trueline.render.charts.matrix import colour_rules
from trueline.render.document import policy, resource, template, version
from trueline.render.output import save, writable_target
from trueline.render.report.page import Page, page_numbers, page_of
from trueline.render.report.report_data import RunReading, read_runs

_TEMPLATE = "report.html.j2"


def write_report(
    runs: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    *,
    overwrite: bool = False,
) -> Path:
    """Write the report on ``runs`` (paths; one may stand alone) to the HTML file ``out`` and return its path.

    The file loads nothing: its styles, script and numbers are inside and a Content-Security-Policy forbids the rest.
    Raises ``RunError`` where a path is no Run, ``RunExistsError`` where ``out`` exists and ``overwrite`` is not set,
    ``InputError`` where it cannot be written; an existing file is replaced whole or left alone.
    """
    paths = [runs] if isinstance(runs, str | os.PathLike) else list(runs)
    target = writable_target(out, overwrite=overwrite)
    save(target, render(read_runs(paths)))
    return target


def render(readings: Sequence[RunReading]) -> str:
    """The HTML document about ``readings``."""
    page = page_of(readings)
    css = f"{resource('report.css')}\n{colour_rules()}\n{_rank_rules(page)}"
    js = resource("report.js")
    return template(_TEMPLATE).render(
        page=page,
        css=Markup(css),
        js=Markup(js),
        numbers=Markup(page_numbers(page, readings)),
        policy=policy(css, js),
        version=version(),
    )


def _rank_rules(page: Page) -> str:
    """How many columns each matrix has, which CSS cannot count."""
    sizes = sorted({len(run.matrix.ranks) for run in page.runs if run.matrix is not None})
    return "\n".join(f".ranks{size}{{--n:{size}}}" for size in sizes)
