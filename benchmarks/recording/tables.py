"""The tables, as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from fractions import Fraction

from benchmarks.page import table
from benchmarks.recording.measure import NAMES, Measured, quartiles

CLOCKS = ("wall_s", "cpu_s")
MIB = 2**20


def added_time(measured: Sequence[Measured]) -> str:
    """Step times over the unmonitored step, and what Trueline adds over what msProbe adds."""
    head = ["recorded", "msProbe, times the unmonitored step", "Trueline, times the unmonitored step"]
    head += ["Trueline adds, of what msProbe adds", "aim", "met"]
    rows = []
    for one in measured:
        shares = {clock: quartiles(one.shares(clock)) for clock in CLOCKS}
        worst = max(middle for _, middle, _ in shares.values())
        cells = [one.part.name, *(_ratios(one, name) for name in NAMES[1:]), _shares(shares)]
        rows.append([*cells, *_aim(one.part.time_share, worst)])
    return table(head, rows)


def what_is_left(measured: Sequence[Measured]) -> str:
    """Values, bytes and files a step."""
    head = ["recorded", "values a step, msProbe / Trueline", "bytes a step, msProbe / Trueline", "Trueline's share"]
    head += ["aim", "met", "files a step, msProbe / Trueline"]
    rows = []
    for one in measured:
        theirs, ours = one.left["msprobe"], one.left["trueline"]
        share = ours.bytes_a_step / theirs.bytes_a_step
        row = [
            one.part.name,
            f"{theirs.values_a_step:,.0f} / {ours.values_a_step:,.0f}",
            f"{_bytes(theirs.bytes_a_step)} / {_bytes(ours.bytes_a_step)}",
            f"{share:.3f}",
            *_aim(one.part.bytes_share, share),
            f"{theirs.files_a_step:,.1f} / {ours.files_a_step:,.1f}",
        ]
        rows.append(row)
    return table(head, rows)


def memory(measured: Sequence[Measured]) -> str:
    """Peak resident memory of the processes, in MiB."""
    rows = []
    for one in measured:
        peaks = {name: one.left[name].peak_bytes for name in NAMES}
        met = "yes" if peaks["trueline"] <= peaks["msprobe"] else "no"
        rows.append([one.part.name, *(f"{peaks[name] / MIB:,.0f} MiB" for name in NAMES), met])
    return table(["recorded", "unmonitored", "msProbe", "Trueline", "no more than msProbe"], rows)


def not_selected(measured: Measured) -> str:
    """What it costs to have a tool attached at steps that it does not record."""
    rows = []
    for name, title in zip(NAMES[1:], ("msProbe", "Trueline"), strict=True):
        cells = []
        for clock in CLOCKS:
            low, middle, high = quartiles(measured.ratios(name, clock))
            cells.append(f"{middle:.3f} ({low:.3f} – {high:.3f})")
        rows.append([title, *cells])
    return table(["tool", "times the unmonitored step (quartiles)", "of CPU time (quartiles)"], rows)


def bare_step(measured: Sequence[Measured]) -> str:
    """How long the unmonitored step took, as half a sentence."""
    wall_s, cpu_s = (
        statistics.median(getattr(turn, clock) for one in measured for turn in one.turns["bare"]) for clock in CLOCKS
    )
    return f"an unmonitored step took {1000 * wall_s:.0f} ms and {1000 * cpu_s:.0f} ms of CPU (medians)"


def _ratios(one: Measured, name: str) -> str:
    wall, cpu = (statistics.median(one.ratios(name, clock)) for clock in CLOCKS)
    return f"{wall:.2f} (CPU {cpu:.2f})"


def _shares(shares: dict[str, tuple[float, float, float]]) -> str:
    (low, middle, high), (_, of_cpu, _) = shares["wall_s"], shares["cpu_s"]
    return f"{middle:.2f} ({low:.2f} – {high:.2f}; CPU {of_cpu:.2f})"


def _aim(aim: Fraction | None, reached: float) -> tuple[str, str]:
    if aim is None:
        return "–", "–"
    return f"≤ {aim}", "yes" if reached <= aim else "no"


def _bytes(number: float) -> str:
    return f"{number / 1e6:,.1f} MB" if number >= 1e6 else f"{number / 1e3:,.1f} kB"
