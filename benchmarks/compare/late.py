"""Faults that begin at a later step of runs that round otherwise from the start: what `compare` says of each.

    python -m benchmarks.compare.late [--seeds 20] [--faulty 1] [--steps 9] [--depth stats] [--only NAME] [--runs DIR]

Both runs of a pair start from one seed and see the same batches. A healthy pair has to be without an error; of a pair
with a fault, the call that is wrong has to be named first, at the step at which it became wrong. `--runs` keeps what
was recorded, and takes it from there the next time.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path

import torch
from benchmarks.compare.trainings.changes import FAULTS
from benchmarks.compare.trainings.late_training import PLAIN, WAYS, Way, train
from benchmarks.compare.verdict import named, said
from benchmarks.page import arguments, line, table

from trueline.comparison.compare import compare
from trueline.demo.ranks import Ranks

SINCE = (1, 3, 6)
HEAD = (
    *("compared with float32 on one thread", "healthy pairs", "silent", "faults at each step", "right from step 1"),
    *("from 3", "from 6", "wrong", "silent", "right by laws alone"),
)


def main() -> None:
    parser = arguments(__doc__, steps=9)
    parser.add_argument("--seeds", type=int, default=20, help="healthy pairs of each kind")
    parser.add_argument("--faulty", type=int, default=1, help="seeds with each fault")
    parser.add_argument("--depth", default="stats", choices=("stats", "fingerprint", "tensor"))
    parser.add_argument(
        "--only", default="", help="ways with this in their name; torch.compile only so, as it takes minutes a seed"
    )
    parser.add_argument("--runs", type=Path, help="keep recorded Runs here, and use those that are there")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    print(table(HEAD, []), flush=True)
    missed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        records = Records(chosen.runs or Path(folder), chosen)
        try:
            for way in WAYS:
                if way is not PLAIN and (chosen.only.lower() in way.name.lower() if chosen.only else not way.compiled):
                    print(row(way, chosen, records, missed), flush=True)
        finally:
            records.stop()
    print("\n".join(["", *missed]))


class Records:
    """Runs by how they trained, each recorded once."""

    def __init__(self, folder: Path, chosen: argparse.Namespace) -> None:
        self._folder, self._chosen = folder, chosen
        self._pools: dict[int, Ranks] = {}

    def run(self, way: Way, seed: int, fault: str = "", since: int = 0) -> Path:
        chosen = self._chosen
        name = f"{chosen.depth}_{way.name}_{seed}_{fault}_{since}".replace(" ", "-")
        out = self._folder / name
        if not out.exists():
            part = self._folder / "unfinished"
            shutil.rmtree(part, ignore_errors=True)
            given = (str(part), way.name, seed, chosen.steps, chosen.depth, fault, since)
            if way.world_size == 1:
                train(0, 1, *given)
            else:
                self._pools.setdefault(way.world_size, Ranks(way.world_size)).run(train, *given)
            part.rename(out)
        return out

    def stop(self) -> None:
        for pool in self._pools.values():
            pool.stop()


def row(way: Way, chosen: argparse.Namespace, records: Records, missed: list[str]) -> str:
    silent = 0
    for seed in range(chosen.seeds):
        healthy = compare(records.run(way, seed), records.run(PLAIN, seed))
        silent += healthy.exit_code == 0
        if healthy.exit_code:
            missed.append(f"- alarm: {way.name}, seed {seed}: {said(healthy)}")
            print(missed[-1], file=sys.stderr, flush=True)
    right, others, by_laws = Counter[int](), Counter[str](), 0
    planted = [fault for fault in FAULTS if way.has(fault)]
    for since in SINCE:
        for fault in planted:
            for seed in range(chosen.faulty):
                bad = compare(records.run(way, seed, fault.name, since), records.run(PLAIN, seed))
                if named(bad, since, *fault.calls):
                    right[since] += 1
                    by_laws += all(each.false_alarm_rate is None for each in bad.findings)
                    continue
                others["wrong" if bad.exit_code else "silent"] += 1
                missed.append(f"- {way.name}, {fault.name} from step {since}, seed {seed}: {said(bad)}")
                print(missed[-1], file=sys.stderr, flush=True)
    counts = [len(planted) * chosen.faulty, *(right[since] for since in SINCE), others["wrong"], others["silent"]]
    return line([way.name, chosen.seeds, silent, *counts, by_laws])


if __name__ == "__main__":
    main()
