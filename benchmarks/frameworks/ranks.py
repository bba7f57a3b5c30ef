"""Trainings of three forked ranks, unwatched, or attached as by ``trueline run``."""

from __future__ import annotations

import contextlib
import importlib
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.frameworks.job import WORLD

from trueline.capture.child_env import environment
from trueline.demo import ranks as pool
from trueline.schema.plan import Plan

TIMEOUT_S = 600.0


def trained(name: str, mode: str, out: Path, *, run: Path | None = None, plan: Any = None, **job: Any) -> list[Any]:
    """What each rank left at its end, the weights' digest among it; watched into ``run``, if given."""
    if hasattr(importlib.import_module(f"benchmarks.frameworks.jobs.{name}"), "start"):
        return _started(name, mode, out, run=run, plan=plan, job=job)
    told = {}
    if run is not None:
        told = environment(out=str(run), plan=Plan.load(plan).model_dump(mode="json"), overwrite=False, base={})
    with pool.Ranks(WORLD, timeout_s=TIMEOUT_S) as three:
        three.run(_train, name, mode, str(out), told, job)
    return _ends(out)


def launched(
    name: str, mode: str, out: Path, job: dict[str, Any], *, watching: Sequence[str] | None = None
) -> subprocess.CompletedProcess[str]:
    """How a training ended that the framework's launcher, or else torch's, starts; below ``trueline run`` if asked."""
    command = getattr(importlib.import_module(f"benchmarks.frameworks.jobs.{name}"), "command", _torchrun)
    words = [*command(mode, "benchmarks.frameworks.train"), name, mode, str(out), json.dumps(job)]
    if watching is not None:
        words = [sys.executable, "-m", "trueline", "run", *watching, "--", *words]
    return subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def _torchrun(mode: str, module: str) -> list[str]:
    del mode
    return [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(WORLD), "-m", module]


def _started(name: str, mode: str, out: Path, *, run: Path | None, plan: Any, job: dict[str, Any]) -> list[Any]:
    watching = None
    if run is not None:
        file = run.with_suffix(".plan.json")
        file.write_text(json.dumps(Plan.load(plan).model_dump(mode="json")), encoding="utf-8")
        watching = ["--out", str(run), "--plan", str(file)]
    done = launched(name, mode, out, job, watching=watching)
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-1500:]}")
    return _ends(out)


def _ends(out: Path) -> list[Any]:
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
    module = importlib.import_module(f"benchmarks.frameworks.jobs.{name}")
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
