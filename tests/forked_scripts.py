"""Training scripts that know nothing of Trueline, run in ranks that were forked and so need not import torch first.

A watched rank attaches itself as a process under `trueline run` does once it has imported torch. What comes before
that, the command, its environment and the hook on the import, is for tests that start real processes.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch.distributed as dist

from trueline.capture.child_env import environment
from trueline.capture.launch import Attachment
from trueline.demo.ranks import Ranks
from trueline.schema.plan import Plan


def run_unwatched(ranks: Ranks, script: Path, *words: str) -> list[str]:
    """What ``script`` prints on each rank, called with ``words``."""
    return ranks.run(_run, str(script), words)


def run_watched(
    script: Path,
    *words: str,
    out: Path,
    plan: str | dict[str, Any] | None = None,
    world_size: int = 2,
    argv: Sequence[str] = (),
) -> list[str]:
    """The same in new ranks, attached as by `trueline run --out OUT --plan PLAN -- ARGV`."""
    asked = Plan.load(plan).model_dump(mode="json")
    told = environment(out=str(out), plan=asked, overwrite=False, argv=argv, base={})
    with Ranks(world_size) as ranks:
        return ranks.run(_run_attached, str(script), words, told)


def _run_attached(rank: int, world_size: int, script: str, words: Sequence[str], told: dict[str, str]) -> str:
    import trueline

    os.environ.update(told)
    watches: list[Any] = []

    def watch(*args: Any, **kwargs: Any) -> Any:
        watches.append(trueline.watch(*args, **kwargs))  # its model is dropped as the script ends
        return watches[-1]

    attachment = Attachment(watch)
    attachment.wait()
    printed = _run(rank, world_size, script, words)
    assert watches, "the script was not watched"
    for each in watches:
        each.close()  # as at the exit of a process, which a rank does not come to
    return printed


def _run(rank: int, world_size: int, script: str, words: Sequence[str]) -> str:
    del rank
    if world_size == 1:
        dist.destroy_process_group()  # a script of one process has none
    multiprocessing.set_start_method("fork", force=True)  # not that of the server, which ranks inherit
    printed = io.StringIO()
    with (
        contextlib.chdir(Path(script).parent),
        contextlib.redirect_stdout(printed),
        mock.patch.object(sys, "argv", [script, *words]),
        mock.patch.object(dist, "init_process_group"),  # a rank is in its group already
        mock.patch.object(dist, "destroy_process_group"),
    ):
        runpy.run_path(script, run_name="__main__")
    return printed.getvalue()
