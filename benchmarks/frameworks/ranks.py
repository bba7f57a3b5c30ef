"""Trainings of three forked ranks, unwatched, or attached as by ``trueline run``."""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.frameworks.job import WORLD

from trueline.capture.child_env import environment
from trueline.schema.plan import Plan
from trueline.testing import ranks as pool

TIMEOUT_S = 600.0


def trained(name: str, mode: str, out: Path, *, run: Path | None = None, plan: Any = None, **job: Any) -> list[Any]:
    """What each rank left at its end, the weights' digest among it; watched into ``run``, if given."""
    told = {}
    if run is not None:
        told = environment(out=str(run), plan=Plan.load(plan).model_dump(mode="json"), overwrite=False, base={})
    with pool.Ranks(WORLD, timeout_s=TIMEOUT_S) as three:
        three.run(_train, name, mode, str(out), told, job)
    return [json.loads(Path(out, f"end-{rank}.json").read_text(encoding="utf-8")) for rank in range(WORLD)]


def preload(*packages: str) -> None:
    """Let ranks be forked from a process that has imported ``packages``."""
    pool.PRELOADED = tuple(dict.fromkeys([*pool.PRELOADED, *packages]))
    os.environ.setdefault("DS_ACCELERATOR", "cpu")


def _train(rank: int, world_size: int, name: str, mode: str, out: str, told: dict[str, str], job: Any) -> None:
    import torch.distributed as dist
    from benchmarks.frameworks.train import job_of

    del rank, world_size
    multiprocessing.set_start_method("fork", force=True)  # not that of the server, which ranks inherit
    os.environ.update(told, MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", LOCAL_WORLD_SIZE=str(WORLD))
    watches = _attached() if told else []
    module = importlib.import_module(f"benchmarks.frameworks.{name}")
    with mock.patch.object(dist, "init_process_group"), mock.patch.object(dist, "destroy_process_group"):
        module.train(job_of(mode, out, **job))
        for watch in watches:
            with contextlib.suppress(OSError):
                watch.close()  # as at the exit of a process, which a rank does not come to


def _attached() -> list[Any]:
    import trueline
    from trueline.capture.launch import Attachment

    attachment = Attachment(trueline.watch)
    attachment.wait()
    return attachment.watches
