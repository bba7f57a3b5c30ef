"""What thousands of ranks leave, written by real writers one rank after the other, collected and opened."""

from __future__ import annotations

import multiprocessing
import resource
import time
from pathlib import Path

import numpy as np
from benchmarks.durability import long_run
from benchmarks.page import table

import trueline
from trueline.schema.files.run_manifest import GroupSpec, Manifest, RankEnv
from trueline.store.reader import Run
from trueline.store.writer import RunWriter

SIZES = ((1_024, 100), (10_000, 10))
NODE = 8
"""Ranks that share a disk."""

ABOUT = f"""\
Each rank has the writer of a real one and writes rows as the default plan leaves them (a model of {long_run.PARAMS}
parameters in {long_run.GROUPS} groups), one rank after the other; every {NODE} ranks have a directory, as nodes do. CPU
seconds of one process, and the most memory that it had. *Again* is a second `collect` of the same pieces, which copies
nothing."""

HEADER = ("ranks", "steps", "write a row, ms", "files", "MiB", "KiB a rank", "collect, s", "again, s", "open, s", "MiB")


def measure(folder: Path, *, quick: bool) -> str:
    """The table, as Markdown."""
    rows = []
    for ranks, steps in ((64, 10),) if quick else SIZES:
        place = folder / str(ranks)
        row_ms = write(place, ranks=ranks, steps=steps)
        found = [file.stat().st_size for file in place.rglob("*") if file.is_file()]
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            collect, again = pool.apply(collected, (str(place),))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            opened, memory = pool.apply(read, (str(place), ranks, steps))
        size = sum(found)
        counted = [f"{row_ms:.2f}", f"{len(found):,}", f"{size / 2**20:,.0f}", f"{size / 2**10 / ranks:.0f}"]
        spent = [f"{seconds:.1f}" for seconds in (collect, again, opened)]
        rows.append([f"{ranks:,}", f"{steps:,}", *counted, *spent, f"{memory:,.0f}"])
        print(rows[-1], flush=True)
    return f"## Thousands of ranks\n\n{ABOUT}\n\n{table(HEADER, rows, right=range(len(HEADER)))}"


def write(place: Path, *, ranks: int, steps: int) -> float:
    """Write the pieces; CPU milliseconds that a row takes its writer."""
    names = [f"layers.{number}.weight" for number in range(long_run.PARAMS)]
    each = long_run.PARAMS // long_run.GROUPS
    groups = [GroupSpec(name=f"layers.{at}", params=names[at : at + each], numel=1000) for at in range(0, 16, each)]
    manifest = Manifest(world_size=ranks, data_parallel_ranks=[*range(ranks)], adapter="ddp", job="one", started_at="t")
    spent = 0.0
    for rank in range(ranks):
        env = RankEnv(
            rank=rank, world_size=ranks, job="one", params=names, param_shapes=[[10, 25]] * len(names), groups=groups,
            requires_grad=[True] * len(names), param_dtypes=["torch.float32"] * len(names),
            sketch_length=long_run.SKETCH,
        )  # fmt: skip
        columns = long_run.columns(rank, np.arange(steps))
        rows = [{name: values[step] for name, values in columns.items() if name != "rank"} for step in range(steps)]
        begun = time.process_time()
        writer = RunWriter(place / f"node{rank // NODE}" / "run", rank=rank)
        writer.describe(manifest if rank == 0 else None, env)
        for row in rows:
            writer.write(row)
        writer.close()
        spent += time.process_time() - begun
    return 1000 * spent / ranks / steps


def collected(place: str) -> tuple[float, float]:
    """CPU seconds to collect all pieces, and to do so again."""
    nodes = sorted(Path(place).glob("node*/run"))
    seconds = []
    for copied in (True, False):
        begun = time.process_time()
        found = trueline.collect(nodes, str(Path(place, "whole")))
        seconds.append(time.process_time() - begun)
        assert found.exit_code == 0, found.verdict
        assert bool(found.copied) == copied, found.verdict
    return seconds[0], seconds[1]


def read(place: str, ranks: int, steps: int) -> tuple[float, float]:
    """CPU seconds to open what was collected, and the MiB of memory that it took."""
    begun = time.process_time()
    run = Run(Path(place, "whole"))
    spent = time.process_time() - begun
    assert (len(run.ranks), len(run.steps), run.problems) == (ranks, steps, []), run.problems[:3]
    return spent, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
