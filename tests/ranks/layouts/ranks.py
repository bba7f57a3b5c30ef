"""Trainings of forked ranks, unwatched, or attached as by ``trueline run``."""

from __future__ import annotations

import multiprocessing
import os
import warnings
from pathlib import Path

from trueline.capture.child_env import environment
from trueline.demo.ranks import Ranks
from trueline.schema.plan import Plan


def trained(ranks: Ranks, mode: str, *, steps: int, fault: str = "", bad: tuple[int, ...] = ()) -> list[str]:
    """A digest of the weights that each rank has after an unwatched training."""
    return ranks.run(_train, mode, (steps, fault, bad))


def watched(mode: str, run: Path, *, world: int, steps: int, fault: str = "", bad: tuple[int, ...] = ()) -> list[str]:
    """The same of new ranks, watched into ``run``."""
    told = environment(out=str(run), plan=Plan.load({"every": 1}).model_dump(mode="json"), overwrite=False, base={})
    with Ranks(world) as ranks:
        return ranks.run(_attached, mode, (steps, fault, bad), told)


def _train(rank: int, world: int, mode: str, job: tuple[int, str, tuple[int, ...]]) -> str:
    from tests.ranks.layouts import train

    del rank, world
    warnings.simplefilter("ignore")  # of torch, about CPUs
    multiprocessing.set_start_method("fork", force=True)  # not that of the server, which ranks inherit
    return getattr(train, mode)(train.Job(*job))


def _attached(rank: int, world: int, mode: str, job: tuple[int, str, tuple[int, ...]], told: dict[str, str]) -> str:
    import trueline
    from trueline.capture.launch import Attachment

    os.environ.update(told)
    attachment = Attachment(trueline.watch)
    attachment.wait()
    weights = _train(rank, world, mode, job)
    for watch in attachment.watches:
        watch.close()  # as at the exit of a process, which a rank does not come to
    return weights
