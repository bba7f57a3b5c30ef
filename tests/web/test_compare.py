"""The page of a comparison in a real browser: it fits, reads, says which value a dot is, and talks to nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.made_comparison import FAULT, made_comparison
from tests.web.browser import NEEDS_BROWSER, BrowserPage
from tests.web.test_report import middle_of, require_fitting

from trueline.render.comparison.compare_page import write_page
from trueline.render.comparison.compare_story import story_of

pytestmark = NEEDS_BROWSER

SHOWN = "[...document.querySelectorAll('#telling tbody tr')].filter((row) => row.checkVisibility()).length"


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("compare") / "page.html"
    comparison = made_comparison()
    write_page(path, comparison, story_of(comparison))
    return path


@pytest.fixture(scope="module")
def page(document: Path) -> Iterator[BrowserPage]:
    with BrowserPage(document.as_uri(), width=1280) as opened:
        yield opened


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (400, False), (400, True)])
def test_page_fits_its_window_reads_well_and_asks_nobody(document: Path, width: int, dark: bool) -> None:
    require_fitting(document, width=width, dark=dark)


def test_pointing_at_a_dot_says_which_value_it_is(page: BrowserPage) -> None:
    readout = "document.querySelector('[data-readout=\"phase-fwd\"]').textContent"
    assert page.evaluate(readout) == ""
    first = page.evaluate("Number(document.querySelector('#phase-fwd line.mark').getAttribute('x1').replace('%', ''))")

    page.hover(*middle_of(page, "#phase-fwd .box", across=first / 100, down=0.3))

    assert page.evaluate(readout) == f"{FAULT}: beyond rounding, 38.2 times"
    assert page.evaluate("getComputedStyle(document.querySelector('#phase-fwd .spot')).visibility") == "visible"
    assert page.evaluate("getComputedStyle(document.querySelector('#phase-bwd .spot')).visibility") == "hidden"


def test_dots_are_drawn_where_their_values_are(page: BrowserPage) -> None:
    boxes = page.evaluate(
        """["beyond", "equal"].map((name) => {
          const box = document.querySelector(`#phase-fwd .j-${name}`).getBoundingClientRect();
          const plot = document.querySelector("#phase-fwd .box").getBoundingClientRect();
          return [(box.top - plot.top) / plot.height, (box.bottom - plot.top) / plot.height];
        })"""
    )
    (beyond_top, beyond_bottom), (equal_top, _) = boxes

    assert 0.05 < beyond_top <= beyond_bottom < 0.3
    assert equal_top > 0.95


def test_rows_are_filtered_by_judgement_and_by_name(page: BrowserPage) -> None:
    rows = page.evaluate(SHOWN)
    page.evaluate(
        "(() => { const select = document.querySelector('#judgement'); select.value = 'within';"
        " select.dispatchEvent(new Event('change')); })()"
    )
    assert page.evaluate(SHOWN) == 1
    assert page.evaluate("document.querySelector('#found').textContent") == f"1 of {rows}"

    page.evaluate(
        "(() => { const select = document.querySelector('#judgement'); select.value = '';"
        " select.dispatchEvent(new Event('change')); const named = document.querySelector('#named');"
        " named.value = 'LAYERS.2.MLP'; named.dispatchEvent(new Event('input')); })()"
    )
    assert 0 < page.evaluate(SHOWN) < rows
    page.evaluate(
        "(() => { const named = document.querySelector('#named');"
        " named.value = ''; named.dispatchEvent(new Event('input')); })()"
    )
    assert page.evaluate(SHOWN) == rows


def test_words_tables_and_charts_are_there_without_scripts(document: Path) -> None:
    with BrowserPage(document.as_uri(), width=400, scripts=False) as page:
        page.call("Emulation.setScriptExecutionDisabled", value=False)
        text = page.evaluate("document.body.innerText")

        for words in ("Different: At step 1", FAULT, "beyond rounding", "only in RUN: REF has no dropout"):
            assert words in text
        assert page.evaluate("document.querySelectorAll('.box path').length") > 8
        assert page.evaluate("getComputedStyle(document.querySelector('.filter')).display") == "none"
        assert page.evaluate("document.documentElement.scrollWidth") <= 400
