"""Real processes that train together: a pool of ranks over gloo, started once and reused.

Ranks are forked from a server process that has imported torch and started no thread, so that a start costs
milliseconds instead of the seconds of an import. They meet through a file store in a directory of their own:
there is no port to race for.
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import pickle
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

from trueline.schema.errors import TruelineError

PRELOADED = (
    *("torch", "torch._dynamo", "torch.nn.parallel", "torch.distributed.fsdp", "torch.distributed.tensor"),
    *("pyarrow.parquet", "trueline.capture.watch", "trueline.store.writer", "gallery.entry"),
    "trueline.demo.ranks",
)
"""What the server imports before it forks, so that no rank need do so. `torch._dynamo` is there because the first
optimizer step imports it."""

GRACE_S = 1.0
"""How long the other ranks may take to say what they saw, once one has failed."""

LOG_TAIL_BYTES = 2000

KEPT_GROUPS = ("default_pg", "mesh_")
"""How descriptions of groups begin that a rank keeps: its own group, and those of device meshes, which torch caches by
value."""


class RankError(TruelineError):
    """A rank raised, died, or did not answer in time; all ranks have been stopped.

    ``failures`` has, by rank, the traceback or how the process ended, the first to fail first; empty where no rank was
    to blame.
    """

    def __init__(self, message: str, failures: Mapping[int, str] | None = None) -> None:
        super().__init__(message)
        self.failures: dict[int, str] = dict(failures or {})


@dataclass(frozen=True, slots=True)
class _Failure:
    """The traceback of one rank, as text."""

    text: str


class Ranks:
    """A pool of ``world_size`` processes in one gloo group; used as a context manager.

    ``run`` may be called any number of times. After a ``RankError`` the processes are gone, and the next ``run``
    starts new ones. No process outlives the parent, even one that was killed.
    """

    def __init__(self, world_size: int, *, timeout_s: float = 120.0) -> None:
        if world_size < 1:
            raise RankError(f"A pool of {world_size} ranks was asked for, expected at least 1.")
        self.world_size = world_size
        self.timeout_s = timeout_s
        self._processes: list[ForkServerProcess] = []
        self._pipes: list[Connection] = []
        self._folder: Path | None = None

    def __enter__(self) -> Ranks:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids of the ranks that were started, in rank order; empty while none are."""
        return tuple(process.pid or 0 for process in self._processes)

    def run(self, fn: Callable[..., Any], *args: Any, timeout_s: float | None = None) -> list[Any]:
        """What ``fn(rank, world_size, *args)`` returned on each rank, in rank order.

        ``fn`` is sent by reference (a module-level function) and results by pickle. Raises ``RankError`` with the
        traceback of every rank that failed, the first to fail first; all ranks are stopped then.
        """
        self._start()
        task = pickle.dumps((fn, args))
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send_bytes(task)
            except OSError:
                self._fail({rank: _Failure(self._last_words(rank))})
        answers = self._answers(self.timeout_s if timeout_s is None else timeout_s)
        return [answers[rank] for rank in range(self.world_size)]

    def stop(self) -> None:
        """End the ranks: at their own pace if they listen, by SIGKILL if they do not."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(GRACE_S)
        self._clear()

    def _start(self) -> None:
        if self._processes:
            return
        context = _context()
        self._folder = Path(tempfile.mkdtemp(prefix="trueline-ranks-"))
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve,
                args=(rank, self.world_size, theirs, str(self._folder), self.timeout_s),
                name=f"rank-{rank}",
                daemon=False,
            )
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)

    def _answers(self, timeout_s: float) -> dict[int, Any]:
        """The answer of every rank; raises at the first failure or when the time is over."""
        deadline = time.monotonic() + timeout_s
        answers: dict[int, Any] = {}
        failures: dict[int, _Failure] = {}
        while len(answers) + len(failures) < self.world_size:
            missing = [rank for rank in range(self.world_size) if rank not in answers and rank not in failures]
            ready = wait([self._pipes[rank] for rank in missing], timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                silent = {rank: _Failure(f"no answer within {timeout_s:g} s") for rank in missing}
                self._fail(failures or silent)
            for rank in missing:
                if self._pipes[rank] not in ready:
                    continue
                answer = self._receive(rank)
                if isinstance(answer, _Failure):
                    failures[rank] = answer
                    deadline = min(deadline, time.monotonic() + GRACE_S)
                else:
                    answers[rank] = answer
        if failures:
            self._fail(failures)
        return answers

    def _receive(self, rank: int) -> Any:
        try:
            return pickle.loads(self._pipes[rank].recv_bytes())
        except (EOFError, OSError):
            self._processes[rank].join(GRACE_S)
            return _Failure(f"the process ended with exit code {self._processes[rank].exitcode}")

    def _fail(self, failures: dict[int, _Failure]) -> None:
        words = [f"rank {rank}: {failure.text.rstrip()}{self._last_words(rank)}" for rank, failure in failures.items()]
        size = self.world_size
        self._clear()
        raise RankError(
            f"{len(failures)} of {size} ranks failed; all were stopped.\n" + "\n".join(words),
            {rank: failure.text.rstrip() for rank, failure in failures.items()},
        )

    def _last_words(self, rank: int) -> str:
        log = _log_path(str(self._folder), rank)
        if not log.exists():
            return ""
        tail = log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return f"\n  its output ended with:\n{tail}" if tail else ""

    def _clear(self) -> None:
        for process in self._processes:
            if process.is_alive():
                process.kill()
            process.join()
        for pipe in self._pipes:
            pipe.close()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._processes, self._pipes, self._folder = [], [], None


def run_ranks(fn: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 120.0) -> list[Any]:
    """What ``fn(rank, world_size, *args)`` returned on each of ``world_size`` new ranks; see ``Ranks.run``."""
    with Ranks(world_size, timeout_s=timeout_s) as ranks:
        return ranks.run(fn, *args)


def _context() -> ForkServerContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def _log_path(folder: str, rank: int) -> Path:
    return Path(folder) / f"rank-{rank}.log"


def _serve(rank: int, world_size: int, pipe: Connection, folder: str, timeout_s: float) -> None:
    """The life of one rank: join the group, do what the pipe says, leave when it closes."""
    _die_with_parent()
    gc.freeze()  # what was imported before the fork is never garbage, and a hundred times what a task leaves behind
    with _output_to(_log_path(folder, rank)):
        try:
            _join_group(rank, world_size, folder, timeout_s)
            while True:
                try:
                    task = pipe.recv_bytes()
                except EOFError:
                    break
                pipe.send_bytes(_answer(rank, world_size, task))
        except OSError:
            traceback.print_exc()
        except Exception:
            pipe.send_bytes(pickle.dumps(_Failure(traceback.format_exc())))
    # Leaving by the interpreter would run gloo's teardown, which waits for peers that may be gone.
    os._exit(0)


def _answer(rank: int, world_size: int, task: bytes) -> bytes:
    try:
        _leave_groups()
        seed_generators()
        fn, args = pickle.loads(task)
        return pickle.dumps(fn(rank, world_size, *args))
    except BaseException:
        return pickle.dumps(_Failure(traceback.format_exc()))


def _join_group(rank: int, world_size: int, folder: str, timeout_s: float) -> None:
    import torch
    import torch.distributed as dist

    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    torch.set_num_threads(1)
    store = dist.FileStore(str(Path(folder) / "store"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=timeout_s))


def _leave_groups() -> None:
    """Destroy the groups of earlier tasks, which all ranks have ended by now.

    Each keeps three threads, of which gloo's wakes every 10 ms (`gloo/transport/tcp/loop.cc`): with the hundreds that a
    gallery makes, an idle pool would slow down everything else on the machine.
    """
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _world

    for group in [group for group in _world.pg_map if not group.group_desc.startswith(KEPT_GROUPS)]:
        dist.destroy_process_group(group)
    gc.collect()  # a group ends with the last object that refers to it, and models refer to themselves
    gc.freeze()  # what is left are modules that the task imported: hundreds of thousands of objects with a compiler


def seed_generators() -> None:
    """Start the global generators from one seed, so that a task does not depend on those before it."""
    import numpy
    import torch

    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)


def _die_with_parent() -> None:
    """A thread that ends this process when the parent is gone: its pipe alone is not read during a collective."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch_parent() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch_parent, name="parent-watch", daemon=True).start()


@contextlib.contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Send what this process prints, C++ warnings included, to ``path``; it is shown only when a rank fails."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
