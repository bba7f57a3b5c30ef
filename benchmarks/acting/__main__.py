"""Plant five spikes into trainings of two ranks, with and without ``on_finding = "skip"``, and train healthy jobs with
it; rewrite README.md.

    python -m benchmarks.acting [--seeds 3] [--steps 600] [--healthy 3000]

--seeds is how often each spike is planted, in trainings of --steps steps; --healthy how many steps each of the healthy
trainings makes. On the CPU.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import tempfile
from collections.abc import Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks.acting.jobs import CLEAN, HEALTHY, PLAN, RARELY, SPIKES, Spike, cost, healthy, trained
from benchmarks.page import arguments, head, table, write

from trueline.demo.ranks import Ranks
from trueline.judge.stats.peaks_over_threshold import STEPS_BEFORE
from trueline.laws.jumps.run_series import SHARES
from trueline.schema.plan import FALSE_ALARMS

TIMES = 5

ABOUT = """\
A student of three layers learns a teacher, on two ranks under DDP, by AdamW with a cosine and without clipping. A spike
is planted after two thirds of the steps (*recurring*: from a sixth on). *Loss* is the mean square on 4,096 inputs that
nobody trained on, the median of the seeds: of the twin without a spike, of the job that nobody protects, and of the one
with `on_finding = "skip"`. *Left out* are updates, all seeds together; *others* of these are updates at which no spike
was planted."""

RATE = """\
*The rate*: it is not seen before its update, as the gradient is as always. Where the gradient jumps behind it, as
weights are far off, leaving that out would heal nothing; and where a rate rises at once, the law begins a new past.
*The bit*: AdamW divides by the root of its running square, so that one number that is far out stops the weight that it
is of, and hardly more. The update is left out all the same."""

COST = """\
CPU time of the thread that trains, per update of eight layers of 512 x 512 at a batch of 32, at updates whose gradients
are not sampled: {log:.2f} ms with `on_finding = "log"`, {skip:.2f} ms with `skip` (medians of {times}). One process,
which waits for no other."""

RARE = """\
A regression in which each batch in 100 has inputs four times as large, on purpose: the gradient of such a batch is far
out, and it is left out until `most_skips` are used up. Whoever trains so should not use `skip`."""

FALSE = """\
Updates of healthy trainings that were left out, of those that were judged for jumps (the first 48 are not). *At most*
is the upper end of the one-sided 95 % interval of a Poisson rate, in 10,000 updates; what is meant to be spent there is
{share:g}."""


def bound(count: int, over: int) -> float:
    """The rate whose probability to give at most ``count`` events in ``over`` trials is 5 % (Poisson)."""

    def below(mean: float) -> float:
        return sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1))

    low, high = 1e-9, 10.0 * (count + 1)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if below(middle) > 0.05 else (low, middle)
    return high / over


def spiked(ranks: Ranks, seeds: int, steps: int, folder: str) -> list[Sequence[object]]:
    """A row of each spike."""
    twins = [ranks.run(trained, CLEAN, seed, steps, "", timeout_s=3600)[0]["loss"] for seed in range(seeds)]
    rows: list[Sequence[object]] = []
    for spike in SPIKES:
        bare = [ranks.run(trained, spike, seed, steps, "", timeout_s=3600)[0]["loss"] for seed in range(seeds)]
        outs = [f"{folder}/{spike.name}-{seed}" for seed in range(seeds)]
        kept = [ranks.run(trained, spike, seed, steps, out, timeout_s=3600)[0] for seed, out in enumerate(outs)]
        others = sum(len(set(planted(one["skipped"])) - _hits(spike, steps)) for one in kept)
        num = sum(len(one["skipped"]) for one in kept)
        losses = [statistics.median(one) for one in (twins, bare, [one["loss"] for one in kept])]
        of_all = len(_hits(spike, steps)) * seeds
        rows.append((spike.says, *(f"{loss:.3g}" for loss in losses), f"{num} ({of_all} planted)", others))
    return rows


def planted(skipped: Sequence[int]) -> list[int]:
    """Steps of the training, of those of the Run: an update that is left out has no number there."""
    return [step + index for index, step in enumerate(skipped)]


def _hits(spike: Spike, steps: int) -> set[int]:
    return {step for step in range(steps) if spike.hits(step, steps)}


def main() -> None:
    """Measure, and write the page."""
    options = arguments(__doc__, seeds=3, steps=600, healthy=3000).parse_args()
    command = f"python -m benchmarks.acting --seeds {options.seeds} --steps {options.steps} --healthy {options.healthy}"
    top = head("Acting on what is found", command=command)
    logging.getLogger("trueline").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        with Ranks(2, timeout_s=3600) as ranks:
            rows = spiked(ranks, options.seeds, options.steps, folder)
        false = [
            (job, healthy(job, number, options.healthy, f"{folder}/{number}")) for number, job in enumerate(HEALTHY)
        ]
        took = {
            on_finding: statistics.median(cost(on_finding, f"{folder}/{on_finding}-{time}") for time in range(TIMES))
            for on_finding in ("log", "skip")
        }
        rare = healthy(RARELY, 0, options.healthy, f"{folder}/rare")
    judged = options.healthy - STEPS_BEFORE
    lines = [(job.says, options.healthy, len(found)) for job, found in false]
    num, over = sum(len(found) for _, found in false), judged * len(false)
    write(
        __file__,
        f"{top}\n- plan: `{' '.join(f'{key}={value}' for key, value in PLAN.items())}`",
        ABOUT,
        table(("spike", "twin", "unprotected", "skip", "left out", "others"), rows, right={1, 2, 3, 4, 5}),
        RATE,
        "## What it takes",
        COST.format(times=TIMES, **took),
        "## Healthy trainings",
        FALSE.format(share=FALSE_ALARMS * SHARES["norm"]),
        table(("training", "updates", "left out"), lines, right={1, 2}),
        f"Together {num} of {over:,} judged updates: at most {10_000 * bound(num, over):.2g} in 10,000.",
        "## What is rare on purpose",
        RARE,
        f"Left out: {len(rare)} updates of {options.healthy:,}, {PLAN['most_skips']} at most.",
    )


if __name__ == "__main__":
    main()
