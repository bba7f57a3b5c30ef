"""Ranks that are started by hand write one Run together, which the first of those that record makes."""

import json
import time

import pytest
import torch

import trueline
from trueline.compat.msprobe import PrecisionDebugger


def record(rank, world, path, ranks, lead):
    if rank == lead:
        time.sleep(0.5)  # the others are there first, and wait
    PrecisionDebugger._instance = None
    with open(f"{path}-{rank}.json", "w") as file:
        json.dump({"dump_path": path, "level": "L1", "rank": ranks}, file)
    debugger = PrecisionDebugger(config_path=f"{path}-{rank}.json")
    for _ in range(2):
        debugger.start()
        torch.tanh(torch.full((2,), float(rank)))
        debugger.stop()
        debugger.step()
    debugger.close()


@pytest.mark.parametrize(("chosen", "expected"), [([], [0, 1, 2]), (["1-2"], [1, 2])])
def test_the_ranks_that_are_asked_for_write_one_run(three, tmp_path, chosen, expected):
    three.run(record, str(tmp_path / "dump"), chosen, min(expected))
    run = trueline.open_run(tmp_path / "dump")
    rows = run.records(columns=["rank", "step", "slot", "sum"]).to_pylist()
    found = {(row["rank"], row["step"]): row["sum"] for row in rows if row["slot"] == "in0"}
    assert found == {(rank, step): 2.0 * rank for rank in expected for step in range(2)}
    assert run.manifest.world_size == 3
    assert run.problems == [f"rank {rank}: it wrote nothing in this Run of 3 ranks" for rank in {0, 1, 2} - {*expected}]
