"""Measure how often `trial knobs` is right on simulated jobs, and how many runs it takes, and write the page.

python -m benchmarks.trials [--jobs N] [--error P] [--processes N]
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
from collections.abc import Iterable
from functools import partial
from typing import Any

from benchmarks import page
from tests.simulated_jobs import Needs, SimulatedJob, bayes, halving

SIZES = (8, 16, 32)
NEEDS: dict[Needs, str] = {"one": "one", "both": "two together", "either": "two, each by itself"}
RATES = ((1.0, 0.0), (0.8, 0.0), (0.5, 0.0), (0.5, 0.05), (0.2, 0.02))

_ABOUT = """
Jobs that exist in numbers only have n settings on, of which a fault needs one, two together, or either of two, drawn
anew for each job. A run shows the fault with probability r where what it needs is on, and with f where not. *right*:
`trial knobs` is confirmed and names exactly what is needed; *undecided*: it says that it cannot tell; the rest: wrong.
*runs*: of the job, mean over jobs, base, sham and verification included.

*Halving* switches halves off (or on, for two of which each suffices) and is told what the trial has to find out: r, f,
and whether there are one or two. Each of its decisions is Wald's sequential test with an equal share of the error; it
confirms base, sham and all off first and its answer from each side, as the trial does.
""".strip()


def main() -> None:
    """Measure all cells, and write the page."""
    parser = page.arguments(__doc__, jobs=50, error=0.05, processes=1)
    asked = parser.parse_args()
    command = f"python -m benchmarks.trials --jobs {asked.jobs} --error {asked.error}"
    head = page.head("Trials: runs and right answers", command=command)
    cells = [(size, needs, *rates) for needs in NEEDS for size in SIZES for rates in RATES]
    work = partial(_cell, jobs=asked.jobs, error=asked.error)
    with multiprocessing.Pool(asked.processes) as pool:
        rows = list(pool.imap(work, cells))
    page.write(__file__, head, _ABOUT, page.records(rows), _summary(rows, asked.error))


def _cell(cell: tuple[int, Needs, float, float], *, jobs: int, error: float) -> dict[str, Any]:
    size, needs, rate, false_rate = cell
    answers, runs, halved, halved_right = [], [], [], 0
    for seed in range(jobs):
        causes = tuple(sorted(random.Random(f"{cell} {seed}").sample(range(size), 1 if needs == "one" else 2)))
        job = SimulatedJob(size, causes, needs, rate, false_rate, seed)
        answer = bayes(job, error=error)
        answers.append(answer.answer if answer.answer != "confirmed" else answer.credible[:1] == (job.right,))
        runs.append(answer.runs)
        job = SimulatedJob(size, causes, needs, rate, false_rate, seed)
        named, taken = halving(job, error=error)
        halved.append(taken)
        halved_right += named == job.right
    return {
        "needs": NEEDS[needs],
        "n": size,
        "r": rate,
        "f": false_rate,
        "right": f"{answers.count(True) / jobs:.0%}",
        "undecided": f"{answers.count('undecided') / jobs:.0%}",
        "wrong": f"{(answers.count(False) + answers.count('excluded')) / jobs:.0%}",
        "runs": f"{statistics.mean(runs):.1f}",
        "halving: runs": f"{statistics.mean(halved):.1f}",
        "right ": f"{halved_right / jobs:.0%}",
        "ratio of runs": f"{statistics.mean(runs) / statistics.mean(halved):.2f}",
    }


def _summary(rows: Iterable[dict[str, Any]], error: float) -> str:
    every = list(rows)
    right = [float(row["right"].rstrip("%")) for row in every]
    wrong = [float(row["wrong"].rstrip("%")) for row in every]
    ratio = [float(row["ratio of runs"]) for row in every]
    within = sum(each <= 1.5 for each in ratio)
    return (
        f"Error asked {error:g}. Right in {statistics.mean(right):.1f} % of all jobs (lowest cell {min(right):.0f} %), "
        f"wrong in {statistics.mean(wrong):.1f} % (highest cell {max(wrong):.0f} %). Runs are at most 1.5 times those "
        f"of halving in {within} of {len(every)} cells; the largest ratio is {max(ratio):.2f}."
    )


if __name__ == "__main__":
    main()
