"""How far the estimate from statistics is from the distance of the stored values, on recorded steps."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import torch
from benchmarks import page
from benchmarks.distance.recorded import record

from trueline.comparison.arrange import arrange
from trueline.comparison.judgement.values.distance import stats_distance, tensor_distance
from trueline.store.reader import Run

PAIRS = 3


def table(folder: Path) -> str:
    """Quantiles of estimate over truth, by what tells the two runs apart and by phase."""
    plain = record(folder / "plain", nudge_seed=None)
    low = record(folder / "low", nudge_seed=None, dtype=torch.bfloat16)
    others = {
        "float32, weights one step away": [
            (record(folder / f"f{seed}", nudge_seed=seed), plain) for seed in range(PAIRS)
        ],
        "bfloat16, weights one step away": [
            (record(folder / f"b{seed}", nudge_seed=seed, dtype=torch.bfloat16), low) for seed in range(PAIRS)
        ],
        "bfloat16 against float32": [(low, plain)],
    }
    rows = []
    for name, pairs in others.items():
        ratios: dict[str, list[float]] = defaultdict(list)
        broken: dict[str, int] = defaultdict(int)
        for run, ref in pairs:
            _look(run, ref, ratios, broken)
        for phase, found in sorted(ratios.items()):
            cells = [f"{value:.2f}" for value in np.quantile(found, [0.5, 0.9, 0.99, 1.0])]
            none = f"{np.mean(np.array(found) == 0):.0%}"
            rows.append([name, phase, f"{len(found):,}", none, *cells, broken[phase]])
    head = ["runs", "phase", "values", "none seen", "median", "90 %", "99 %", "largest", "bound broken"]
    return page.table(head, rows)


def _look(run: Path, ref: Path, ratios: dict[str, list[float]], broken: dict[str, int]) -> None:
    for each in arrange(Run(str(run)), Run(str(ref))):
        for pair in each.read().pairs:
            mine, theirs = pair.mine, pair.theirs
            if mine is None or theirs is None or mine.root != mine.index or mine.load is None or theirs.load is None:
                continue
            if mine.stats is None or theirs.stats is None:
                continue
            truth = tensor_distance(mine.load(), theirs.load()).rel
            if not truth:
                continue
            rows = mine.stats.numel // max(mine.shape[-1] if mine.shape else 1, 1)
            found = stats_distance(mine.stats, theirs.stats, rows=rows)
            if found.rel is not None and found.certain_rel is not None:
                ratios[mine.site.phase].append(found.rel / truth)
                broken[mine.site.phase] += found.certain_rel > truth * (1 + 1e-9)
