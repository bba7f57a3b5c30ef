"""Train jobs whose device flips one bit now and then, watched with replays, and healthy jobs; rewrite README.md.

    python -m benchmarks.replays [--jobs 10] [--steps 300] [--healthy 1000] [--ranked 4]

--jobs is how many jobs are trained for each row, of --steps steps; --healthy how many steps of each healthy model are
done again; --ranked how many jobs of four ranks are trained for each row. On the CPU.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
import torch.distributed as dist
from benchmarks.page import arguments, head, table, write
from torch import Tensor, nn
from torch.nn import functional

import trueline
from trueline.laws.replays import replay_differs
from trueline.laws.replays.columns import Replayed
from trueline.laws.replays.probe import outside
from trueline.schema.errors import CannotTell
from trueline.store.reader import Run

ABOUT = """\
A job trains a small model; one matrix product of its forward passes flips one bit of one element, at a given rate a
pass. Every N-th step is done again twice, so that three passes of the same work are compared: a fault is *seen* when
one of the three has a flip. With three products a pass, that is the share s = 1 - (1 - rate / 3)⁹ of the steps that are
done again, and of K such steps one shows it with probability 1 - (1 - s)^K. Steps are counted from the first that is
done again; a job in which nothing was seen counts with all its steps, also in what is expected."""

HEALTHY = """\
Ten healthy models, of which three do not repeat themselves (a kernel that adds up in another order each time stands in
as noise in the last bit). An alarm is a finding; *cannot tell* is the answer where kernels do not repeat themselves."""

RANKED = """\
Four ranks under DDP, one of which flips bits as above, in the exponent. Ranks also run the batch of the next one.
*Named* is the answer of `replay-differs` where it is this rank alone; `others` counts jobs in which it named more or
another."""

BITS = {"exponent": 1 << 27, "mantissa, last bit": 1, "sign": -(1 << 31)}
FIRST = 10
"""Steps before the first that is done again (``LAWS_AGE``)."""


class Flips:
    """Stands for ``functional.linear``; at ``rate`` a pass one bit of one element of one product is another."""

    def __init__(self, rate: float, bit: int, *, products: int, seed: int) -> None:
        self._rate, self._bit, self._linear = rate / products, bit, functional.linear
        self._draw = np.random.default_rng(seed)

    def __call__(self, *args: Tensor) -> Tensor:
        result = self._linear(*args)
        if self._draw.random() < self._rate:
            with torch.no_grad():
                place = int(self._draw.integers(result.numel()))
                result.view(-1)[place : place + 1].view(torch.int32).bitwise_xor_(self._bit)
        return result

    def __enter__(self) -> Flips:
        functional.linear = self  # type: ignore[assignment]
        # a real device draws nothing that could be put back
        self._found, outside.replaced_functions = outside.replaced_functions, lambda: iter(())
        return self

    def __exit__(self, *raised: object) -> None:
        functional.linear, outside.replaced_functions = self._linear, self._found


class Noisy(nn.Module):
    """A layer that rounds otherwise each time."""

    def forward(self, x: Tensor) -> Tensor:
        noise = int.from_bytes(os.urandom(1), "little") % 2
        return x * (1 + noise * torch.finfo(x.dtype).eps)


def mlp(*layers: nn.Module) -> nn.Module:
    """[B, 16] to [B, 10], three products a pass, with ``layers`` before the last."""
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), *layers, nn.Linear(32, 10))


class Sequence(nn.Module):
    """[B, 16] to [B, 10], as a sequence of 4 vectors."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.head = part, nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = self.part(x.reshape(-1, 4, 4))
        return self.head((out[0] if isinstance(out, tuple) else out)[:, -1])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "MLP": mlp,
    "with batch norm": lambda: mlp(nn.BatchNorm1d(32)),
    "with dropout": lambda: mlp(nn.Dropout(0.3)),
    "with layer norm": lambda: mlp(nn.LayerNorm(32)),
    "GRU": lambda: Sequence(nn.GRU(4, 4, batch_first=True)),
    "transformer": lambda: Sequence(nn.TransformerEncoderLayer(4, 2, 16, batch_first=True)),
    "with spectral norm": lambda: mlp(nn.utils.parametrizations.spectral_norm(nn.Linear(32, 32))),
}
UNLIKE: dict[str, Callable[[], nn.Module]] = {
    "MLP, does not repeat itself": lambda: mlp(Noisy()),
    "with dropout, does not repeat itself": lambda: mlp(nn.Dropout(0.3), Noisy()),
    "transformer, does not repeat itself": lambda: Sequence(
        nn.Sequential(Noisy(), nn.TransformerEncoderLayer(4, 2, 16, batch_first=True))
    ),
}


def train(make: Callable[[], nn.Module], *, steps: int, every: int, seed: int, out: Path | None) -> Run | None:
    """Train it; the Run, where it is watched."""
    torch.manual_seed(seed)
    model = make()
    updates = torch.optim.SGD(model.parameters(), lr=0.05)
    plan = {"preset": "audit", "replay": every, "every": 1000, "influence": 10**9}
    watch = None if out is None else trueline.watch(model, updates, out=out, plan=plan)
    for _ in range(steps):
        functional.cross_entropy(model(torch.randn(16, 16)), torch.randint(10, (16,))).backward()
        updates.step()
        updates.zero_grad()
    if watch is None or out is None:
        return None
    watch.close()
    return trueline.open_run(out)


def first_seen(run: Run) -> int | None:
    """Steps from the first that is done again to the first that differs, both counted; None without."""
    rows = {step: Replayed.from_json(text) for (step, _), text in run.texts("replayed").items()}
    return next((step - FIRST + 1 for step, row in sorted(rows.items()) if row.forward), None)


def faulty(jobs: int, steps: int) -> Iterator[tuple[Any, ...]]:
    """The rows of the first table."""
    for every in (1, 10, 100):
        for rate in (1.0, 0.1, 0.01):
            for name, bit in BITS.items():
                if name != "exponent" and (every, rate) != (1, 0.1):
                    continue  # one row shows that the bit does not matter
                seen: list[int] = []
                waited: list[int] = []
                for seed in range(jobs):
                    flips = Flips(rate, bit, products=3, seed=seed)
                    with tempfile.TemporaryDirectory() as folder, flips:
                        run = train(mlp, steps=steps + FIRST, every=every, seed=seed, out=Path(folder) / "run")
                        at = None if run is None else first_seen(run)
                    seen += [] if at is None else [at]
                    waited.append(steps if at is None else at)
                share = 1 - (1 - rate / 3) ** 9
                replays = range(1, steps + 1, every)
                ends = [share * (1 - share) ** number * step for number, step in enumerate(replays)]
                unseen = (1 - share) ** len(replays)
                found = f"{len(seen)} of {jobs}"
                expected = f"{sum(ends) + unseen * steps:.0f}"
                yield every, rate, name, found, f"{1 - unseen:.2f}", f"{statistics.mean(waited):.0f}", expected


def healthy(steps: int) -> Iterator[tuple[Any, ...]]:
    """The rows of the second table."""
    for name, make in {**MODELS, **UNLIKE}.items():
        with tempfile.TemporaryDirectory() as folder:
            run = train(make, steps=steps + FIRST, every=1, seed=1, out=Path(folder) / "run")
            assert run is not None
            rows = [Replayed.from_json(text) for text in run.texts("replayed").values()]
            differing = sum(bool(row.forward or row.backward) for row in rows)
            try:
                answer = str(len(replay_differs.check(run)))
            except CannotTell:
                answer = "cannot tell"
        yield name, len(rows), differing, answer


FAULTY = 2
"""The rank of four that flips bits."""


def train_ranked(rank: int, store: str, out: str, rate: float, every: int, steps: int, seed: int) -> None:
    """One of four ranks, by itself a process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=4)
    torch.manual_seed(seed)
    model = nn.parallel.DistributedDataParallel(mlp())
    updates = torch.optim.SGD(model.parameters(), lr=0.05)
    torch.manual_seed(100 * seed + rank)
    flips = Flips(rate if rank == FAULTY else 0.0, BITS["exponent"], products=3, seed=seed)
    plan = {"preset": "audit", "replay": every, "every": 1000, "influence": 10**9}
    with flips, trueline.watch(model, updates, out=out, plan=plan):
        for _ in range(steps):
            functional.cross_entropy(model(torch.randn(16, 16)), torch.randint(10, (16,))).backward()
            updates.step()
            updates.zero_grad()
    dist.destroy_process_group()


def ranked(jobs: int, steps: int) -> Iterator[tuple[Any, ...]]:
    """The rows of the table of four ranks."""
    for rate in (1.0, 0.1, 0.01, 0.0):
        named = others = silent = 0
        first: list[int] = []
        for seed in range(jobs):
            with tempfile.TemporaryDirectory() as folder:
                out = str(Path(folder) / "run")
                given = (str(Path(folder) / "store"), out, rate, 10, steps + FIRST, seed)
                torch.multiprocessing.spawn(train_ranked, given, nprocs=4)
                try:
                    findings = replay_differs.check(trueline.open_run(out))
                except CannotTell:
                    findings = []
            ranks = {rank for finding in findings for rank in finding.ranks}
            named, others, silent = named + (ranks == {FAULTY}), others + bool(ranks - {FAULTY}), silent + (not ranks)
            first += [finding.step_first - FIRST + 1 for finding in findings[:1] if finding.step_first is not None]
        yield rate, jobs, named, others, silent, f"{statistics.median(first):.0f}" if first else "–"


def cost(steps: int) -> Iterator[tuple[Any, ...]]:
    """The rows of the third table: CPU time over that of a job that is not watched, in turns."""
    intervals = (None, 0, 100, 10, 1)
    spent: dict[int | None, list[float]] = {every: [] for every in intervals}
    for turn in range(5):
        for every in intervals:
            with tempfile.TemporaryDirectory() as folder:
                out = None if every is None else Path(folder) / "run"
                begin = time.process_time()
                train(lambda: mlp(nn.Linear(32, 32)), steps=steps, every=every or 0, seed=turn, out=out)
                spent[every].append(time.process_time() - begin)
    bare = statistics.median(spent[0])
    for every in (0, 100, 10, 1):
        yield every or "none", f"{statistics.median(spent[every]) / bare:.2f}"


def main() -> None:
    """Train all and write the page."""
    chosen = arguments(__doc__, jobs=10, steps=300, healthy=1000, ranked=4).parse_args()
    command = f"python -m benchmarks.replays --jobs {chosen.jobs} --steps {chosen.steps} --healthy {chosen.healthy} "
    command += f"--ranked {chosen.ranked}"
    page = head("Work that is done again", command=command)
    header = ("every", "rate", "bit", "seen", "share expected", "mean steps until then", "expected")
    found = table(header, faulty(chosen.jobs, chosen.steps), right={0, 1, 3, 4, 5, 6})
    header = ("rate", "jobs", "named", "others", "nothing", "median first step")
    of_ranks = table(header, ranked(chosen.ranked, chosen.steps), right={0, 1, 2, 3, 4, 5})
    header = ("model", "steps done again", "differ", "alarms")
    alarms = table(header, healthy(chosen.healthy), right={1, 2, 3})
    header = ("every", "CPU time over watching without")
    costs = table(header, cost(chosen.steps), right={0, 1})
    write(
        __file__,
        page,
        ABOUT,
        found,
        "## One of four ranks",
        RANKED,
        of_ranks,
        "## Healthy models",
        HEALTHY,
        alarms,
        "## Cost",
        costs,
    )


if __name__ == "__main__":
    main()
