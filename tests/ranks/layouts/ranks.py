"""Trainings of forked ranks, unwatched, or attached as by ``trueline run``."""

from __future__ import annotations

import atexit
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


def watched(ranks: Ranks, mode: str, run: Path, *, steps: int, fault: str = "", bad: tuple[int, ...] = ()) -> list[str]:
    """The same, watched into ``run``. The ranks are of no use for unwatched trainings afterwards."""
    told = environment(out=str(run), plan=Plan.load({"every": 1}).model_dump(mode="json"), overwrite=False, base={})
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
    from trueline.capture.model import patches

    os.environ.update(told)
    attachment = Attachment(trueline.watch)
    attachment.wait()
    weights = _train(rank, world, mode, job)
    for watch in attachment.watches:
        watch.close()  # as at the exit of a process, which a rank does not come to
    patches.update_begins.remove(attachment._at_update)  # or it would look at the next training too
    atexit.unregister(attachment._at_exit)
    return weights
