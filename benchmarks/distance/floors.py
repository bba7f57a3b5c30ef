"""How often further Runs exceed a calibrated floor, beside how often they may, and what `compare` makes of them."""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

import numpy as np
from benchmarks import page
from benchmarks.distance.recorded import record

from trueline.comparison.calibrate import calibrate
from trueline.comparison.compare import compare
from trueline.schema.files.tolerance import Tolerance

DRAWS = 3


def table(folder: Path, *, num_runs: int) -> str:
    """By number of calibrated Runs."""
    runs = [record(folder / f"n{seed}", nudge_seed=100 + seed) for seed in range(num_runs)]
    rng = np.random.default_rng(0)
    head = ["calibrated Runs", "two further over the floor", "at most", "one further beside one of these", "at most"]
    head += ["spread", "most times, anywhere", "false alarms of compare"]
    rows: list[list[object]] = []
    for count in (2, 3, 4):
        pairs: list[float] = []
        singles: list[float] = []
        spreads: list[float] = []
        most, alarms, compared = 0.0, 0, 0
        for _ in range(DRAWS):
            order = rng.permutation(num_runs)
            used, new = order[:count], order[count:]
            tolerance = calibrate([runs[each] for each in used])
            spreads += [] if tolerance.spread is None else [tolerance.spread]
            for one, other in itertools.combinations(new[:4], 2):
                pairs.append(_beyond(runs[one], runs[other], tolerance)[0])
            for one in new[:4]:
                beyond, times = _beyond(runs[one], runs[used[0]], tolerance)
                singles.append(beyond)
                most = max(most, times)
            for one in new[:2]:
                alarms += compare(str(runs[one]), str(runs[used[0]]), tolerance=tolerance).exit_code == 1
                compared += 1
        spread = f"{min(spreads):.1f} – {max(spreads):.1f}" if spreads else "–"
        of_two = [f"{np.mean(pairs):.1%} of sites", f"{tolerance.exceeded:.0%}"]
        of_one = [f"{np.mean(singles):.1%} of sites", f"{tolerance.exceeded_by_one:.0%}"]
        rows.append([count, *of_two, *of_one, spread, f"{most:.1f}", f"{alarms} of {compared}"])
    return page.table(head, rows)


@functools.cache
def _apart(one: Path, other: Path) -> Tolerance:
    return calibrate([one, other])


def _beyond(one: Path, other: Path, tolerance: Tolerance) -> tuple[float, float]:
    """The fraction of places where two Runs are further apart than the floor, and by how many times at most."""
    found: list[tuple[float, float]] = []
    apart = _apart(*sorted((one, other)))
    for site, floors in apart.sites.items():
        for step, floor in zip(apart.steps, floors, strict=True):
            allowed = tolerance.expected("", site, step=step)
            if floor is not None and allowed is not None and (floor or allowed):
                found.append((floor, allowed))
    times = max(floor / allowed for floor, allowed in found if allowed)
    return float(np.mean([floor > allowed for floor, allowed in found])), times
