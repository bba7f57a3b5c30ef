"""Step time of one training loop, bare, watched in several ways, and with the plain ways to get the same cosines."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks import page
from benchmarks.overhead.model import LanguageModel, tokens
from torch import nn

from trueline.capture.watch import Watch
from trueline.demo.ranks import Ranks
from trueline.schema.files.start import Job, Start
from trueline.schema.plan import Plan
from trueline.store.log.table_writer import SEAL_S
from trueline.store.writer import RunWriter

MODES = (
    *("bare", "unmonitored once more", "default plan", "every step"),
    *("exact cosine by an extra all-reduce", "exact cosine by a brute gather"),
)
WARMUP = 3
MAX_SETTLING = 300
"""Steps at most that the default plan takes, untimed, until its first two seconds of watching everything are over."""


def measure(*, ranks: int, rounds: int, folder: Path) -> str:
    """The table of ratios, as Markdown."""
    with Ranks(ranks, timeout_s=3600) as pool:
        results = pool.run(train, rounds, str(folder), timeout_s=3600)
    times: dict[str, list[float]] = {
        mode: [max(result["times"][mode][index] for result in results) for index in range(rounds)] for mode in MODES
    }
    cpu = {mode: [sum(result["cpu"][mode][index] for result in results) for index in range(rounds)] for mode in MODES}
    introduction = (
        f"{results[0]['numel'] / 1e6:.1f}M parameters, 512 tokens a rank, {ranks} ranks, {rounds} rounds; an "
        f"unmonitored step took {statistics.median(times['bare']):.3f} s and {statistics.median(cpu['bare']):.3f} s of "
        "CPU on all ranks together (medians). The default plan is timed once it has settled, after "
        f"{results[0]['settling']} steps: it then sampled every {results[0]['interval']} steps. Ratios are to the "
        "unmonitored step of the same round. CPU time is that of all threads of all ranks, which other work on the "
        "machine disturbs far less than step time, and which leaves out what a step waits for. The unmonitored step "
        "once more, of a model of its own, shows how far from 1 the machine alone takes a ratio. Each mode has a share "
        f"of the wall time only, so its Run is sealed every {SEAL_S * len(MODES):.0f} s of it."
    )
    spread = ("quartiles", "ratio of the sums")
    head = ["mode", "step time, median ratio", *spread, "CPU time, median ratio", *spread]
    rows = []
    for mode in MODES[1:]:
        own = results[0]["own"].get(mode)
        spent = f"{1000 * own:.1f} ms" if own is not None else "–"
        rows.append([mode, ratio(times, mode), ratio(cpu, mode), spent])
    return "\n\n".join(["## Step time", introduction, page.table([*head, "host time of Trueline, median"], rows)])


def ratio(seconds: dict[str, list[float]], mode: str) -> str:
    """Cells: median of the ratios to the unmonitored step of each round, their quartiles, and the ratio of the sums."""
    low, middle, high = statistics.quantiles(
        [one / bare for one, bare in zip(seconds[mode], seconds["bare"], strict=True)], n=4
    )
    return f"{middle:.3f} | {low:.3f} – {high:.3f} | {sum(seconds[mode]) / sum(seconds['bare']):.3f}"


def train(rank: int, world: int, rounds: int, folder: str) -> dict[str, Any]:
    """Step times and CPU times of every mode on this rank, in seconds, in the order of rounds."""
    steps, watches = {}, {}
    for mode in MODES:
        torch.manual_seed(0)
        ddp = nn.parallel.DistributedDataParallel(LanguageModel())
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4)
        extra: Callable[[], None] | None = None
        if mode in ("default plan", "every step"):
            plan = {"every": 1} if mode == "every step" else None
            watches[mode] = watched(ddp, optimizer, f"{folder}/{mode.replace(' ', '-')}", plan)
        elif mode.startswith("exact"):
            extra = exact(ddp, world, gather="gather" in mode)
        steps[mode] = one_step(ddp, optimizer, extra)
    schedule = watches["default plan"]._recorder._next.schedule
    settling = 0
    while schedule.interval == 1 and settling < MAX_SETTLING:
        steps["default plan"](tokens(settling, rank))
        settling += 1
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    cpu: dict[str, list[float]] = {mode: [] for mode in MODES}
    for round_ in range(rounds + WARMUP):
        for mode in in_turn(round_):
            batch = tokens(round_, rank)
            dist.barrier()
            begin, worked = time.perf_counter(), time.process_time()
            steps[mode](batch)
            dist.barrier()
            if round_ >= WARMUP:
                times[mode].append(time.perf_counter() - begin)
                cpu[mode].append(time.process_time() - worked)
    for watch in watches.values():
        watch.close()
    dist.barrier()
    own = {mode: median_own(f"{folder}/{mode.replace(' ', '-')}", rank) for mode in watches}
    numel = sum(param.numel() for param in ddp.parameters())
    return {"times": times, "cpu": cpu, "own": own, "interval": schedule.interval, "settling": settling, "numel": numel}


def in_turn(round_: int) -> list[str]:
    """All modes in the order of this round, the same on all ranks: shuffled, as a step is not alike after a gather of
    all gradients and after an unmonitored one, and in a rotation each mode would have its neighbour for good.
    """
    return random.Random(round_).sample(MODES, len(MODES))


def watched(ddp: nn.Module, optimizer: torch.optim.Optimizer, out: str, plan: dict[str, int] | None) -> Watch:
    """What ``trueline.watch`` makes, but that the Run is sealed by the time of its own mode, not that of all modes."""

    def make_sink(*, rank: int, lead: int, job: Job, start: Start | None) -> RunWriter:
        del job, start
        return RunWriter(out, rank=rank, creates=rank == lead, seal_s=SEAL_S * len(MODES))

    return Watch(ddp, optimizer, make_sink=make_sink, run_path=out, plan=Plan.load(plan))


def one_step(ddp: nn.Module, optimizer: torch.optim.Optimizer, extra: Callable[[], None] | None) -> Callable[..., None]:
    """A function that takes one training step on a batch."""

    def step(batch: torch.Tensor) -> None:
        ddp(batch).backward()
        if extra is not None:
            extra()
        optimizer.step()
        optimizer.zero_grad()

    return step


def exact(ddp: nn.parallel.DistributedDataParallel, world: int, *, gather: bool) -> Callable[[], None]:
    """The mean pairwise cosine without sketches: keep each bucket, then all-reduce unit gradients or gather them
    all.
    """
    kept: list[torch.Tensor] = []

    def keep(state, bucket):  # DDP wants annotations that are classes, not text, or none  # noqa: ANN001, ANN202
        kept.append(bucket.buffer().clone())
        work = dist.all_reduce(bucket.buffer().div_(world), async_op=True)
        return work.get_future().then(lambda future: future.value()[0])

    ddp.register_comm_hook(None, keep)

    def finish() -> None:
        flat = torch.cat(kept)
        kept.clear()
        if gather:
            everyone = [torch.empty_like(flat) for _ in range(world)]
            dist.all_gather(everyone, flat)
            rows = torch.stack(everyone)
            rows = rows / rows.norm(dim=1, keepdim=True)
            (rows @ rows.T).sum().item()
        else:
            flat /= flat.norm()
            dist.all_reduce(flat)
            flat.dot(flat).item()

    return finish


def median_own(path: str, rank: int) -> float:
    """Median host seconds that Trueline itself used per step on one rank."""
    import trueline

    run = trueline.open_run(path)
    values, measured = run.pivot("own_s")
    column = run.ranks.index(rank)
    return statistics.median(values[measured[:, column], column][WARMUP:].tolist())
