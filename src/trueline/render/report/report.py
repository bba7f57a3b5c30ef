"""One self-contained HTML document about one or several Runs."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from trueline.render.charts.matrix import colour_rules
from trueline.render.html_document import policy, resource, template, version
from trueline.render.report.page import Page, page_numbers, page_of
from trueline.render.report.run_reading import RunReading

_TEMPLATE = "report.html.j2"


def render(readings: Sequence[RunReading]) -> str:
    """The document about ``readings``. It loads nothing: its styles, script and numbers are inside, and a
    Content-Security-Policy forbids the rest.
    """
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
