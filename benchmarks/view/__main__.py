"""Measure how long the page takes to show a large Run, and to answer keys and the mouse, and rewrite README.md.

    python -m benchmarks.view [--ranks 1024] [--steps 2000] [--calls 100000]

Needs a Chromium. The server and the browser share the machine; nothing is judged meanwhile.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.page import arguments, head, table, write
from tests.synthetic_runs import write_long_run
from tests.web.browser import BrowserPage
from tests.web.recorded_step import num_calls, write_step
from tests.web.served import JudgeHere, Served

INPUTS = 60
"""Keys, or moves of the mouse, that are timed on each screen."""
LISTEN = """
(() => {
  window.took = [];
  const first = performance.now();
  new PerformanceObserver((list) => {
    for (const each of list.getEntries()) if (each.startTime > first) window.took.push(each.duration);
  }).observe({ type: "event", durationThreshold: 16 });
})()"""
"""Durations from an input to the next paint, in steps of 8 ms: https://w3c.github.io/event-timing/. Shorter ones than
16 ms, a frame, are not told: they count as 16.
"""
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
DRAWN = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now()))))"

ABOUT = """\
A Run of {ranks:,} ranks and {steps:,} steps, with a recorded step of {calls:,} calls, in a window of 1,280 × 900 pixels
of headless Chromium, on the machine that serves it. *First paint* is that of the frame, *shown* when the screen is
there with its numbers, both since the address was opened, the first time after the server has started: so it includes
what the server reads for it; opening the Run is done before the address is printed, and took {open:.1f} s.
*Input to paint* is the duration that the browser reports from an input to the next paint; what takes less than a
frame (16 ms) counts as 16."""


def main() -> None:
    """Make the Run, serve it, look at each screen, and write the page."""
    chosen = arguments(__doc__, ranks=1024, steps=2000, calls=100_000).parse_args()
    title = head("How quickly the page answers", command="python -m benchmarks.view")
    with tempfile.TemporaryDirectory(prefix="trueline-view-") as place:
        path = write_long_run(
            Path(place, "run"), num_ranks=chosen.ranks, num_steps=chosen.steps, spike=(chosen.steps // 2, 7)
        )
        write_step(path, num_blocks=math.ceil((chosen.calls - 1) / (num_calls(1) - 1)), step=3, nan_in=100)
        begin = time.monotonic()
        page = Served([path], judge=JudgeHere(holding=True))
        open_s = time.monotonic() - begin
        with page as served:
            rows = [_screen(served, *each) for each in _screens()]
    about = ABOUT.format(ranks=chosen.ranks, steps=chosen.steps, calls=chosen.calls, open=open_s)
    header = ("screen", "first paint", "shown", "inputs", "input to paint, median", "95 %", "longest", "heap")
    write(__file__, title, about, table(header, rows, right=set(range(1, len(header)))))


def _screens() -> list[tuple[str, str, str, Callable[[BrowserPage], None]]]:
    """Name, state, what is there once it is shown, and what is done to it."""
    lines, calls = "document.querySelector('.lines canvas')", "document.querySelector('.space .row.call')"
    return [
        ("Triage", "", "document.querySelector('.facts')", lambda page: _keys(page, "jk")),
        ("Ranks × steps: mouse over the heat map", "screen=trend", lines, _move),
        ("Ranks × steps: arrow keys", "screen=trend", lines, lambda page: _keys(page, ("ArrowRight", "ArrowDown"))),
        ("Ranks × steps: mouse over the lines", "screen=trend", lines, lambda page: _move(page, ".lines .u-over")),
        ("Step: next and previous call", "screen=step", calls, lambda page: _keys(page, "jjjk")),
        ("Step: a screen on, the end, the first", "screen=step", calls, _far),
    ]


def _screen(served: Served, name: str, state: str, shown: str, use: Callable[[BrowserPage], None]) -> list[str]:
    with BrowserPage(served.url(state), width=1280) as page:
        page.until(shown)
        shown_ms = page.evaluate(DRAWN)
        painted_ms = page.evaluate(PAINTED)
        page.evaluate(LISTEN)
        use(page)
        page.evaluate("new Promise(done => setTimeout(done, 500))")
        took: list[float] = sorted([*page.evaluate("window.took")])
        took = sorted([*took, *[16.0] * max(INPUTS - len(took), 0)])
        heap: Any = page.evaluate("performance.memory.usedJSHeapSize")
        assert page.errors == [], page.errors
    cells = [took[len(took) // 2], took[math.ceil(0.95 * len(took)) - 1], took[-1]]
    return [
        name,
        f"{painted_ms:.0f} ms",
        f"{shown_ms:.0f} ms",
        str(INPUTS),
        *(f"{'≤ ' if cell <= 16 else ''}{cell:.0f} ms" for cell in cells),
        f"{heap / 2**20:.0f} MiB",
    ]


def _keys(page: BrowserPage, keys: str | tuple[str, ...]) -> None:
    for place in range(INPUTS):
        page.press(keys[place % len(keys)])


def _far(page: BrowserPage) -> None:
    for place in range(INPUTS):
        page.press(("PageDown", "PageDown", "End", "n", "PageDown", "Home")[place % 6])


def _move(page: BrowserPage, selector: str = ".heat .over") -> None:
    box = page.evaluate(
        f"(() => {{ const box = document.querySelector('{selector}').getBoundingClientRect();"
        " return [box.left, box.top, box.width, box.height]; })()"
    )
    for place in range(INPUTS):
        page.hover(box[0] + 60 + (box[2] - 80) * place / INPUTS, box[1] + 20 + (box[3] - 60) * (place % 7) / 7)


if __name__ == "__main__":
    main()
