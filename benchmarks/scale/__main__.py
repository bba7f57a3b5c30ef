"""Measure what opening and checking a Run of many ranks, or many steps, takes, and rewrite README.md beside this.

    python -m benchmarks.scale [--quick] [--part further]

The Runs are written in the format of real writers (`benchmarks.durability.long_run`), and each is read in processes of
their own.
"""

from __future__ import annotations

import multiprocessing
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.durability import long_run
from benchmarks.page import arguments, facts, head, table, write
from benchmarks.scale.judging import judge, kept_of

SIZES = ((64, 1_000), (256, 1_000), (1_024, 1_000), (64, 10_000))
FURTHER_SIZES = ((8, 1_000), (8, 10_000), (8, 100_000))
FURTHER_STEPS = 100
FALSE_ALARMS = 0.001
WANTED = (1_024, 100_000)

ABOUT = """\
Rows as the default plan leaves them, of a model of 16 parameters in 4 groups: losses, norms, cosines and residuals at
every step, sketches at every 50th, digests at every 25th. A first look: a process opens the Run and runs every check.
CPU seconds, seconds on the clock, and the peak of resident memory. No rank is faulty."""

_FURTHER = "## A further look"

ABOUT_FURTHER = f"""\
The same Runs, judged without their last {FURTHER_STEPS} steps, and then with them, from what is kept in the Run
([decision 22](../../docs/decisions/0022-who-is-silent-follows.md)); beside it what is judged when every check is shown
all steps. CPU seconds of opening and of checks together, in processes that have imported everything before, the peak
of memory of a process in MiB, and what is kept. {{num}} checks follow; the others have next to no rows in these
Runs. These Runs ask for {FALSE_ALARMS} false alarms in 10,000 healthy steps instead of 0.1, of which 100,000 steps may
have one: a check that speaks is shown all steps from then on, at each look."""


def main() -> None:
    """Write, read and forget one Run after the other, and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--quick", action="store_true", help="the smallest one, printed and not kept")
    parser.add_argument("--part", choices=["whole", "further"], help="measure only this; the rest of the page stays")
    chosen = parser.parse_args()
    page = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    whole, _, further = page.partition(f"\n\n{_FURTHER}\n\n")
    if chosen.part != "further":
        title = head("What judging a large Run takes", command="python -m benchmarks.scale")
        whole = "\n\n".join([title, ABOUT, _whole(SIZES[:1] if chosen.quick else SIZES)])
    if chosen.part != "whole":
        further = _further(FURTHER_SIZES[:1] if chosen.quick else FURTHER_SIZES)
    if not chosen.quick:
        write(__file__, whole.rstrip("\n"), _FURTHER, further.rstrip("\n"))


def _whole(sizes: Sequence[tuple[int, int]]) -> str:
    rows: list[list[str]] = []
    for ranks, steps in sizes:
        with _run(ranks, steps) as path:
            took = _apart(path)
        rows.append([f"{ranks:,}", f"{steps:,}", *(f"{took[name]:.1f}" for name in ("open", "check", "clock"))])
        rows[-1].append(f"{took['MiB']:,.0f}")
        print(rows[-1], flush=True)
    header = ["ranks", "steps", "open, CPU s", "check, CPU s", "both, clock s", "peak MiB"]
    return table(header, rows, right=range(len(header)))


def _further(sizes: Sequence[tuple[int, int]]) -> str:
    from trueline.judge.registry import installed_checks

    now = facts("python -m benchmarks.scale --part further")
    num = sum(each.follows is not None for each in installed_checks())
    found: list[list[str]] = []
    took: list[dict[str, float]] = []
    firsts: list[dict[str, float]] = []
    for ranks, steps in sizes:
        with _run(ranks, steps) as path:
            at_once = _apart(path, follows=False)
            first = _apart(path, without=FURTHER_STEPS)
            took.append(_apart(path))
            kept = sum(each.stat().st_size for each in kept_of(Path(path))) / 2**20
            firsts.append(first)
            looks = (at_once, first, took[-1])
            spent = [f"{each[name]:{form}}" for each in looks for name, form in (("both", ".2f"), ("MiB", ",.0f"))]
            per_row = [f"{1e6 * each['both'] / ranks / steps:.1f}" for each in (at_once, first)]
            found.append([f"{ranks:,}", f"{steps:,}", *spent, *per_row, f"{kept:,.1f}"])
            print(found[-1], flush=True)
    looks = [f"{look}: {of}" for look in ("all steps", "first look", "further look") for of in ("s", "MiB")]
    header = ["ranks", "steps", *looks, "all steps: µs a row", "first look: µs a row", "kept, MiB"]
    where = f"`{now['command']}`; {now['machine']}; commit {now['commit']}, {now['date']}."
    shown = table(header, found, right=range(len(header)))
    return "\n\n".join([ABOUT_FURTHER.format(num=num), where, shown, _lengths(sizes, took), _beyond(sizes, firsts)])


def _lengths(sizes: Sequence[tuple[int, int]], further: Sequence[dict[str, float]]) -> str:
    (_, few), (_, many) = sizes[0], sizes[-1]
    ratio = further[-1]["both"] / further[0]["both"]
    return f"A further look takes {ratio:.1f} times as long at {many:,} steps as at {few:,}."


def _beyond(sizes: Sequence[tuple[int, int]], firsts: Sequence[dict[str, float]]) -> str:
    ranks, steps = sizes[-1]
    rows, (wanted_ranks, wanted_steps) = ranks * steps, WANTED
    hours = firsts[-1]["both"] / rows * wanted_ranks * wanted_steps / 3600
    return (
        f"The largest of these has {rows:,} rows, and the first look at it took {firsts[-1]['MiB']:,.0f} MiB. At its "
        f"seconds a row {wanted_ranks:,} ranks of {wanted_steps:,} steps would take {hours:.1f} CPU hours: that is "
        "extrapolated, and was not run."
    )


@contextmanager
def _run(ranks: int, steps: int) -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="trueline-scale-") as place:
        path = Path(place, "run")
        long_run.write(path, steps=steps, merges=True, ranks=ranks, plan={"false_alarms": FALSE_ALARMS})
        yield str(path)


def _apart(path: str, **how: Any) -> dict[str, float]:
    """``judge`` in a process of its own."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(judge, path, **how).result()


if __name__ == "__main__":
    main()
