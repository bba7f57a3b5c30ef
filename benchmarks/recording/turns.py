"""A process that trains under one tool, and takes its turns when it is told to."""

from __future__ import annotations

import gc
import multiprocessing
import os
import resource
import shutil
import sys
import time
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.recording.tools import Bare, MonitorV1, MonitorV2, MsProbe, Tool, Trueline

TOOLS: dict[str, type[Bare]] = {"bare": Bare, "msprobe": MsProbe, "trueline": Trueline}
TOOLS |= {"monitor-v1": MonitorV1, "monitor-v2": MonitorV2}
IDLE_S = 0.05
"""A process is idle when it used less than a fiftieth of this much time of a core in this much time."""
PATIENCE_S = 60.0


@dataclass(frozen=True)
class Turn:
    """Seconds of one turn, a step: on the clock, and of CPU with what threads did until they were idle again."""

    wall_s: float
    cpu_s: float


@dataclass(frozen=True)
class Left:
    """What a tool left behind: bytes and files a step, tensors recorded a step, and the peak of resident bytes."""

    bytes_a_step: float
    files_a_step: float
    values_a_step: float
    peak_bytes: float


class Trainee:
    """A process of its own that trains under ``tool`` with ``settings``; ``folder`` is empty and its own.

    ``bulky`` are globs of files to be counted and removed after every turn, since there is no room for all of them.
    """

    def __init__(self, tool: str, folder: Path, settings: dict[str, Any], *, bulky: tuple[str, ...] = ()) -> None:
        self.name = tool
        folder.mkdir(parents=True)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        arguments = (tool, folder, settings, bulky, theirs)
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()

    def ready(self) -> None:
        """Wait until the model is built."""
        self._answer()

    def turn(self, steps: int) -> Turn:
        """Train ``steps`` steps and wait until the process is idle."""
        self._pipe.send(steps)
        return self._answer()

    def finish(self) -> Left:
        """Close the tool, end the process and say what it left."""
        self._pipe.send(None)
        left = self._answer()
        self._process.join()
        return left

    def _answer(self) -> Any:
        try:
            answer = self._pipe.recv()
        except EOFError:
            sys.exit(f"The process of {self.name} ended without an answer (exit code {self._process.exitcode}).")
        if isinstance(answer, str):
            sys.exit(f"Recording with {self.name} failed:\n{answer}")
        return answer


def _serve(tool: str, folder: Path, settings: dict[str, Any], bulky: tuple[str, ...], pipe: Connection) -> None:
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)  # one of them prints a line a step
    try:
        _train(TOOLS[tool](folder, **settings), folder, bulky, pipe)
    except EOFError:
        return  # whoever asked is gone
    except Exception:
        pipe.send(traceback.format_exc())


def _train(tool: Tool, folder: Path, bulky: tuple[str, ...], pipe: Connection) -> None:
    import torch
    from benchmarks.recording.model import build, tokens, train_one

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    tool.prepare()
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tool.attach(model, optimizer)
    pipe.send(None)
    done, swept = 0, (0, 0, 0)
    while (steps := pipe.recv()) is not None:
        batches = [tokens(done + index) for index in range(steps)]
        gc.collect()
        worked, begin = time.process_time(), time.perf_counter()
        for batch in batches:
            tool.begin()
            train_one(model, optimizer, batch)
            tool.end()
        wall_s = time.perf_counter() - begin
        _until_idle()
        cpu_s = time.process_time() - worked
        done += steps
        if bulky:
            swept = _sweep(tool, folder, bulky, swept)
        pipe.send(Turn(wall_s / steps, cpu_s / steps))
    tool.close()
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    kept = (*_size(folder.rglob("*")), tool.num_values())
    pipe.send(Left(*((one + other) / max(done, 1) for one, other in zip(kept, swept, strict=True)), peak_bytes))


def _until_idle() -> None:
    """Wait for threads that still write, but not for ever."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        before = time.process_time()
        time.sleep(IDLE_S)
        if time.process_time() - before < IDLE_S / 50:
            return


def _sweep(tool: Tool, folder: Path, bulky: tuple[str, ...], swept: tuple[int, int, int]) -> tuple[int, int, int]:
    """Remove the bulky files (or folders) and return bytes, files and values removed so far."""
    values = tool.num_values()
    num_bytes = num_files = 0
    for pattern in bulky:
        for found in list(folder.glob(pattern)):
            inside = _size(found.rglob("*") if found.is_dir() else [found])
            num_bytes, num_files = num_bytes + inside[0], num_files + inside[1]
            shutil.rmtree(found) if found.is_dir() else found.unlink()
    return swept[0] + num_bytes, swept[1] + num_files, swept[2] + values - tool.num_values()


def _size(paths: Iterable[Path]) -> tuple[int, int]:
    files = [path.stat().st_size for path in paths if path.is_file()]
    return sum(files), len(files)
