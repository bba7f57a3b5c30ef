"""Runs on several ranks compared with runs on others, healthy and with a fault: what `trueline compare` says of each.

    python -m benchmarks.compare.ranks [--seeds 20] [--steps 3] [--depth fingerprint] [--only ddp]

Both runs of a pair start from one seed and see the same global batches. Healthy pairs differ by the order of sums and
must be silent. The fault is a scale of attention times 1.25 in the second block, hidden in the kernel: on every rank,
or on the last one alone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.compare.trainings.ranks_training import train
from benchmarks.compare.verdict import largest
from benchmarks.page import arguments, line, table

import trueline
from trueline.comparison.result import Comparison
from trueline.demo.ranks import Ranks

HEAD = (
    *("compared with one rank", "pairs", "silent", "largest times, first step", "later"),
    *("fault on all ranks found first", "on the last rank alone"),
)
FAULT = "/fwd/blocks.1.scaled_dot_product_attention#0:out0"


@dataclass(frozen=True)
class Pair:
    """How the run trains, and how its reference does: a way and a number of ranks each."""

    name: str
    run: tuple[str, int]
    ref: tuple[str, int] = ("one", 1)


PAIRS = (
    Pair("one rank again", ("one", 1)),
    Pair("DDP on 4", ("ddp", 4)),
    Pair("FSDP2 on 2", ("fsdp2", 2)),
    Pair("TP on 2", ("tp", 2)),
    Pair("DDP on 4 against DDP on 2", ("ddp", 4), ("ddp", 2)),
    Pair("FSDP2 on 2 against DDP on 2", ("fsdp2", 2), ("ddp", 2)),
)


def main() -> None:
    """Print the table, one pair of ways after the other."""
    parser = arguments(__doc__, seeds=20, steps=3)
    parser.add_argument("--depth", default="fingerprint", choices=("stats", "fingerprint", "tensor"))
    parser.add_argument("--only", default="", help="pairs with this in their name")
    chosen = parser.parse_args()
    pools: dict[int, Ranks] = {}
    print(table(HEAD, []))
    try:
        for pair in PAIRS:
            if chosen.only.lower() in pair.name.lower():
                print(_row(pair, chosen, pools), flush=True)
    finally:
        for pool in pools.values():
            pool.stop()


def _row(pair: Pair, chosen: argparse.Namespace, pools: dict[int, Ranks]) -> str:
    silent, found, first, later = 0, [0, 0], 0.0, 0.0
    world_size = pair.run[1]
    for seed in range(chosen.seeds):
        with tempfile.TemporaryDirectory() as folder:
            ref = _trained(pair.ref, seed, chosen, pools, Path(folder) / "ref")
            healthy = trueline.compare(_trained(pair.run, seed, chosen, pools, Path(folder) / "run"), ref)
            silent += healthy.exit_code == 0
            if healthy.exit_code:
                _tell(f"alarm, seed {seed}: {_claims(healthy)}")
            first = max(first, largest(healthy, 0, 1))
            later = max(later, largest(healthy, 1))
            for place, wrong in enumerate((tuple(range(world_size)), (world_size - 1,))):
                out = Path(folder) / f"bad-{place}"
                bad = trueline.compare(_trained(pair.run, seed, chosen, pools, out, wrong), ref)
                named = bad.first is not None and str(bad.first.site).endswith(FAULT) and bad.first.step == 0
                found[place] += named
                if not named:
                    _tell(f"missed, seed {seed}, ranks {wrong}: {bad.first and bad.first.site} {_claims(bad)}")
    return line([pair.name, chosen.seeds, silent, f"{first:.2f}", f"{later:.2f}", *found])


def _trained(
    way: tuple[str, int],
    seed: int,
    chosen: argparse.Namespace,
    pools: dict[int, Ranks],
    out: Path,
    wrong: Sequence[int] = (),
) -> Path:
    how, world_size = way
    pool = pools.setdefault(world_size, Ranks(world_size))
    pool.run(train, str(out), how, seed, chosen.steps, chosen.depth, tuple(wrong))
    return out


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _claims(comparison: Comparison) -> list[str]:
    return [finding.claim for finding in comparison.findings if finding.is_grave][:2]


if __name__ == "__main__":
    main()
