"""Train on each mesh, watched and not, healthy and with planted faults, and rewrite README.md.

    python -m benchmarks.layouts [MODE...] [--page]

A mode is a function of train.py. Each writes its results to results.json when it is done; without a name all are run.
About a minute a mode, on two cores.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.page import arguments, facts, table
from tests.ranks.layouts import train
from tests.ranks.layouts.ranks import trained, watched

from trueline.demo.ranks import Ranks

RESULTS = Path(__file__).with_name("results.json")
STEPS, FAULTY_STEPS = 30, 60
READS = {"shard-overlap", "rank-config-differs", "duplicate-data"}
"""Findings that name a rank's data, where it is not any that names the bad ranks alone."""


@dataclass(frozen=True)
class Layout:
    """``world`` ranks, those of each Run (one is compared with the others of its Run, unless it is alone), and the bad
    ranks by fault.
    """

    world: int
    runs: list[list[int]]
    faults: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])


_BY_TP = [[0, 2, 4], [1, 3, 5]]
_ALL = [[0, 1, 2, 3, 4, 5]]
_OF_REPLICA = {"loss x 1.5": (2, 3), "another data seed": (2, 3), "frozen": (2, 3)}
_DRIFT = {"weight drifts": (1, 3, 5)}
_OF_STAGE = {"loss x 1.5": (4,), "frozen": (4,), "weight drifts": (1,)}
_OF_RANK = {"loss x 1.5": (2,), "another data seed": (2,), "frozen": (2,)}
_OF_EXPERT = _OF_RANK | {"expert not reduced": (2,)}
_OF_PIECE = {"loss x 1.5": (2,), "another data seed": (2, 3)}
LAYOUTS = {
    "tp": Layout(4, [[0, 1, 2, 3]], {"weight drifts": (1,)}),
    "hand_tp": Layout(6, _BY_TP, _OF_REPLICA | _DRIFT),
    "ddp_tp": Layout(6, _BY_TP, _OF_REPLICA | _DRIFT),
    "fsdp2_tp": Layout(6, _BY_TP, _OF_REPLICA | _DRIFT),
    "hsdp_tp": Layout(8, [[0, 2, 4, 6], [1, 3, 5, 7]], {"loss x 1.5": (2, 3), "weight drifts": (1, 3, 5, 7)}),
    "pp": Layout(4, [[0, 1, 2, 3]]),
    "pp_ddp": Layout(6, [[0, 1, 2], [3, 4, 5]], _OF_STAGE),
    "pp_fsdp2": Layout(6, [[0, 1, 2], [3, 4, 5]], {"loss x 1.5": (4,)}),
    "ep_hand": Layout(6, _ALL, _OF_EXPERT),
    "ep_ddp": Layout(6, _ALL, _OF_EXPERT),
    "ep_fsdp2": Layout(6, _ALL, _OF_RANK),
    "cp_ddp": Layout(6, _ALL, _OF_PIECE),
    "cp_fsdp2": Layout(6, _ALL, _OF_PIECE),
}


def main() -> None:
    """Run the chosen ones and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("mode", nargs="*", help=f"some of {', '.join(LAYOUTS)}")
    parser.add_argument("--page", action="store_true", help="run nothing; write the page of the results that there are")
    chosen = parser.parse_args()
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for mode in () if chosen.page else chosen.mode or LAYOUTS:
        about = facts("python -m benchmarks.layouts")
        kept[mode] = {"cells": _cells(mode, LAYOUTS[mode]), "facts": about}
        print(mode, kept[mode]["cells"], file=sys.stderr, flush=True)
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    Path(__file__).with_name("README.md").write_text(_page(kept), encoding="utf-8")


def _cells(mode: str, layout: Layout) -> dict[str, str]:
    """What was shown, each as '' where it is right or else what was seen instead."""
    cells: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="trueline-layouts-") as place:
        healthy = Path(place, "healthy")
        weights = watched(mode, healthy, world=layout.world, steps=STEPS)
        with Ranks(layout.world) as ranks:
            cells["bitwise"] = "" if weights == trained(ranks, mode, steps=STEPS) else "other weights"
        cells |= _healthy(healthy, layout)
        for fault, bad in layout.faults.items():
            path = Path(place, fault)
            watched(mode, path, world=layout.world, steps=FAULTY_STEPS, fault=fault, bad=bad)
            cells[fault] = _found(path, fault, bad)
    return cells


def _healthy(path: Path, layout: Layout) -> dict[str, str]:
    import trueline

    first = trueline.open_run(path)
    runs = [first, *map(trueline.open_run, first.groups)]
    found = [run.ranks for run in runs]
    rows = [int(run.pivot("time_ns")[1].sum()) for run in runs]
    wrong = _serious(path)
    return {
        "groups": "" if found == layout.runs else f"Runs of {found}",
        "steps": "" if rows == [STEPS * len(each) for each in layout.runs] else f"{rows} rows",
        "healthy": "; ".join(f"{code} {list(ranks)}" for code, ranks in wrong),
    }


def _found(path: Path, fault: str, bad: tuple[int, ...]) -> str:
    wrong = _serious(path)
    said = "; ".join(f"{code} {list(ranks)}" for code, ranks in wrong) or "no finding"
    if fault == "weight drifts":
        return "" if {code for code, _ in wrong} == {"replica-drift"} else said
    if fault == "another data seed" and any(code in READS for code, _ in wrong):
        return ""
    return "" if {rank for _, ranks in wrong if set(ranks) <= set(bad) for rank in ranks} == set(bad) else said


def _serious(path: Path) -> list[tuple[str, tuple[int, ...]]]:
    import trueline

    return [(one.code, one.ranks) for one in trueline.check(path).findings if one.is_grave]


def _page(kept: dict[str, Any]) -> str:
    columns = ["bitwise", "groups", "steps", "healthy", *_faults()]
    rows = [
        [(getattr(train, mode).__doc__ or "").strip(), LAYOUTS[mode].world, *(_mark(of["cells"], c) for c in columns)]
        for mode, of in kept.items()
    ]
    wrong = [
        f"- {mode}, {what}: {said[:300]}" for mode, of in kept.items() for what, said in of["cells"].items() if said
    ]
    when = [
        f"- {mode}: {of['facts']['machine']}, commit {of['facts']['commit']}, {of['facts']['date']}"
        for mode, of in kept.items()
    ]
    parts = ["# Meshes of several axes", _ABOUT, table(["layout", "ranks", *columns], rows)]
    parts += ["## What is not right", "\n".join(wrong)] if wrong else []
    return "\n\n".join([*parts, "## When and where", "`python -m benchmarks.layouts`\n\n" + "\n".join(when)]) + "\n"


def _faults() -> list[str]:
    return list(dict.fromkeys(fault for layout in LAYOUTS.values() for fault in layout.faults))


def _mark(cells: dict[str, str], column: str) -> str:
    return "–" if column not in cells else "✗" if cells[column] else "✓"


_ABOUT = f"""\
A small language model by torch's own means, attached as by `trueline run`. Columns:

- **bitwise**: the same weights on all ranks, watched or not.
- **groups**: each Run holds the ranks that should be compared with each other, or all ranks of one model.
- **steps**: every step of every rank is there; a pipeline alone is watched from its first update on.
- **healthy**: no finding after {STEPS} healthy steps.
- **loss x 1.5**, **another data seed**, **frozen** (a learning rate of 0) on one replica or stage of it: found on its \
ranks after {FAULTY_STEPS} steps (in a pipeline the stage before may be named besides); another seed also by the \
samples.
- **weight drifts**: from step {train.PLANTED_AT} on a norm (or expert) is 0.1 % larger on one rank, or on one \
tensor-parallel rank of every replica: `replica-drift`, and nothing else.
- **expert not reduced**: one replica of an expert updates by its own gradient.

✓ is right, ✗ is not (what was seen stands below), – was not tried: it cannot be \
there, or nothing compares these ranks."""


if __name__ == "__main__":
    main()
