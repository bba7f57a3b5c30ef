"""Count the jumps that are reported in healthy runs, and how large one must be; rewrite README.md beside this.

    python -m studies.spikes [--cache DIR] [--runs 50] [--quick]

Trainings are those of `studies.judgement` and kept with them: without them it takes hours, with them some minutes.
"""

from __future__ import annotations

from pathlib import Path

from studies.judgement.cache import DEFAULT
from benchmarks.page import arguments, head, write
from studies.spikes import false_alarms, laws, models, power

TITLE = "Jumps along time: false alarms and power"

ABOUT = """\
`loss-spike` and `grad-spike` together have a budget of `Plan.false_alarms` expected alarms in 10,000 healthy steps, 0.1
by default. The law behind it (`trueline/judge/stats/peaks_over_threshold.py`) is exact where scores are exchangeable
and their logarithms have exponential tails; no training is quite like that. Tables count jumps that were reported under
the default budget and two looser ones, at which there is more to be counted. Cells: jumps, then jumps per 10,000 steps
with the exact 95 %
interval of a Poisson count, which should not lie above the budget."""

ABOUT_LAWS = f"""\
Runs of {false_alarms.RUN_STEPS:,} steps. The loss, the norm of the gradient, and the norms of {false_alarms.GROUPS}
groups follow the law, each by itself."""

ABOUT_BEYOND = """\
The same for series in which nothing is wrong and that are not what the law assumes. They are reported more often than
the budget allows: a batch that is far harder than all before is a jump until some have been seen, and so is a stage of
a curriculum that is far above the last."""

ABOUT_TRAININGS = """\
The healthy trainings of `studies/judgement`, each once with all its workers together and once with the first worker
alone, as a run of one process would be. The two are not independent. Norms are the root mean square of the workers'.
Two kinds do jump: a curriculum when a stage begins, and trainings that memorise their few rows, whose loss is nearly
zero and now and then many times that."""

ABOUT_MODELS = """\
Growth alone is no fault: models that train can grow gradients a thousandfold and more from layer to layer. What sets
`grad-explosion` apart is that the growth goes on to the end of the range of the dtype, of which healthy models stay
clear."""


def main() -> None:
    """Measure all and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--cache", type=Path, default=DEFAULT, help="where trainings are kept")
    parser.add_argument("--runs", type=int, default=50, help="simulated runs of each law")
    parser.add_argument("--quick", action="store_true", help="a small piece of the trainings")
    chosen = parser.parse_args()
    command = f"python -m studies.spikes --runs {chosen.runs}" + (" --quick" if chosen.quick else "")
    parts = [
        head(TITLE, command=command),
        ABOUT,
        "## Simulated laws",
        ABOUT_LAWS,
        false_alarms.simulated(laws.PROMISED, runs=chosen.runs),
        "## Beyond what is assumed",
        ABOUT_BEYOND,
        false_alarms.simulated(laws.BEYOND, runs=chosen.runs),
        "## Real trainings",
        ABOUT_TRAININGS,
        false_alarms.trainings(chosen.cache, quick=chosen.quick),
        "## How large a jump must be",
        power.table(chosen.cache, quick=chosen.quick),
        "## Gradients of healthy models",
        ABOUT_MODELS,
        models.table(),
    ]
    write(__file__, *parts)


if __name__ == "__main__":
    main()
