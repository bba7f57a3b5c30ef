"""Measure how long the page takes to show a large Run, and to answer keys and the mouse, and rewrite README.md.

    python -m benchmarks.view [--ranks 1024] [--steps 2000] [--calls 100000] [--minutes 10]

Needs a Chromium. The server and the browser share the machine; nothing is judged meanwhile but of the Run that grows.
"""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.page import arguments, head, table, write
from tests.synthetic_runs import write_long_run, write_run
from tests.web.browser import BrowserPage
from tests.web.recorded_step import num_calls, write_step
from tests.web.served import JudgeHere, Served

from trueline.web.judging import Judge

INPUTS = 60
"""Keys, or moves of the mouse, that are timed on each screen."""
LIVE_RANKS, LIVE_REST_S = 64, 0.5
"""Of the Run that grows: its ranks, and the rest after each step."""
SIDE = 300
"""Ranks of the Run whose names are long; more than the page draws as lines."""
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

GRAPH = "screen=step&view=graph"
GRAPHED = "document.querySelector('.graph .node')"

ABOUT = """\
A Run of {ranks:,} ranks and {steps:,} steps, with a recorded step of {calls:,} calls, in a window of 1,280 × 900 pixels
of headless Chromium, on the machine that serves it. *First paint* is that of the frame, *shown* when the screen is
there with its numbers, both since the address was opened, the first time after the server has started: so it includes
what the server reads for it; opening the Run is done before the address is printed, and took {open:.1f} s.
*Input to paint* is the duration that the browser reports from an input to the next paint; what takes less than a
frame (16 ms) counts as 16. *Nothing* is a page without a script, on the same machine in the same minutes: what of a
duration is the machine's, and the browser's. *Times nothing* is the 95 % of a screen over that of it.

*Long names* is a Run of {side} ranks with names of machines of 300 characters in which every number is NaN. *Live* is a
Run of {live} ranks that grows by a step every half second and is judged again and again, looked at for {minutes:g}
minutes: every five seconds another screen and some keys; its heap is that at the end, after garbage collection."""


def main() -> None:
    """Make the Run, serve it, look at each screen, and write the page."""
    chosen = arguments(__doc__, ranks=1024, steps=2000, calls=100_000, minutes=10.0).parse_args()
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
            rows = [_nothing(), *(_screen(served, *each) for each in _screens())]
        with Served([_long_names(Path(place, "names"))], judge=JudgeHere(holding=True)) as served:
            rows += [_screen(served, *each) for each in _screens_of_long_names()]
        rows.append(_live(Path(place, "live"), chosen.minutes))
    about = ABOUT.format(
        ranks=chosen.ranks,
        steps=chosen.steps,
        calls=chosen.calls,
        open=open_s,
        side=SIDE,
        live=LIVE_RANKS,
        minutes=chosen.minutes,
    )
    header = ("screen", "first paint", "shown", "input to paint, median", "95 %", "longest", "times nothing", "heap")
    floor_ms = rows[0].late_ms
    cells = [row.cells(floor_ms) for row in rows]
    write(__file__, title, about, table(header, cells, right=set(range(1, len(header)))))


@dataclass(frozen=True)
class Row:
    """What was measured of a screen: times in ms (None: not of this one), and the heap of the page in MiB."""

    name: str
    painted_ms: float | None
    shown_ms: float | None
    took_ms: tuple[float, ...]
    heap_mib: float

    @property
    def late_ms(self) -> float:
        """What 95 % of the inputs took at most."""
        return self.took_ms[math.ceil(0.95 * len(self.took_ms)) - 1]

    def cells(self, floor_ms: float) -> list[str]:
        """The row of the table, beside the page without a script."""
        took = (self.took_ms[len(self.took_ms) // 2], self.late_ms, self.took_ms[-1])
        return [
            self.name,
            *("–" if each is None else f"{each:.0f} ms" for each in (self.painted_ms, self.shown_ms)),
            *(f"{'≤ ' if each <= 16 else ''}{each:.0f} ms" for each in took),
            f"{self.late_ms / floor_ms:.1f}",
            f"{self.heap_mib:.0f} MiB",
        ]


def _long_names(path: Path) -> Path:
    """A Run in which nothing is finite, of ranks whose machines have names of 300 characters."""
    write_run(path, num_ranks=SIDE, num_steps=20, change=_not_a_number, env={"hostname": "a-machine-" + "n" * 290})
    return path


def _not_a_number(step: int, rank: int, row: dict[str, Any]) -> None:
    row.update({name: math.nan for name, value in row.items() if isinstance(value, float)})


def _screens_of_long_names() -> list[tuple[str, str, str, Callable[[BrowserPage], None]]]:
    lines = "document.querySelector('.lines canvas')"
    return [
        ("Long names: overview", "", "document.querySelector('.facts')", lambda page: _keys(page, "jk")),
        ("Long names: arrow keys over machines", "screen=trend&rows=host", lines, _arrows),
        ("Long names: mouse over the heat map", "screen=trend", lines, _move),
    ]


def _nothing() -> Row:
    """The same keys on a page that does nothing with them."""
    with BrowserPage("data:text/html,<p>Nothing</p>", width=1280) as page:
        return _measured(page, "Nothing", None, None, lambda page: _keys(page, "jjjk"))


def _live(path: Path, minutes: float) -> Row:
    """A Run that grows, with a real judge, as long as a person may leave the page open."""
    command = [sys.executable, "-m", "tests.web.growing", str(path), str(LIVE_RANKS), str(LIVE_REST_S)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        job.stdout.readline()
        judge = Judge()
        try:
            with Served([path], judge=judge) as served, BrowserPage(served.url(), width=1280) as page:
                page.until("document.querySelector('.pulse')")
                return _measured(page, "Live: all screens in turn", None, None, lambda page: _look_on(page, minutes))
        finally:
            job.kill()
            judge.close()


def _look_on(page: BrowserPage, minutes: float) -> None:
    end_s = time.monotonic() + 60 * minutes
    while time.monotonic() < end_s:
        for screen in ("trend", "", "trend&shown=apart&rows=worst", "settings"):
            page.evaluate(f"location.hash = 'screen={screen}'")
            for key in ("ArrowRight", "ArrowDown", "j", "k"):
                time.sleep(1.25)
                page.press(key)
    page.call("HeapProfiler.collectGarbage")


def _screens() -> list[tuple[str, str, str, Callable[[BrowserPage], None]]]:
    """Name, state, what is there once it is shown, and what is done to it."""
    lines, calls = "document.querySelector('.lines canvas')", "document.querySelector('.space .row.call')"
    return [
        ("Overview", "", "document.querySelector('.facts')", lambda page: _keys(page, "jk")),
        ("Ranks × steps: mouse over the heat map", "screen=trend", lines, _move),
        ("Ranks × steps: arrow keys", "screen=trend", lines, _arrows),
        ("Ranks × steps: mouse over the lines", "screen=trend", lines, lambda page: _move(page, ".lines .u-over")),
        ("Step: next and previous call", "screen=step&closed=none", calls, lambda page: _keys(page, "jjjk")),
        ("Step: a screen on, the end, the first", "screen=step&closed=none", calls, _far),
        ("Step: search", "screen=step&closed=none", calls, _search),
        ("Step: graph, next and previous node", f"{GRAPH}&in=layers.100", GRAPHED, lambda page: _keys(page, "jjjk")),
        ("Step: graph of 300 nodes", f"{GRAPH}&unfold=1", GRAPHED, lambda page: _keys(page, "jjjk")),
        ("Step: graph, open a module and leave it", GRAPH, GRAPHED, _in_and_out),
    ]


def _screen(served: Served, name: str, state: str, shown: str, use: Callable[[BrowserPage], None]) -> Row:
    with BrowserPage(served.url(state), width=1280) as page:
        page.until(shown)
        shown_ms = page.evaluate(DRAWN)
        painted_ms = page.evaluate(PAINTED)
        return _measured(page, name, painted_ms, shown_ms, use)


def _measured(
    page: BrowserPage,
    name: str,
    painted_ms: float | None,
    shown_ms: float | None,
    use: Callable[[BrowserPage], None],
) -> Row:
    page.evaluate(LISTEN)
    use(page)
    page.evaluate("new Promise(done => setTimeout(done, 500))")
    took: list[float] = page.evaluate("window.took")
    took += [16.0] * max(INPUTS - len(took), 0)
    heap: Any = page.call("Runtime.getHeapUsage")["usedSize"]
    assert page.errors == [], page.errors
    return Row(name, painted_ms, shown_ms, tuple(sorted(took)), heap / 2**20)


def _keys(page: BrowserPage, keys: str | tuple[str, ...]) -> None:
    for place in range(INPUTS):
        page.press(keys[place % len(keys)])


def _arrows(page: BrowserPage) -> None:
    _keys(page, ("ArrowRight", "ArrowDown"))


def _search(page: BrowserPage) -> None:
    """Into the field, a text of six letters, out of it."""
    for place in range(INPUTS // 10):
        for key in ("/", *"gelu", str(place % 10), "Escape"):
            page.press(key)


def _in_and_out(page: BrowserPage) -> None:
    for place in range(INPUTS):
        page.press(("j", "j", "Enter", "u")[place % 4])


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
