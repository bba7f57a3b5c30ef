"""What the distance of two large arrays costs, mapped from files."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import numpy as np
from benchmarks import page

from trueline.comparison.judgement.values.distance import tensor_distance

REPEATS = 3
PIECE = 10**6


def table(folder: Path, *, num_elements: int, max_bytes: int) -> str:
    """CPU seconds, rate and peak memory, by how the arrays differ."""
    rng = np.random.default_rng(0)
    theirs, near, apart = (
        np.memmap(folder / name, dtype=np.float32, mode="w+", shape=(num_elements,)) for name in ("a", "b", "c")
    )
    for begin in range(0, num_elements, PIECE):
        piece = rng.normal(size=min(PIECE, num_elements - begin)).astype(np.float32)
        theirs[begin : begin + PIECE] = near[begin : begin + PIECE] = piece
        apart[begin : begin + PIECE] = piece * np.float32(1.0001)
    both_bytes = 2 * theirs.nbytes
    rows = []
    for name, mine in (("equal", near), ("every element differs", apart)):
        taken: list[float] = []
        for _ in range(REPEATS):
            begin_s = time.process_time()
            found = tensor_distance(mine, theirs, max_bytes=max_bytes)
            taken.append(time.process_time() - begin_s)
        assert found.equal is (mine is near)
        tracemalloc.start()
        tensor_distance(mine[:PIECE], theirs[:PIECE], max_bytes=max_bytes)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        rows.append([name, f"{min(taken):.2f}", f"{both_bytes / 1e9 / min(taken):.1f}", f"{peak / 1e6:.1f}"])
    return page.table([f"{both_bytes / 1e9:.1f} GB, both sides", "CPU s", "GB/s", "peak MB beside them"], rows)
