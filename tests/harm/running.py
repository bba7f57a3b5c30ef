"""A job run by itself or watched, in ranks that are forked from this process, which has imported torch."""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import itertools
import os
import re
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
import types
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from trueline.demo import ranks

IMPORTED = (
    *ranks.PRELOADED,
    *("trueline.capture.launch", "trueline.capture.record.session", "trueline.capture.record.make_session"),
    *("trueline.capture.probes.standard", "trueline.capture.adapters", "trueline.capture.beginning"),
    *("torch.distributed.fsdp", "torch.utils.flop_counter", "torch.utils._python_dispatch"),
    *("torch._dynamo.backends.common", "torch._inductor.codecache", "torch.jit", "torch.nn.utils.parametrizations"),
    *("trueline.capture.adapters.megatron", "encodings.ascii"),
)

LIMIT_S = 150.0
"""A job takes a second or two, beside others ten; one that waits for ever is ended after this."""


@dataclass(frozen=True)
class Job:
    """A script, how many ranks run it, the preset that it is watched with, and what it is made of."""

    source: str
    num_ranks: int = 1
    preset: str = "workers"
    traits: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ended:
    """How the ranks of a job ended: exit status (negative: the signal; None: killed after LIMIT_S), what they printed,
    and what they wrote to standard error. ``wall_s`` is that of all.
    """

    status: tuple[int | None, ...]
    printed: tuple[str, ...]
    errors: tuple[str, ...]
    wall_s: float


@dataclass(frozen=True)
class Both:
    """A job, run by itself and watched."""

    job: Job
    bare: Ended
    watched: Ended

    @property
    def harm(self) -> str:
        """What watching did to it, as one line; empty where nothing."""
        if self.bare.status != self.watched.status:
            return f"exit status {self.bare.status} became {self.watched.status}: {_last_lines(self.watched)}"
        outputs = (self.bare.printed, self.watched.printed), (_said(self.bare), _said(self.watched))
        for name, (bare, watched) in zip(("output", "error output"), outputs, strict=True):
            for rank, texts in enumerate(zip(bare, watched, strict=True)):
                for number, lines in enumerate(itertools.zip_longest(*(text.splitlines() for text in texts))):
                    if lines[0] != lines[1]:
                        return f"{name} of rank {rank}, line {number}: {lines[0]!r} became {lines[1]!r}"
        return ""


def _said(ended: Ended) -> tuple[str, ...]:
    """What each rank wrote to standard error, without our lines; nothing where a rank failed: frames are there."""
    if set(ended.status) != {0}:
        return ()
    lines = [
        [line for line in text.splitlines() if not line.startswith(("trueline: ", "[rank"))] for text in ended.errors
    ]
    return tuple(_STAMP.sub("", "\n".join(rank)) for rank in lines)


_STAMP = re.compile(r"^[A-Z]\d{4} [\d:.]+ \d+ ", re.MULTILINE)
"""Of what torch logs: date, time and process."""


def _last_lines(ended: Ended) -> str:
    lines = [line for text in ended.errors for line in text.splitlines() if not line.startswith("trueline: ")]
    return " / ".join(lines[-3:])


def both(job: Job, folder: Path) -> Both:
    """``job`` run by itself and watched, at the same path: what it prints may hold it. ``folder`` is emptied."""
    ended = []
    for watched in (False, True):
        shutil.rmtree(folder, ignore_errors=True)
        ended.append(run(job, folder, watched=watched))
    return Both(job, *ended)


def serve(jobs: Connection, folder: Path) -> None:
    """Run each job that arrives in ``folder``, and send back what came of it; in a process without threads."""
    prepare()
    with contextlib.suppress(EOFError):
        while True:
            jobs.send(both(jobs.recv(), folder))


def prepare() -> None:
    """Import what jobs import, so that no rank need do so; starts no thread."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()  # a rank that looks through all objects, or collects them, would copy the memory of all modules


def run(job: Job, folder: Path, *, watched: bool) -> Ended:
    """Run ``job`` in ``folder``, which holds nothing yet; the Run is ``folder/run``."""
    folder.mkdir(parents=True)
    script = folder / "job.py"
    script.write_text(job.source, encoding="utf-8")
    began = time.perf_counter()
    port = _free_port()
    running = {}
    for rank in range(job.num_ranks):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            _become(job, script, rank, port, watched=watched)
        running[child] = rank
    status: dict[int, int | None] = {}
    deadline = time.monotonic() + LIMIT_S
    while len(status) < job.num_ranks:
        child, raw = _next_ended(deadline)
        if not child:
            for number in running:
                os.kill(number, signal.SIGKILL)
            for number, rank in running.items():
                os.waitpid(number, 0)
                status[rank] = None
            break
        status[running.pop(child)] = os.waitstatus_to_exitcode(raw)
        if raw:
            deadline = min(deadline, time.monotonic() + 15.0)  # the others may wait for it
    wall_s = time.perf_counter() - began
    texts = [
        [(folder / f"{name}-{rank}").read_text(errors="replace") for rank in range(job.num_ranks)]
        for name in ("out", "err")
    ]
    return Ended(tuple(status[rank] for rank in range(job.num_ranks)), tuple(texts[0]), tuple(texts[1]), wall_s)


def _next_ended(deadline: float) -> tuple[int, int]:
    """A child that has ended and its status; (0, 0) where none has by the ``deadline``."""
    while time.monotonic() < deadline:
        child, raw = os.waitpid(-1, os.WNOHANG)
        if child:
            return child, raw
        time.sleep(0.005)
    return 0, 0


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _become(job: Job, script: Path, rank: int, port: int, *, watched: bool) -> None:
    """Be the rank, to the end."""
    status = 1
    try:
        _redirect(script.parent, rank)
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": job.num_ranks, "MASTER_PORT": port}
        if job.num_ranks > 1:
            os.environ |= {name: str(value) for name, value in place.items()} | {"MASTER_ADDR": "127.0.0.1"}
        os.chdir(script.parent)
        if watched:
            _attach(job, script.parent / "run")
        main = types.ModuleType("__main__")
        main.__file__ = str(script)
        sys.modules["__main__"], sys.argv = main, [str(script)]
        exec(compile(job.source, str(script), "exec"), main.__dict__)
        status = 0
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
    except BaseException as error:
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, error.__traceback__
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _redirect(folder: Path, rank: int) -> None:
    for number, name in ((1, "out"), (2, "err")):
        file = os.open(folder / f"{name}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        os.close(file)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", closefd=False, buffering=1)  # noqa: SIM115


def _attach(job: Job, out: Path) -> None:
    import trueline
    from trueline.capture.child_env import environment
    from trueline.capture.launch import Attachment
    from trueline.schema.plan import Plan

    plan = Plan.load(job.preset).model_dump(mode="json")
    os.environ.update(environment(out=str(out), plan=plan, overwrite=False, base={}))
    Attachment(trueline.watch).wait()
