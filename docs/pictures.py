"""Writes docs/img/NAME.png: the verdict of a page that Trueline wrote, and one of its charts.

    python docs/pictures.py bad-rank report.html loss-0    # the name of the picture, the page, the id of the chart
    python docs/pictures.py view-graph 'http://127.0.0.1:8642/?token=TOKEN#screen=step&view=graph' .step

The second form takes a screen of `trueline view`, from the first element that the selector finds on.

Needs a Chromium. The page is taken in its light colours on a white ground, so that it reads on either.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
WIDTH = 880
"""CSS pixels; a picture has as many."""

_SCREEN = 760
"""Height of a picture of the page of `trueline view`."""
_SETTLED = "new Promise(done => setTimeout(done, 1500))"
"""Until what the page asks for is there, and drawn."""

_KEEP = """
(id => {
    const verdict = document.getElementById("verdict"), chart = document.getElementById(id);
    const panel = chart && (chart.closest(".panel, .sighted") || chart);
    const main = document.querySelector("main");
    panel?.querySelectorAll(".charts").forEach(each => { each.style.display = "block"; });
    panel?.querySelectorAll("figure").forEach(each => { each.style.maxWidth = "none"; });
    main.replaceChildren(verdict, ...(panel ? [panel] : []));
    document.querySelectorAll("body > :not(main), .hint, .skip, .readout").forEach(each => each.remove());
    const box = main.getBoundingClientRect();
    return [box.height + 24];
})"""


def main() -> None:
    """Take the picture."""
    from tests.web.browser import BrowserPage

    name, page, chart = sys.argv[1:]
    if page.startswith("http"):
        with BrowserPage(page, width=1280, height=_SCREEN) as shown:
            shown.until(f"document.querySelector({chart!r})")
            shown.evaluate(_SETTLED)
            shown.evaluate(f"document.querySelector({chart!r}).scrollIntoView()")
            shown.screenshot(ROOT / "docs" / "img" / f"{name}.png")
        return
    with BrowserPage(Path(page).resolve().as_uri(), width=WIDTH, height=1200) as shown:
        (height,) = shown.evaluate(f"{_KEEP}({chart!r})")
        shown.call(
            "Emulation.setDeviceMetricsOverride", width=WIDTH, height=int(height), deviceScaleFactor=1, mobile=False
        )
        shown.screenshot(ROOT / "docs" / "img" / f"{name}.png")


if __name__ == "__main__":
    main()
