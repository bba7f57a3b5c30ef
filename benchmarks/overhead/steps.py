"""Step time of one training loop, bare, watched in several ways, and with the plain ways to get the same cosines."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from benchmarks.overhead.model import LanguageModel, tokens
from torch import nn

from trueline.testing.ranks import Ranks

MODES = ("bare", "default plan", "every step", "exact cosine by an extra all-reduce", "exact cosine by a brute gather")
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
        f"{results[0]['numel'] / 1e6:.1f}M parameters, 512 tokens a rank, {ranks} ranks, {rounds} rounds; a bare step "
        f"took {statistics.median(times['bare']):.3f} s and {statistics.median(cpu['bare']):.3f} s of CPU on all ranks "
        f"together (medians). The default plan is timed once it has settled, after {results[0]['settling']} steps: it "
        f"then sampled every {results[0]['interval']} steps."
    )
    lines = [
        "## Step time",
        "",
        introduction,
        "",
        "| mode | median ratio to the bare step of its round | quartiles | ratio of the sums | of CPU time "
        "| host time of Trueline, median |",
        "|---|---|---|---|---|---|",
    ]
    for mode in MODES[1:]:
        ratios = [one / bare for one, bare in zip(times[mode], times["bare"], strict=True)]
        low, middle, high = statistics.quantiles(ratios, n=4)
        own = results[0]["own"].get(mode)
        spent = f"{1000 * own:.1f} ms" if own is not None else "–"
        total, work = (sum(seconds[mode]) / sum(seconds["bare"]) for seconds in (times, cpu))
        lines.append(f"| {mode} | {middle:.3f} | {low:.3f} – {high:.3f} | {total:.3f} | {work:.3f} | {spent} |")
    return "\n".join(lines)


def train(rank: int, world: int, rounds: int, folder: str) -> dict[str, Any]:
    """Step times and CPU times of every mode on this rank, in seconds, in the order of rounds."""
    import trueline

    steps, watches = {}, {}
    for mode in MODES:
        torch.manual_seed(0)
        ddp = nn.parallel.DistributedDataParallel(LanguageModel())
        optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-4)
        extra: Callable[[], None] | None = None
        if mode in ("default plan", "every step"):
            plan = {"every": 1} if mode == "every step" else None
            watches[mode] = trueline.watch(ddp, optimizer, out=f"{folder}/{mode.replace(' ', '-')}", plan=plan)
        elif mode != "bare":
            extra = exact(ddp, world, gather="gather" in mode)
        steps[mode] = one_step(ddp, optimizer, extra)
    schedule = watches["default plan"]._recorder._schedule
    settling = 0
    while schedule.interval == 1 and settling < MAX_SETTLING:
        steps["default plan"](tokens(settling, rank))
        settling += 1
    times: dict[str, list[float]] = {mode: [] for mode in MODES}
    cpu: dict[str, list[float]] = {mode: [] for mode in MODES}
    for round_ in range(rounds + WARMUP):
        for turn in range(len(MODES)):
            mode = MODES[(round_ + turn) % len(MODES)]
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
    return {
        "times": times,
        "cpu": cpu,
        "own": own,
        "interval": schedule.interval,
        "settling": settling,
        "numel": numel,
    }


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
