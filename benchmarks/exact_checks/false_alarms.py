"""How often the two checks that know a probability alarm in healthy runs.

At a level of 1e-6 no alarm is expected in thousands of runs, so that alone would prove little: the table also shows
how often each test's evidence passes 10, which a valid test martingale does in at most a tenth of healthy runs.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator

import numpy as np
from benchmarks import page
from tests.simulated_epochs import HEALTHY, Size, declared_for, samples_of, with_copies

from trueline.judge.stats.tails import ALARM_LEVEL, log_e_process
from trueline.laws.data_split import shard_overlap
from trueline.laws.data_split.consumed import Samples
from trueline.laws.data_split.coverage import find_returns
from trueline.laws.data_split.repeats_in_epoch import SeenOnce, find_repeats, overlap_tests
from trueline.laws.data_split.repeats_in_step import find_duplicates, find_reveals

ROWS = (64, 256, 1000)
WORKERS = (2, 4, 8)
BATCHES = (1, 2, 4, 8)
EPOCHS = (1, 3, 8)
COPIES = (0.0, 0.02, 0.3)
MODEST = math.log(10)


def strongest_evidence(samples: Samples, *, one_data_set: bool) -> Iterator[tuple[str, float]]:
    """Natural log of the largest evidence of each family of tests."""
    seen = SeenOnce(samples, one_data_set=one_data_set)
    repeats = find_repeats(samples, seen)
    for number, (events, hits, chance, _) in enumerate(overlap_tests(samples, repeats, seen)):
        ones = np.ones(len(events), dtype=np.int64)
        log_e = log_e_process(hits.astype(np.int64), ones, chance, repeats.block[events])
        yield "overlap, all" if number == 0 else "overlap, one worker", float(log_e.max(initial=0.0))
    for reveal in find_reveals(samples):
        yield "duplicates", float(reveal.log_e().max(initial=0.0))
    returns = find_returns(samples)
    ones = np.ones(len(returns.stays), dtype=np.int64)
    yield (
        "returns",
        float(log_e_process(returns.stays.astype(np.int64), ones, returns.chance, returns.block).max(initial=0.0)),
    )


def measure(kind: str, *, runs: int) -> tuple[int, dict[str, float]]:
    """Alarms in ``runs`` healthy runs of one kind, and by family the fraction of tests with evidence above 10."""
    alarms = 0
    passed: defaultdict[str, list[bool]] = defaultdict(list)
    for number in range(runs):
        rng = np.random.default_rng([number, len(kind)])
        size = Size(*(int(rng.choice(choices)) for choices in (ROWS, WORKERS, BATCHES, EPOCHS)))
        epochs = HEALTHY[kind](size, rng, with_copies(size, rng, float(rng.choice(COPIES))))
        samples = samples_of(epochs, size.batch, blocks_known=number % 4 > 0)
        declared = declared_for(kind, size, known=number % 2 > 0)
        alarms += find_duplicates(samples) is not None
        alarms += len(shard_overlap.judge(samples, declared))
        for family, log_e in strongest_evidence(samples, one_data_set=declared.splits_one_data_set):
            passed[family].append(log_e >= MODEST)
    return alarms, {family: float(np.mean(values)) for family, values in passed.items()}


def table(*, runs: int) -> str:
    """The table over ``runs`` healthy runs of each kind, as Markdown."""
    families = ("duplicates", "overlap, all", "overlap, one worker", "returns")
    about = (
        f"{runs} runs of each kind; rows {ROWS}, workers {WORKERS}, batch {BATCHES}, epochs {EPOCHS}, fraction of "
        f"copied rows {COPIES}, at random. Level {ALARM_LEVEL:g} a run and check."
    )
    total, rows = 0, []
    for kind in HEALTHY:
        alarms, fractions = measure(kind, runs=runs)
        total += alarms
        rows.append([kind, alarms, *(f"{fractions[name]:.3f}" for name in families)])
    head = ["healthy runs", "false alarms", *(f"evidence above 10: {name}" for name in families)]
    return "\n\n".join([about, page.table(head, rows), f"{total} false alarms in {runs * len(HEALTHY)} runs."])
