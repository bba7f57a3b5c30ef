"""Count false alarms and measure power of the two checks that know a probability, and rewrite README.md beside this.

    python -m benchmarks.exact_checks [--healthy-runs 400] [--faulty-runs 40]

About two minutes on one core.
"""

from __future__ import annotations

from benchmarks.exact_checks import false_alarms, power
from benchmarks.page import arguments, head, write

TITLE = "False alarms and power of the two checks that know a probability"

ABOUT = """\
Simulated consumption of samples by workers (`simulate.py`): no training, so thousands of runs take minutes."""

ABOUT_HEALTHY = """\
At a level of 1e-6 no alarm in thousands of runs is what must be, so the other columns test the mathematics where it can
fail: evidence above 10 must occur in at most 0.1 of healthy runs. The last column is a test of one hypothesis, that
workers draw from one data set; fixed shards and own sources are healthy without that, so it is no alarm by itself: it
takes fresh samples and rows that are read in part as well (see `shard-overlap`)."""

ABOUT_FAULTY = """\
Without recorded seeds every repeat between workers could be two equal rows, and with N workers such a pair falls
between workers by chance in 1 - 1/N of all cases: one repeat is worth ln(N/(N - 1)) nats of the 14 and some that an
alarm takes. That is why eight workers need some 110 shared samples. A sampler that declares a seed of its own is a
contradiction with the first one."""


def main() -> None:
    """Measure both and write the page."""
    parser = arguments(__doc__)
    parser.add_argument("--healthy-runs", type=int, default=400, help="of each kind")
    parser.add_argument("--faulty-runs", type=int, default=40, help="of each setting")
    chosen = parser.parse_args()
    command = (
        f"python -m benchmarks.exact_checks --healthy-runs {chosen.healthy_runs} --faulty-runs {chosen.faulty_runs}"
    )
    parts = [
        head(TITLE, command=command),
        ABOUT,
        "## Healthy runs",
        false_alarms.table(runs=chosen.healthy_runs),
        ABOUT_HEALTHY,
        "## Steps until a fault is found",
        power.table(runs=chosen.faulty_runs),
        ABOUT_FAULTY,
    ]
    write(__file__, *parts)


if __name__ == "__main__":
    main()
