"""What watching costs in the first steps of a job, in later ones, and in a step that is sampled and one that is not."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks import page
from benchmarks.overhead.model import LanguageModel, tokens
from benchmarks.overhead.steps import one_step, watched
from torch import nn

from trueline.demo.ranks import Ranks
from trueline.schema.plan import EARLY_STEPS

TITLE = "First steps and later ones"
LATER = 700
"""Steps after the first ones, of which a settled plan samples a few."""
LAYERS = 4


def measure(*, ranks: int, rounds: int, folder: Path, later: int = LATER, width: int = 256) -> str:
    """The table, as Markdown; ``rounds`` are not needed: each step of one training is paired with one of the other."""
    with Ranks(ranks, timeout_s=7200) as pool:
        results = pool.run(train, str(folder), later, width, timeout_s=7200)
    every = range(EARLY_STEPS + later)
    bare, cpu = ([sum(result[mode][step] for result in results) for step in every] for mode in MODES)
    sampled, own = results[0]["sampled"], results[0]["own"]
    rows = []
    for name, steps in {f"the first {EARLY_STEPS}": every[:EARLY_STEPS], f"{later} later": every[EARLY_STEPS:]}.items():
        of = {"together": [*steps], "sampled": [step for step in steps if step in sampled]}
        of["not sampled"] = [step for step in steps if step not in sampled]
        for kind, chosen in of.items():
            if chosen:
                together = f"{sum(cpu[step] for step in chosen) / sum(bare[step] for step in chosen):.3f}"
                middle = f"{statistics.median(cpu[step] / bare[step] for step in chosen):.3f}"
                spent = f"{1000 * statistics.median(own[step] for step in chosen):.2f} ms"
                rows.append([f"{name}, {kind}", str(len(chosen)), together, middle, spent])
    head = ["steps", "number", "CPU time, ratio of the sums", "median ratio", "own time of Trueline, median"]
    introduction = (
        f"{results[0]['numel'] / 1e6:.1f}M parameters in {LAYERS} layers, 512 tokens a rank, {ranks} ranks, the plan "
        "of `trueline run` by default. Two trainings take a step in turn, one of them watched; CPU time is that of all "
        f"threads of all ranks. An unmonitored step took {1000 * statistics.median(bare) / ranks:.0f} ms of it a rank."
    )
    return "\n\n".join([f"## {TITLE}", introduction, page.table(head, rows, right=(1, 2, 3, 4))])


MODES = ("bare", "watched")


class OwnClock:
    """Wall time, in s, of the watched training alone: it stands still while the other one takes its step. The plan
    holds its budget against the time between two of its own updates.
    """

    def __init__(self) -> None:
        self._left_out_s = 0.0

    def __call__(self) -> float:
        """The time now."""
        return time.perf_counter() - self._left_out_s

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Leave out what happens inside."""
        begin = time.perf_counter()
        yield
        self._left_out_s += time.perf_counter() - begin


def train(rank: int, world: int, folder: str, later: int, width: int) -> dict[str, Any]:
    """CPU seconds of each step of both trainings on this rank, which were sampled, and what Trueline used in each."""
    import trueline

    del world
    torch.set_num_threads(1)
    steps, watch, clock = {}, None, OwnClock()
    for mode in MODES:
        torch.manual_seed(0)
        model = LanguageModel(width)
        del model.layers[LAYERS:]
        ddp = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4)
        if mode == "watched":
            watch = watched(ddp, optimizer, f"{folder}/beginning", None)
            watch._recorder.parts.time._wall_s = clock
        steps[mode] = one_step(ddp, optimizer, None)
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    for number in range(EARLY_STEPS + later):
        batch = tokens(number, rank)
        for mode in MODES if number % 2 else MODES[::-1]:
            with clock.stopped() if mode == "bare" else contextlib.nullcontext():
                dist.barrier()
                begin = time.process_time()
                steps[mode](batch)
                times[mode].append(time.process_time() - begin)
    assert watch is not None
    watch.close()
    dist.barrier()
    run = trueline.open_run(f"{folder}/beginning")
    column = run.ranks.index(rank)
    sampled = {int(step) for step in run.steps[run.pivot("grad_norm")[1][:, column]]}
    own = dict(zip(run.steps.tolist(), run.pivot("own_s")[0][:, column].tolist(), strict=True))
    numel = sum(param.numel() for param in ddp.parameters())
    return times | {"sampled": sampled, "own": own, "numel": numel}
