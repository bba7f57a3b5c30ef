"""What watching costs in instructions of the processor, which nothing else on the machine changes."""

from __future__ import annotations

import ctypes
import datetime
import json
import math
import os
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from benchmarks import page
from benchmarks.overhead.model import LanguageModel, tokens
from torch import nn

from trueline.capture.probes.around_update import sampling
from trueline.capture.step import schedule
from trueline.capture.watch import Watch
from trueline.schema.files.start import Job, Start
from trueline.schema.plan import Plan
from trueline.store.log.table_writer import SEAL_STEPS
from trueline.store.writer import RunWriter

TITLE = "Instructions"

WARMUP, COUNTED = 3, 18
"""Steps that are not counted, in which torch and Python fill their caches, and steps that are."""

FEW, ALIKE = 2, 3
"""Tokens of a sample in the steps of which what watching adds is counted, and so many of them of the unmonitored
training, which are alike. One more step of that has all tokens: products of matrices take callgrind minutes.
"""

PATIENCE = datetime.timedelta(hours=12)
"""The other ranks wait for the first: on a busy machine that has counted for more than gloo's half hour."""

SETTLED = 10_000
"""Steps that the watched training is said to have behind it, so that nothing is done more often as it is at the start.
"""

EVERY: dict[str, int] = {"every": 3, "params_every": 4, "matrix_every": 9}
"""The plan under which every kind of step comes several times among those that are counted."""

MARKS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; }
void mark(void) { CALLGRIND_DUMP_STATS; }
"""

INTRODUCTION = (
    "Instructions that callgrind counts on the first of {ranks} ranks, all threads together, one of torch's "
    "(OMP_NUM_THREADS=1), 8.4M parameters and 512 tokens a rank. The processor that callgrind stands for has AVX2. "
    "Waiting, and what the system does for a process, has none. What watching adds is counted in steps of "
    f"{FEW} tokens a sample (so that digests of samples read fewer), and divided by an unmonitored step of all tokens, "
    "which takes {bare:,.0f} million instructions; when what of it is added follows from "
    f"{COUNTED} steps of one training that has settled, by least squares with a residual of at most {{residual:.2%}}."
)


def measure(*, ranks: int, rounds: int, folder: Path) -> str:
    """The tables, as Markdown."""
    if missing := [each for each in ("valgrind", "cc") if shutil.which(each) is None]:
        sys.exit(
            f"{' and '.join(missing)} not found. Instructions are counted by valgrind: apt-get install valgrind gcc."
        )
    marks = folder / "marks.so"
    compile_ = ["cc", "-shared", "-fPIC", "-O2", "-x", "c", "-o", str(marks), "-"]
    subprocess.run(compile_, input=MARKS, text=True, check=True)
    started = {mode: start(mode, ranks, folder) for mode in ("unmonitored", "watched")}  # neither disturbs the other
    (*few_S, bare), watched_S = (counted(mode, processes, folder) for mode, processes in started.items())
    kinds = json.loads((folder / "watched" / "kinds.json").read_text())
    seal = watched_S[-1] / bare
    more_S = (np.array(watched_S[:-1]) - statistics.median(few_S)) / bare
    names = [*KINDS]
    of_SK = np.array([[1.0, *(float(kind in step) for kind in names[1:])] for step in kinds])
    more_K, *_ = np.linalg.lstsq(of_SK, more_S, rcond=None)
    residual = float(np.abs(more_S - of_SK @ more_K).max())
    share = dict(zip(names, more_K.tolist(), strict=True)) | {"a part is sealed": seal}
    return "\n\n".join(
        [
            f"## {TITLE}",
            INTRODUCTION.format(ranks=ranks, residual=residual, bare=bare / 1e6),
            page.table(["what", "more than an unmonitored step", "how often"], _parts(share), right=(1,)),
            page.table(["plan", "times an unmonitored step"], _plans(share), right=(1,)),
        ]
    )


KINDS = {
    "every step": "1",
    "gradients are sampled": "interval",
    "the sum is read": "interval",
    "the reduction is looked at": "8 intervals",
    "the sketch is kept": "50",
    "parameters are digested": "25",
    "laws of the update": "20, later 100",
}
"""What may be done in a step, and every how many steps by default once training has settled."""


def _parts(share: dict[str, float]) -> list[list[str]]:
    often = {**KINDS, "a part is sealed": str(SEAL_STEPS)}
    return [[name, f"{more:+.3%}", often[name]] for name, more in share.items()]


def _plans(share: dict[str, float]) -> list[list[str]]:
    """Rows of the plans: every step, the default at the interval that its budget asks for, and at the longest."""
    sampled = share["gradients are sampled"] + share["the sum is read"]
    sampled += share["the reduction is looked at"] / schedule.REDUCED_EVERY
    usual = Plan()
    always = share["every step"] + share["the sketch is kept"] / usual.matrix_every
    always += share["parameters are digested"] / usual.params_every + share["a part is sealed"] / SEAL_STEPS
    always += share["laws of the update"] / sampling.LEAST_GAP
    room = usual.budget - share["every step"]
    asked = min(max(math.ceil(sampled / room), 1), schedule.MAX_INTERVAL) if room > 0 else schedule.MAX_INTERVAL
    plans = {"every step": 1, f"default, at the interval of its budget ({asked})": asked}
    plans["default, at the longest interval (100)"] = schedule.MAX_INTERVAL
    return [[name, f"{1 + always + sampled / interval:.4f}"] for name, interval in plans.items()]


def start(mode: str, ranks: int, folder: Path) -> list[subprocess.Popen[bytes]]:
    """The ranks of one training, the first under callgrind, with ``folder / mode`` for what they leave."""
    own = folder / mode
    own.mkdir()
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    callgrind = ("valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={own / 'out'}")
    command = (sys.executable, "-m", "benchmarks.overhead.instructions", mode)
    return [
        subprocess.Popen(
            [*(callgrind if rank == 0 else ()), *command, str(rank), str(ranks), str(own)], env=environment
        )
        for rank in range(ranks)
    ]


def counted(mode: str, started: list[subprocess.Popen[bytes]], folder: Path) -> list[float]:
    """Instructions of each counted step of the first rank, and last of the sealing of a part where it is watched."""
    if sum(process.wait() != 0 for process in started):
        sys.exit(f"A rank of the {mode} training has failed under valgrind; its output is above.")
    dumps = sorted((folder / mode).glob("out.*"), key=lambda path: int(path.suffix[1:]))[1:]
    totals = (re.search(r"^(?:totals|summary): (\d+)", path.read_text(), re.MULTILINE) for path in dumps)
    return [float(found[1]) for found in totals if found is not None]


def train(mode: str, rank: int, ranks: int, folder: Path) -> None:
    """Train one rank of one mode, with a mark after each counted step of the first rank."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=ranks, timeout=PATIENCE)
    torch.manual_seed(0)
    ddp = nn.parallel.DistributedDataParallel(LanguageModel())
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4)
    sinks: list[RunWriter] = []
    watch = _watched(ddp, optimizer, str(folder / "run"), sinks) if mode == "watched" else None
    marks = ctypes.CDLL(str(folder.parent / "marks.so"))
    kinds: list[list[str]] = []
    sampled = False
    num_few = WARMUP + (COUNTED if watch is not None else ALIKE)
    for number in range(num_few + (watch is None)):
        if number == WARMUP and rank == 0:
            marks.begin()
            marks.mark()
        if watch is not None:
            now, sampled = _kinds(watch, sampled)
            kinds += [now] if number >= WARMUP else []
        ddp(tokens(number, rank)[:, : FEW + 1 if number < num_few else None]).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number >= WARMUP and rank == 0:
            marks.mark()
            print(f"{mode}: step {number}", file=sys.stderr, flush=True)
    if watch is not None and rank == 0:
        sinks[0]._rows._seal()
        marks.mark()
        (folder / "kinds.json").write_text(json.dumps(kinds))
    dist.barrier()
    os._exit(0)  # an end in good order is long under valgrind, and counts for nothing


def _watched(ddp: nn.Module, optimizer: torch.optim.Optimizer, out: str, sinks: list[RunWriter]) -> Watch:
    def make_sink(*, rank: int, lead: int, job: Job, start: Start | None) -> RunWriter:
        del job, start
        sinks.append(RunWriter(out, rank=rank, creates=rank == lead, seal_s=1e9))
        return sinks[-1]

    for module, name, value in (
        (sampling, "EARLY", 0),
        (sampling, "EVERY", 5),
        (sampling, "RAREST", 5),
        (schedule, "REDUCED_FIRST", 0),
        (schedule, "REDUCED_EVERY", 4),
    ):
        patch.object(module, name, value).start()
    watch = Watch(ddp, optimizer, make_sink=make_sink, run_path=out, plan=Plan.load(EVERY))
    settled = watch._recorder._next.schedule
    settled.first = settled._dense_since = -SETTLED
    return watch


def _kinds(watch: Watch, was_sampled: bool) -> tuple[list[str], bool]:
    recorder: Any = watch._recorder
    step = recorder._step
    found = {
        "gradients are sampled": step.sampled,
        "the sum is read": was_sampled,
        "the reduction is looked at": step.rechecks,
        "the sketch is kept": step.keeps_sketch,
        "parameters are digested": step.digests,
        "laws of the update": any(probe.name == "updates" for probe in recorder._probing.due),
    }
    return [name for name, there in found.items() if there], step.sampled


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
