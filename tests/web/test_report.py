"""The report in a real browser: it fits, reads, answers the pointer and the keyboard, and talks to nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.synthetic_runs import write_run
from tests.web.browser import NEEDS_BROWSER, BrowserPage

import trueline
from trueline.schema.finding import Finding

pytestmark = NEEDS_BROWSER

NUM_STEPS = 40
FINDING = Finding(
    "shard-overlap", "error", "Rank 1 consumed 71 samples that others consumed.", (1,), 10, 39, (), 0.1, 0.0, "fraction"
)

CONTRAST = """(() => {
  const channel = (part) => (part /= 255) <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const ground = (element) => {
    for (let up = element; up; up = up.parentElement) {
      const colour = parse(getComputedStyle(up).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    const style = getComputedStyle(element);
    if (!walker.currentNode.data.trim() || !element.checkVisibility() || parseFloat(style.fontSize) === 0) continue;
    if (element.closest("script, style, noscript")) continue;
    seen += 1;
    const [a, b] = [luminance(parse(element.closest("svg") ? style.fill : style.color)), luminance(ground(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push([walker.currentNode.data.trim().slice(0, 40), ratio]);
  }
  return { seen, poor };
})()"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report on four Runs: a clean one, one with a finding, one of 20 ranks, and one of one worker."""
    folder = tmp_path_factory.mktemp("report")
    runs = [
        write_run(folder / "clean", num_steps=NUM_STEPS),
        write_run(folder / "overlap", num_steps=NUM_STEPS, findings=(FINDING,), seed=1),
        write_run(folder / "wide", num_steps=NUM_STEPS, num_ranks=20, seed=2),
        write_run(folder / "a-single-worker-with-a-rather-long-name_without_any_space_in_it", num_ranks=1),
    ]
    return trueline.report(runs, folder / "report.html")


@pytest.fixture(scope="module")
def wide_page(report: Path) -> Iterator[BrowserPage]:
    with BrowserPage(report.as_uri(), width=1280) as page:
        yield page


def middle_of(page: BrowserPage, selector: str, *, across: float = 0.5, down: float = 0.5) -> tuple[float, float]:
    """The point at those fractions of an element's box, after it was scrolled into view."""
    left, top, width, height = page.evaluate(
        f"""(() => {{
          const element = document.querySelector({selector!r});
          element.scrollIntoView({{ block: "center", behavior: "instant" }});
          const box = element.getBoundingClientRect();
          return [box.left, box.top, box.width, box.height];
        }})()"""
    )
    return left + width * across, top + height * down


def legend_of(page: BrowserPage, chart: str) -> str:
    return page.evaluate(f"document.querySelector('#{chart} .legend').innerText.replace(/\\s+/g, ' ')")


def require_fitting(document: Path, *, width: int, dark: bool) -> None:
    """That a page fits its window, has text that can be read, and asks for no other file."""
    with BrowserPage(document.as_uri(), width=width, dark=dark) as page:
        sizes = page.evaluate("[document.documentElement.scrollWidth, document.body.scrollWidth]")
        contrast: dict[str, Any] = page.evaluate(CONTRAST)

        assert max(sizes) <= width
        assert contrast["seen"] > 300
        assert contrast["poor"] == []
        assert page.errors == []
        assert page.requests == [document.as_uri()]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (400, False), (400, True)])
def test_page_fits_its_window_reads_well_and_asks_nobody(report: Path, width: int, dark: bool) -> None:
    require_fitting(report, width=width, dark=dark)


def test_hover_reads_out_rank_and_value_and_moves_every_chart(wide_page: BrowserPage) -> None:
    before = legend_of(wide_page, "grad_norm-0")

    wide_page.hover(*middle_of(wide_page, "#loss-0 .box"))

    assert wide_page.evaluate("document.querySelector('#loss-0 .at').textContent") in ("step 19", "step 20")
    assert wide_page.evaluate("document.querySelectorAll('#loss-0 .legend .near').length") == 1
    assert wide_page.evaluate("getComputedStyle(document.querySelector('#loss-1 .cross')).visibility") == "visible"
    assert legend_of(wide_page, "grad_norm-0") != before
    assert wide_page.errors == []


def test_hover_over_many_ranks_names_the_extremes(wide_page: BrowserPage) -> None:
    wide_page.hover(*middle_of(wide_page, "#loss-2 .box"))

    legend = legend_of(wide_page, "loss-2")
    assert "lowest r" in legend
    assert "highest r" in legend


def test_slider_moves_charts_and_matrix_by_keyboard(wide_page: BrowserPage) -> None:
    wide_page.evaluate("document.querySelector('#step').focus()")
    wide_page.press("End")
    last = (
        legend_of(wide_page, "loss-0"),
        wide_page.evaluate("document.querySelector('[data-matrix] table').innerText"),
    )
    wide_page.press("Home")

    assert wide_page.evaluate("document.querySelector('#loss-0 .at').textContent") == "step 0"
    assert wide_page.evaluate("document.querySelector('[data-matrix] .at').textContent") == "step 0"
    assert legend_of(wide_page, "loss-0") != last[0]
    assert wide_page.evaluate("document.querySelector('[data-matrix] table').innerText") != last[1]

    wide_page.press("ArrowRight")
    assert wide_page.evaluate("document.querySelector('#step-at').textContent") == "1"


def test_values_read_alike_before_and_after_the_script_touches_them(report: Path) -> None:
    texts = "[...document.querySelectorAll('.legend, [data-matrix] table, .at')].map((each) => each.textContent)"
    with BrowserPage(report.as_uri(), width=1280, scripts=False) as page:
        written = page.evaluate(texts)
    with BrowserPage(report.as_uri(), width=1280) as page:
        page.evaluate("document.querySelector('#step').focus()")
        page.press("Home")
        assert page.evaluate(texts) != written
        page.press("End")

        assert page.evaluate(texts) == written


def test_matrix_cell_reads_out_its_ranks_and_value(wide_page: BrowserPage) -> None:
    wide_page.hover(*middle_of(wide_page, "[data-matrix='0'] tbody tr:nth-child(2) td:nth-of-type(4)"))
    shown = wide_page.evaluate(
        "document.querySelector(\"[data-matrix='0'] tbody tr:nth-child(2) td:nth-of-type(4)\").textContent"
    )

    readout = wide_page.evaluate("document.querySelector(\"[data-matrix='0'] .readout\").textContent")
    assert readout.startswith(f"r1 and r3: {shown}, ±")


def test_focus_is_visible_and_the_first_tab_skips_to_the_findings(report: Path) -> None:
    with BrowserPage(report.as_uri(), width=1280) as page:
        page.press("Tab")

        assert page.evaluate("document.activeElement.className") == "skip"
        assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_words_tables_and_charts_are_there_without_scripts(report: Path) -> None:
    with BrowserPage(report.as_uri(), width=400, scripts=False) as page:
        page.call("Emulation.setScriptExecutionDisabled", value=False)
        text = page.evaluate("document.body.innerText")

        for words in ("Fault found: overlap", "Rank 1 consumed 71 samples", "shard-overlap", "lowest r", "2.13.0"):
            assert words in text
        assert page.evaluate("document.querySelectorAll('.box path').length") > 30
        assert page.evaluate("getComputedStyle(document.querySelector('#stepper')).display") == "none"
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
