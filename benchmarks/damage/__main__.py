"""Damage small files of every kind that Trueline reads, many times, and count what their readers make of them.

python -m benchmarks.damage [--each N] [--others N] [--minutes M] [--jobs N] [--seed N] [--only KIND,…]
"""

from __future__ import annotations

import multiprocessing
import random
import resource
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from benchmarks.page import arguments, head, table, write
from tests.damage.attempt import FAULTS, WAYS, Damaged, Outcome, checked
from tests.damage.readers import kinds

_OUTCOMES: tuple[Outcome, ...] = ("same", "told", "refused", "other", *FAULTS)
_COLUMNS = ("read the same", "damage named", "refused in a sentence", "read as it says", "silently different")

Counts = dict[str, Counter[Outcome]]
"""By way of damage."""


@dataclass(frozen=True)
class Sweep:
    """What to do with the kind ``name``: at most ``each`` flips and cuts, and ``others`` a way, within ``seconds``."""

    name: str
    each: int
    others: int
    seconds: float
    seed: int


def main() -> None:
    """Sweep, print what went wrong, and write the page."""
    parser = arguments(__doc__, seed=0)
    parser.add_argument("--each", type=int, default=1_000, help="flips and cuts of a kind")
    parser.add_argument("--others", type=int, default=500, help="the same for each other way of damage")
    parser.add_argument("--minutes", type=float, default=60, help="for a kind, after which fewer have to do")
    parser.add_argument("--jobs", type=int, default=2, help="kinds at a time")
    parser.add_argument("--only", default="", help="kinds whose names begin with one of these; no page is written")
    given = parser.parse_args()
    torch.set_num_threads(1)
    command = f"python -m benchmarks.damage --each {given.each} --others {given.others} --seed {given.seed}"
    title = head("Files damaged at random", command=command)
    with tempfile.TemporaryDirectory() as folder:
        names = [kind.name for kind in kinds(Path(folder)) if kind.name.startswith(tuple(given.only.split(",")))]
    sweeps = [Sweep(name, given.each, given.others, 60 * given.minutes, given.seed) for name in names]
    with ProcessPoolExecutor(given.jobs, mp_context=multiprocessing.get_context("fork")) as pool:
        done = list(pool.map(_sweep, sweeps))
    counts = {sweep.name: found for sweep, (found, _) in zip(sweeps, done, strict=True)}
    tables = _tables(counts, max(peak for _, peak in done))
    if given.only:
        print(tables)
    else:
        write(__file__, title, tables)
    sys.exit(any(count[fault] for ways in counts.values() for count in ways.values() for fault in FAULTS))


def _sweep(sweep: Sweep) -> tuple[Counts, int]:
    """Outcomes, and the most memory that the process had, in MiB."""
    found: Counts = {}
    with tempfile.TemporaryDirectory() as folder:
        kind = next(kind for kind in kinds(Path(folder)) if kind.name == sweep.name)
        damaged = Damaged(kind, checked=checked(kind))
        for way, change in WAYS.items():
            rng, until = random.Random(f"{sweep.seed} {kind.name} {way}"), time.monotonic() + sweep.seconds / len(WAYS)
            count = found[way] = Counter()
            for number in range(sweep.each if way == "flips and cuts" else sweep.others):
                if time.monotonic() > until:
                    break
                attempt = damaged.attempt(rng, change)
                count[attempt.outcome] += 1
                if attempt.outcome in FAULTS:
                    told = f"{attempt.outcome}: {kind.name}, {way}, {number}: {attempt.why}"
                    print(told, file=sys.stderr, flush=True)
            print(f"{kind.name}, {way}: {dict(count)}", file=sys.stderr, flush=True)
    return found, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _tables(counts: dict[str, Counts], peak_mib: int) -> str:
    total = sum(count.total() for ways in counts.values() for count in ways.values())
    parts = [f"{total:,} files; no process that read them had more than {peak_mib:,} MiB of memory."]
    columns = ("kind of file", "tried", *_COLUMNS, "traceback", "over a minute")
    for way in WAYS:
        rows = [
            [name, ways[way].total(), *(ways[way][outcome] for outcome in _OUTCOMES)] for name, ways in counts.items()
        ]
        parts += [f"## {way.capitalize()}", table(columns, rows)]
    return "\n\n".join(parts)


if __name__ == "__main__":
    main()
