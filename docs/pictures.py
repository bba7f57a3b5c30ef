"""Writes docs/img/NAME.png: a screen of the page, from the first element that the selector finds on.

    python docs/pictures.py view-graph 'http://127.0.0.1:8642/?token=TOKEN#screen=step&view=graph' .step
    python docs/pictures.py bad-rank 'report.html#screen=incident&n=1' .incident-screen

The address is that of `trueline view`, or a file that `trueline report` or `compare --html` wrote. Needs a Chromium.
The page is taken in its light colours on a white ground, so that it reads on either.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
_WIDTH, _HEIGHT = 1280, 760
"""CSS pixels; a picture has as many."""
_SETTLED = "new Promise(done => setTimeout(done, 1500))"
"""Until what the page asks for is there, and drawn."""


def main() -> None:
    """Take the picture."""
    from tests.web.browser import BrowserPage

    name, address, selector = sys.argv[1:]
    if not address.startswith("http"):
        path, _, state = address.partition("#")
        address = f"{Path(path).resolve().as_uri()}#{state}"
    with BrowserPage(address, width=_WIDTH, height=_HEIGHT) as shown:
        shown.until(f"document.querySelector({selector!r})")
        shown.evaluate(_SETTLED)
        shown.evaluate(f"document.querySelector({selector!r}).scrollIntoView()")
        shown.screenshot(ROOT / "docs" / "img" / f"{name}.png")


if __name__ == "__main__":
    main()
