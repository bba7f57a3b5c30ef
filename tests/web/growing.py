"""A Run that grows, a step of every rank and a rest, until this process is killed: PATH, RANKS and REST_S are given."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np

from trueline.schema.files.run_manifest import Manifest, RankEnv
from trueline.store.writer import RunWriter


def main() -> None:
    """Write, and say when the first step is there."""
    path, num_ranks, rest_s = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    writers = [RunWriter(path, rank=rank) for rank in range(num_ranks)]
    manifest = Manifest(world_size=num_ranks, data_parallel_ranks=list(range(num_ranks)), adapter="ddp")
    for rank, writer in enumerate(writers):
        writer.describe(manifest if rank == 0 else None, RankEnv(rank=rank, world_size=num_ranks))
    rng = np.random.default_rng(0)
    step = 0
    while True:
        for writer in writers:
            norm, loss = rng.normal(3, 0.1), 5 * 0.999**step + rng.normal() / 20
            writer.write({"step": step, "loss": loss, "grad_norm": norm, "step_s": rest_s, "own_s": rest_s / 500})
        if step == 0:
            print("begun", flush=True)
        step += 1
        time.sleep(rest_s)


if __name__ == "__main__":
    main()
